"""docs/claims.md has the tests of what pages for users say, and these name none."""

from __future__ import annotations

from pathlib import Path

import pytest

from quotas.limit_kinds import LIMIT_KINDS
from tests.docs.pages import CLAIMS_PAGE, PAGES, ROOT, SEED_PAGES, rows

CLAIMS = CLAIMS_PAGE.read_text(encoding="utf-8")
SECURITY = (ROOT / "docs/security.md").read_text(encoding="utf-8")
FOR_USERS = [page for page in PAGES if page != CLAIMS_PAGE and page not in SEED_PAGES]


def test_each_limit_has_a_test_at_sockets() -> None:
    shown = {name: test for row in rows(CLAIMS) if len(row) == 2 for name in row[0].split(", ") for test in row[1:]}
    for name in LIMIT_KINDS:
        assert shown[name].startswith(("tests/integration/", "tests/proxy/"))


def test_each_claim_of_the_security_page_has_a_test() -> None:
    page = SECURITY.replace("`", "")
    said = " ".join(page.split("\n## What holds\n")[1].split("\n## ")[0].split()).split(" - ")[1:]
    assert len(said) > 20
    assert said == [row[0] for row in _security_rows() if row[0] in said]
    assert all(test.startswith("tests/") for _, test in _security_rows())


def _security_rows() -> list[list[str]]:
    return rows(CLAIMS.split("\n## Security\n")[1])[2:]


@pytest.mark.parametrize("page", FOR_USERS, ids=[page.stem for page in FOR_USERS])
def test_a_page_for_users_names_no_test(page: Path) -> None:
    assert "`tests/" not in page.read_text(encoding="utf-8")
