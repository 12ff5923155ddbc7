"""Pages for people, without markup: who asks for one, and aligned tables."""

from collections.abc import Sequence


def asks_for_text(accept: str) -> bool:
    """Whether the Accept header names text/plain and not JSON."""
    accept = accept.lower()
    return "text/plain" in accept and "application/json" not in accept


def aligned(rows: Sequence[Sequence[str]], are_right: Sequence[bool], more: int = 0) -> str:
    """A line for each row, the headings first, in columns of one width. `are_right`: of figures. `more`: rows that
    are left out.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, are_right, strict=True)
        ).rstrip()
        for row in rows
    ]
    if more > 0:
        lines.append(f"... and {more} more")
    return "\n".join(lines) + "\n"
