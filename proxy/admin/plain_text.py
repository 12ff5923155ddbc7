"""Pages in plain text: which requests want them, amounts, and aligned tables."""

from collections.abc import Sequence

from quotas.limit_kinds import DISK_GUARD


def asks_for_text(accept: str) -> bool:
    """Whether the Accept header names text/plain and not JSON."""
    accept = accept.lower()
    return "text/plain" in accept and "application/json" not in accept


def aligned(rows: Sequence[Sequence[str]], are_right: Sequence[bool], more: int = 0) -> str:
    """A line for each row, with the headings first, in columns of equal width. `are_right` marks columns of figures.
    `more` is the number of rows that are left out.
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
    """An amount in Kafka's usual units: 5 MB is 5,000,000 bytes."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if amount >= 0.9995 * size:
            return f"{amount / size:.3g} {unit}"
    return f"{amount:.0f} B"


def amount_of(limit_name: str, amount: float) -> str:
    """An amount in the unit of a limit."""
    if "byte" in limit_name or limit_name == DISK_GUARD:
        return bytes_of(amount)
    return f"{amount:,.0f}" if amount >= 1000 else f"{amount:.4g}"


def counted(count: float, noun: str, several: str = "") -> str:
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"


def percent_of(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.0%}"


def seconds_of(seconds: float) -> str:
    if seconds >= 10:
        return f"{seconds:,.0f} s"
    return f"{seconds:.2g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
