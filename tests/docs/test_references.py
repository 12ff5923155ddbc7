"""What the pages name exists: files, functions, classes and tests, other pages, metrics.

A reference is `path` or `path::name` in backticks, the path from the root of the project; the name is that of a class,
a function, a constant, or `Class.member`.
"""

import ast
import re
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from pkgutil import iter_modules, walk_packages
from types import ModuleType

import pytest

import protocol
import proxy
import quotas
from proxy.admin.exposition import PREFIX, families
from proxy.background.host import Host
from proxy.config.config import Config, FleetOptions, ObservabilityOptions
from proxy.fleet.fleet import fleet_of
from proxy.observability.metrics import DiskFigures, Metrics
from quotas.registry.registry import Registry
from tests.docs.pages import PAGES, ROOT, SEED_PAGES, rows

_REFERENCE = re.compile(r"`([\w.-]+/[\w./-]+\.(?:py|md|toml))(?:::([\w.]+))?`")
_MEANT_AS_ONE = re.compile(r"`[^`\n]*(?:::|\.py)[^`\n]*`")
_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_METRIC = re.compile(r"kafka_quota_proxy_[a-z_]+")


@cache
def names_in(path: Path) -> frozenset[str]:
    """What a module defines at its top, and within its classes as `Class.member`."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    members = [
        f"{outer.name}.{name}" for outer in body if isinstance(outer, ast.ClassDef) for name in _defined(outer.body)
    ]
    return frozenset([*_defined(body), *members])


def _defined(body: list[ast.stmt]) -> list[str]:
    names = []
    for node in body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.append(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.append(name)
            case ast.Assign(targets=targets):
                names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def exists(path: str, name: str) -> bool:
    file = ROOT / path
    return file.is_file() and (not name or name in names_in(file))


REFERENCES = sorted(
    {(page, *found) for page in PAGES for found in _REFERENCE.findall(page.read_text(encoding="utf-8"))}
)
TOP_LEVEL = [protocol, proxy, quotas]
PACKAGES = [
    *TOP_LEVEL,
    *(
        import_module(module.name)
        for top in TOP_LEVEL
        for module in walk_packages(top.__path__, f"{top.__name__}.")
        if module.ispkg
    ),
]
LINKS = sorted({(page, *link) for page in PAGES for link in _LINK.findall(page.read_text(encoding="utf-8"))})


@pytest.mark.parametrize(
    ("page", "path", "name"), REFERENCES, ids=[f"{page.stem}-{path}::{name}" for page, path, name in REFERENCES]
)
def test_what_a_page_names_exists(page: Path, path: str, name: str) -> None:
    assert exists(path, name), f"{page.relative_to(ROOT)} names {path}::{name}"


@cache
def anchors(page: Path) -> frozenset[str]:
    """Of the headings of a page, as GitHub makes them."""
    headings = map(str.lower, _HEADING.findall(page.read_text(encoding="utf-8")))
    return frozenset(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings)


@pytest.mark.parametrize(
    ("page", "link", "anchor"), LINKS, ids=[f"{page.stem}-{link}#{anchor}" for page, link, anchor in LINKS]
)
def test_what_a_page_links_to_exists(page: Path, link: str, anchor: str) -> None:
    target = (page.parent / link) if link else page
    assert target.exists()
    assert not anchor or anchor in anchors(target)


#: The longest page that is still read from start to end.
MOST_WORDS = 1_500


def _words(page: Path) -> int:
    return len(page.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_page_is_short_or_calls_itself_a_reference(page: Path) -> None:
    _, first, *_ = page.read_text(encoding="utf-8").split("\n\n")
    assert "Reference" in first or _words(page) <= MOST_WORDS


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_what_is_meant_as_a_reference_is_one(page: Path) -> None:
    for meant in _MEANT_AS_ONE.findall(page.read_text(encoding="utf-8")):
        assert _REFERENCE.fullmatch(meant), meant


def test_each_seed_has_a_page() -> None:
    assert [page.name[:3] for page in SEED_PAGES] == ["000", "001", "002", "003", "004"]


@pytest.mark.parametrize("page", SEED_PAGES, ids=[page.stem for page in SEED_PAGES])
def test_each_rule_of_a_seed_has_a_test(page: Path) -> None:
    _, rules = page.read_text(encoding="utf-8").split("## Rule by rule\n")
    table = rules.split("\n## ")[0]
    rules_of_page = rows(table)[2:]
    assert rules_of_page
    for rule, where, *tests in rules_of_page:
        assert where, rule
        assert tests[0].startswith("tests/"), rule


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_the_map_of_a_package_has_all_its_modules(package: ModuleType) -> None:
    modules = {module.name for module in iter_modules(package.__path__)} - {"__main__"}
    assert modules <= set(re.findall(r"\w+", package.__doc__ or ""))


def shown_families() -> list[str]:
    """The families of /metrics, with every option that adds some."""
    reporting = ObservabilityOptions(client_telemetry=True)
    config = Config(bootstrap_servers=(), fleet=FleetOptions(name="etl"), observability=reporting)
    fleet, metrics = fleet_of(config, Registry(), Host()), Metrics(client_telemetry=True)
    metrics.note_reload("cluster")
    metrics.sources.disks = lambda _: DiskFigures("open", 1.0, False, 0, ())
    metrics.note_reload("quotas_topic")
    metrics.sources.quotas_topic = lambda: dict.fromkeys(("offset", "entities", "refused_records"), 0)
    return [each.name for each in families(metrics, fleet) if each.name.startswith(PREFIX)]


def test_metrics_have_the_names_that_pages_give_them() -> None:
    shown = chain.from_iterable((name, f"{name}_total") for name in shown_families())
    named = chain.from_iterable(_METRIC.findall(page.read_text(encoding="utf-8")) for page in PAGES)
    assert set(named) <= set(shown)
