"""The rules of CONTRIBUTING.md about size that ruff does not have."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "quotas", "proxy")
MAX_ATTRIBUTES = 18
MAX_COMPLEXITY = 12
HOT_LOOPS = {"proxy/streams/batch_plan.py::scan", "protocol/fetch.py::_skip_plain"}
MAX_COMPLEXITY_OF_HOT_LOOPS = 16
#: The lines of all packages together. It only goes down, but for a feature: quotas/fleet has 700.
MAX_LINES = 24_850
_BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension, ast.Assert, ast.match_case)


@cache
def definitions() -> list[tuple[str, ast.AST]]:
    """Each class and function of the packages, by place."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [
        (f"{path.relative_to(ROOT)}::{node.name}", node)
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def attributes(node: ast.ClassDef) -> set[str]:
    """Fields, and names assigned to `self`."""
    fields = {
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    return fields | {
        item.attr
        for item in ast.walk(node)
        if isinstance(item, ast.Attribute)
        and isinstance(item.ctx, ast.Store)
        and isinstance(item.value, ast.Name)
        and item.value.id == "self"
    }


def complexity(node: ast.AST) -> int:
    """Branches, and operands of `and` and `or`, which ruff's C901 does not count."""
    return 1 + sum(
        len(item.values) - 1 if isinstance(item, ast.BoolOp) else isinstance(item, _BRANCHES) for item in ast.walk(node)
    )


def with_parents(name: str, classes: dict[str, ast.ClassDef]) -> set[str]:
    """The attributes of a class and of its parents in these packages."""
    node = classes[name]
    bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
    return attributes(node).union(*(with_parents(base, classes) for base in bases))


def test_no_class_has_too_many_attributes() -> None:
    classes = {node.name: node for _, node in definitions() if isinstance(node, ast.ClassDef)}
    counts = {name: len(with_parents(name, classes)) for name in classes}
    assert {name: count for name, count in counts.items() if count > MAX_ATTRIBUTES} == {}


def test_only_the_hot_loops_are_complex() -> None:
    counts = {place: complexity(node) for place, node in definitions() if not isinstance(node, ast.ClassDef)}
    over = {place: count for place, count in counts.items() if count > MAX_COMPLEXITY}
    assert over.keys() <= HOT_LOOPS
    assert max(over.values(), default=0) <= MAX_COMPLEXITY_OF_HOT_LOOPS


def test_the_source_does_not_grow() -> None:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert sum(path.read_text().count("\n") for path in paths) <= MAX_LINES
