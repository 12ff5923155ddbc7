"""What must hold over all entries that are in force together: each entity once, and thresholds that fit their total."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Final, TypeAlias

from quotas.admission.topic_thresholds import ThresholdError, check_thresholds
from quotas.entity import TOTAL, AnyEntity, Kind, Named
from quotas.entry import QuotaEntry
from quotas.limit_kinds import BYTES_THRESHOLD, MESSAGES_THRESHOLD, TOTAL_BYTES_THRESHOLD, TOTAL_MESSAGES_THRESHOLD
from quotas.parsing.errors import SpecError

Wrong: TypeAlias = "tuple[AnyEntity | None, Mapping[str, int | Fraction]]"
"""An entry with which something is wrong: whom it is for, None when that cannot be said, and the limits that could be
read of it.
"""

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


def threshold_errors(entries: Iterable[QuotaEntry], wrong: Sequence[Wrong] = ()) -> list[SpecError]:
    """Thresholds of topics that no total holds together (seed 004): one error for bytes, one for messages.

    The entities are distinct. The errors have no place: it is no one entry that is wrong.

    `wrong` are other entries, with which something is wrong by itself; they take the place of an entry of the same
    entity. Their thresholds count as far as they could be read, and nothing is an error here that may be right once
    they are.
    """
    if any(whom is None for whom, _ in wrong):
        return []
    limits_of: dict[AnyEntity | None, Mapping[str, int | Fraction]] = {each.entity: each.limits for each in entries}
    limits_of.update(wrong)
    total_is_wrong = any(whom == TOTAL for whom, _ in wrong)
    errors = []
    for name, total_name in _TOTAL_OF.items():
        total = limits_of.get(TOTAL, {}).get(total_name)
        if total is None and total_is_wrong:
            continue
        explicit = {
            str(entity.name): limits[name]
            for entity, limits in limits_of.items()
            if name in limits and isinstance(entity, Named) and entity.kind is Kind.TOPIC
        }
        try:
            check_thresholds(name, total, explicit)
        except ThresholdError as error:
            errors.append(SpecError("", str(error)))
    return errors
