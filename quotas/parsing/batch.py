"""Checks of all entries together: each entity once, and thresholds that fit their total."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias

from quotas.admission.topic_thresholds import ThresholdError, check_thresholds
from quotas.entity import TOTAL, AnyEntity, Kind, Named
from quotas.entry import QuotaEntry
from quotas.limit_kinds import THRESHOLDS
from quotas.parsing.errors import SpecError

Wrong: TypeAlias = tuple[AnyEntity | None, Mapping[str, int | Fraction]]
"""An entry with errors: its entity, None if unknown, and its limits that could be parsed."""


def duplicates(placed: Iterable[tuple[str, AnyEntity]]) -> list[SpecError]:
    """One error for each repeated entity; input is places ("--quota '...'", "quota[3]") with entities."""
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
    """Thresholds of topics without a total or above it (seed 004): one error for bytes, one for messages.

    Limits of later entries replace those of earlier ones of the entity. The errors have no place, since they concern
    several entries.

    `wrong` are entries with other errors, in place of all others of their entity. Their thresholds count if they could
    be parsed. What correcting them may solve is not reported here.
    """
    if any(entity is None for entity, _ in wrong):
        return []
    limits_of: dict[AnyEntity | None, Mapping[str, int | Fraction]] = {}
    for each in entries:
        limits_of[each.entity] = {**limits_of.get(each.entity, {}), **each.limits}
    limits_of.update(wrong)
    total_is_wrong = any(entity == TOTAL for entity, _ in wrong)
    errors = []
    for name, total_name in THRESHOLDS.items():
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
