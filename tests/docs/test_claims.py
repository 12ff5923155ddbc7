"""What pages for users claim is shown by tests that carry a mark, and the pages name none."""

from pathlib import Path

import pytest

from quotas.limit_kinds import LIMIT_KINDS
from tests.docs.claims import claims
from tests.docs.pages import PAGES, ROOT, SEED_PAGES

SECURITY = (ROOT / "docs/security.md").read_text(encoding="utf-8")
FOR_USERS = [page for page in PAGES if page not in SEED_PAGES]


def test_each_limit_has_a_test_at_sockets() -> None:
    shown = {name: tests for text, tests in claims()["limits"].items() for name in text.split(", ")}
    for name in LIMIT_KINDS:
        assert any(each.startswith(("tests/integration/", "tests/proxy/")) for each in shown[name]), name


def test_each_claim_of_the_security_page_has_a_test() -> None:
    page = SECURITY.replace("`", "")
    said = " ".join(page.split("\n## What holds\n")[1].split("\n## ")[0].split()).split(" - ")[1:]
    assert len(said) > 15
    assert set(said) <= claims()["security"].keys()


@pytest.mark.parametrize("page", claims())
def test_claims_are_of_pages_that_exist(page: str) -> None:
    assert (ROOT / "docs" / f"{page}.md").is_file()


@pytest.mark.parametrize("page", FOR_USERS, ids=[page.stem for page in FOR_USERS])
def test_a_page_for_users_names_no_test(page: Path) -> None:
    assert "`tests/" not in page.read_text(encoding="utf-8")
