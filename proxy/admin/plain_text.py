"""Pages for people, without markup: who asks for one, amounts, and aligned tables."""

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


def bytes_of(amount: float) -> str:
    """In Kafka's usual units: 5 MB are 5,000,000 bytes."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if amount >= 0.9995 * size:
            return f"{amount / size:.3g} {unit}"
    return f"{amount:.0f} B"


def amount_of(limit_name: str, amount: float) -> str:
    """In the unit of a limit."""
    return bytes_of(amount) if "byte" in limit_name else f"{amount:,.4g}"


def seconds_of(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
