"""Checks of all entries together: each entity once, and thresholds that fit their total."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from quotas.admission.topic_thresholds import ThresholdError, check_thresholds
from quotas.entity import TOTAL, AnyEntity, Kind, Named
from quotas.entry import QuotaEntry
from quotas.limit_kinds import THRESHOLDS
from quotas.parsing.entry import Reading
from quotas.problems import Problem


def duplicates(placed: Iterable[tuple[str, AnyEntity]]) -> list[Problem]:
    """One error for each repeated entity; input is places ("quota[3]") with entities."""
    first: dict[AnyEntity, str] = {}
    errors = []
    for place, entity in placed:
        if entity in first:
            where = "" if place == first[entity] else f": {first[entity]}"
            errors.append(Problem(place, f"{entity} is given twice", f"put its limits into one entry{where}"))
        else:
            first[entity] = place
    return errors


def threshold_errors(entries: Iterable[QuotaEntry], wrong: Sequence[Reading] = ()) -> list[Problem]:
    """Thresholds of topics without a total or above it (seed 004): one error for bytes, one for messages.

    Limits of later entries replace those of earlier ones of the entity. The errors have no place, since they concern
    several entries.

    `wrong` are entries with other errors, in place of all others of their entity. Their thresholds count if they could
    be parsed. What correcting them may solve is not reported here.
    """
    wrong_entities = {reading.entity for reading in wrong}
    if None in wrong_entities:
        return []
    limits_of: dict[AnyEntity | None, Mapping[str, int | Fraction]] = {}
    for each in entries:
        limits_of[each.entity] = {**limits_of.get(each.entity, {}), **each.limits}
    limits_of.update({reading.entity: reading.limits for reading in wrong})
    errors = []
    for name, total_name in THRESHOLDS.items():
        total = limits_of.get(TOTAL, {}).get(total_name)
        if total is None and TOTAL in wrong_entities:
            continue
        explicit = {
            str(entity.name): limits[name]
            for entity, limits in limits_of.items()
            if name in limits and isinstance(entity, Named) and entity.kind is Kind.TOPIC
        }
        try:
            check_thresholds(name, total, explicit)
        except ThresholdError as error:
            errors.append(Problem("", str(error)))
    return errors
