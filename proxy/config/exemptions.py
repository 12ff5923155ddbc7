"""The active exemptions, for `check-config` and `/throttles`: one line for each entry with some."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Final

from quotas.entity import Entity
from quotas.entry import QuotaEntry
from quotas.limit_kinds import LIMIT_KINDS, THRESHOLDS
from quotas.parsing.limits import UNLIMITED, holds_clients
from quotas.rates import exact

MAX_LISTED: Final = 20
"""Of entries, in a text: a file may have a million."""


def exemptions_of(entries: Iterable[QuotaEntry], share: float) -> tuple[str, ...]:
    """Which entries lift a limit, and which clients the limits of an entry never hold; `share` scales the rates."""
    factor = exact(share)
    lines = [line for entry in entries for line in _lines(entry, factor)]
    rest = len(lines) - MAX_LISTED
    return (*lines[:MAX_LISTED], *([f"and {rest} more"] if rest > 0 else []))


def _lines(entry: QuotaEntry, share: Fraction) -> Iterator[str]:
    if entry.unlimited:
        names = ", ".join(f"{name}={UNLIMITED}" for name in entry.unlimited)
        still = "; resource groups and the total still apply" if isinstance(entry.entity, Entity) else ""
        yield f"{entry.entity}: {names}{still}"
    if entry.options.exempt is None:
        return
    for name, rate in entry.limits.items():
        if holds_clients(LIMIT_KINDS[name]):
            does = "measures but never holds" if name in THRESHOLDS else "neither counts nor holds"
            scaled = rate * share
            value = scaled.numerator if scaled.denominator == 1 else float(scaled)
            yield f"{entry.entity}: {name}={value} {does} {entry.options.exempt}"
