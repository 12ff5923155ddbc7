"""The lines on which the tables of a quotas file begin: TOML does not report them, and advice about a limit names its
line.
"""

import re
from collections import defaultdict
from typing import Final

_header: Final = re.compile(r"[ \t]*\[\[[ \t]*[\"']?(quota|resource-group)[\"']?[ \t]*\]\]", re.ASCII).match


def lines_of(text: str) -> dict[str, int]:
    """By the place of each table, as in `quota[2]`. Text within a multi-line string also counts as a table."""
    counts, lines = defaultdict[str, int](int), dict[str, int]()
    for number, line in enumerate(text.split("\n"), 1):
        found = _header(line)
        if found is not None:
            lines[f"{found[1]}[{counts[found[1]]}]"] = number
            counts[found[1]] += 1
    return lines
