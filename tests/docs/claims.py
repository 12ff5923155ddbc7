"""The claims that pages for users make, and the tests that show them: `make claims` prints the table.

A test carries `@pytest.mark.claim(page, text)`, a file `pytestmark`; `page` is the name of a page in docs/.
"""

import ast
from collections.abc import Iterator
from functools import cache
from typing import Final

from tests.docs.pages import ROOT

Claims = dict[str, dict[str, list[str]]]
_MARK: Final = "pytest.mark.claim"


@cache
def claims() -> Claims:
    """By page and text: the tests, as `file` or `file::test`."""
    found: Claims = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, node in _marked(ast.parse(path.read_text(encoding="utf-8"))):
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == _MARK:
                    page, text = map(ast.literal_eval, call.args)
                    found.setdefault(page, {}).setdefault(text, []).append(f"{path.relative_to(ROOT)}{name}")
    return found


def _marked(module: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """The decorators of tests, each with the end of their place, and the marks of the whole file."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from ((f"::{node.name}", each) for each in node.decorator_list)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield "", node.value


if __name__ == "__main__":
    for page, texts in sorted(claims().items()):
        print(f"docs/{page}.md")
        for text, places in texts.items():
            print(f"  {text}", *places, sep="\n    ")
