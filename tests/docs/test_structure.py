"""The rules of CONTRIBUTING.md about size that ruff does not have."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "quotas", "proxy")
MAX_ATTRIBUTES = 18
MAX_COMPLEXITY = 12
MAX_HOT_LOOPS = 2
BELOW = 20
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


def test_no_class_has_too_many_attributes() -> None:
    counts = {place: len(attributes(node)) for place, node in definitions() if isinstance(node, ast.ClassDef)}
    assert {place: count for place, count in counts.items() if count > MAX_ATTRIBUTES} == {}


def test_only_a_few_hot_loops_are_complex() -> None:
    counts = {place: complexity(node) for place, node in definitions() if not isinstance(node, ast.ClassDef)}
    over = {place: count for place, count in counts.items() if count > MAX_COMPLEXITY}
    assert len(over) <= MAX_HOT_LOOPS, over
    assert max(over.values(), default=0) < BELOW, over
