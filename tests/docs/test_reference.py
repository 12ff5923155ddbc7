"""The catalogues contain what the code counts and logs, and the pages in docs/reference are written from them.

That each event which a test makes the proxy log is in the catalogue, at its level, is checked while the tests run, by a
fixture in `tests/proxy/conftest.py`. Here is the other direction: nothing in a catalogue is left over.
"""

import re

import pytest

from proxy.observability.catalogue import METRICS, events
from tests.docs.pages import ROOT
from tests.docs.reference import FOLDER, PAGES
from tests.docs.test_references import shown_families

SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "proxy").rglob("*.py"))
#: Events whose names begin with what was read: see `proxy.files.file_watch`.
READ = re.compile(r"(config|tls)_(refused|kept|watch_failed)")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_catalogue_has(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name](), "make reference"


def test_each_metric_of_the_catalogue_is_shown_and_the_other_way_round() -> None:
    assert sorted(METRICS) == sorted({name.removeprefix("kafka_quota_proxy_") for name in shown_families()})


@pytest.mark.parametrize("name", events())
def test_each_event_of_the_catalogue_is_logged_somewhere(name: str) -> None:
    assert READ.fullmatch(name) or f'"{name}"' in SOURCES
