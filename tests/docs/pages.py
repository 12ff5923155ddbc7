"""The pages of docs/, and what stands in them."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
LIMITS_PAGE: Final = ROOT / "docs/limits.md"
TASKS_PAGE: Final = ROOT / "docs/how-to.md"
SEED_PAGES: Final = sorted((ROOT / "docs/seeds").glob("*.md"))
_FOLDERS: Final = ("docs", "docs/reference", "docs/seeds")
PAGES: Final = [ROOT / "README.md", *(page for each in _FOLDERS for page in sorted((ROOT / each).glob("*.md")))]

_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page: their language and what is in them."""
    return [(language, inside) for language, inside in _BLOCK.findall(text)]


def rows(text: str) -> list[list[str]]:
    """The cells of all rows of all tables of a page, without backticks."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]
