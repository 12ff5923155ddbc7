"""What must hold over all entries that are in force together: each entity once, and thresholds that fit their total."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from quotas.admission.topic_thresholds import ThresholdError, check_thresholds
from quotas.entity import TOTAL, Kind, Named
from quotas.limit_kinds import BYTES_THRESHOLD, MESSAGES_THRESHOLD, TOTAL_BYTES_THRESHOLD, TOTAL_MESSAGES_THRESHOLD
from quotas.spec.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from fractions import Fraction

    from quotas.entity import AnyEntity
    from quotas.entry import QuotaEntry

_TOTAL_OF: Final = {BYTES_THRESHOLD: TOTAL_BYTES_THRESHOLD, MESSAGES_THRESHOLD: TOTAL_MESSAGES_THRESHOLD}


def duplicates(placed: Iterable[tuple[str, AnyEntity]]) -> list[SpecError]:
    """One error for each entity that an earlier one equals; each comes with its place ("--quota '...'", "quota[3]")."""
    first: dict[AnyEntity, str] = {}
    errors = []
    for place, entity in placed:
        if entity in first:
            advice = "put all limits of an entity into one entry"
            errors.append(SpecError(place, f"{entity} has an entry already: {first[entity]}", advice=advice))
        else:
            first[entity] = place
    return errors


def threshold_errors(entries: Sequence[QuotaEntry]) -> list[SpecError]:
    """Thresholds of topics that no total holds together (seed 004): one error for bytes, one for messages.

    The entities are distinct. The errors have no place: it is no one entry that is wrong.
    """
    errors = []
    for name, total_name in _TOTAL_OF.items():
        total: int | Fraction | None = None
        explicit: dict[str, int | Fraction] = {}
        for entry in entries:
            if entry.entity == TOTAL:
                total = entry.limits.get(total_name)
            elif name in entry.limits and isinstance(entry.entity, Named) and entry.entity.kind is Kind.TOPIC:
                explicit[str(entry.entity.name)] = entry.limits[name]
        try:
            check_thresholds(name, total, explicit)
        except ThresholdError as error:
            errors.append(SpecError("", str(error)))
    return errors
