"""Checks of all entries together: each entity once, and thresholds that fit their total."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from quotas.admission.topic_thresholds import ThresholdError, check_thresholds
from quotas.entity import TOTAL, AnyEntity, EntityKind, Named
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


MOST_YIELDING: Final = 8
"""Each has its own samples for each broker, and its own fact in the records of a fleet."""


def errors_together(entries: Sequence[QuotaEntry], wrong: Sequence[Reading] = ()) -> Iterator[Problem]:
    """All errors that concern several entries; `wrong` as in `threshold_errors`."""
    yield from threshold_errors(entries, wrong)
    yield from yield_errors(entries, wrong)


def threshold_errors(entries: Iterable[QuotaEntry], wrong: Sequence[Reading] = ()) -> list[Problem]:
    """Thresholds of topics without a total or above it (seed 004): one error for bytes, one for messages.

    Limits of later entries replace those of earlier ones of the entity. The errors have no place, since they concern
    several entries.

    `wrong` are entries with other errors, instead of all others of their entity. Their thresholds count if they could
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
            if name in limits and isinstance(entity, Named) and entity.kind is EntityKind.TOPIC
        }
        try:
            check_thresholds(name, total, explicit)
        except ThresholdError as error:
            errors.append(Problem("", str(error)))
    return errors


def yield_errors(entries: Iterable[QuotaEntry], wrong: Sequence[Reading] = ()) -> Iterator[Problem]:
    """Groups that yield to a group that no entry defines, to one without clients, to themselves, or in a circle.
    Entries that could not be parsed may define what is missing.
    """
    groups = {entry.group.name: entry for entry in entries if entry.group is not None}
    if len(yielding := [each for each in groups.values() if each.options.yields is not None]) > MOST_YIELDING:
        yield Problem(
            "", f"{len(yielding)} resource groups yield, and at most {MOST_YIELDING} can", "join some of them"
        )
    entities = {reading.entity for reading in wrong}
    for entry in yielding:
        error = _of_protected(entry, groups, entities) or _of_circle(entry, groups)
        if error is not None:
            yield replace(error, place=str(entry.entity))


def _of_protected(
    entry: QuotaEntry, groups: Mapping[str, QuotaEntry], wrong: Collection[AnyEntity | None]
) -> Problem | None:
    """What is wrong with the clients that a group yields to."""
    yields, group = entry.options.yields, entry.group
    if yields is None or group is None:
        return None
    if {*yields.clients.users} & {*group.users} or {*yields.clients.client_ids} & {*group.client_ids}:
        return Problem("", f"yields to {yields.to}, its own member", "name the clients to protect")
    protected = groups.get(yields.group)
    if protected is None and yields.group and not {None, Named(EntityKind.RESOURCE_GROUP, yields.group)} & {*wrong}:
        hint = f"add a [[resource-group]] named {yields.group!r} with a limit, or yield to client-id:NAME"
        return Problem("", f"yields to {yields.to}, which no entry defines", hint)
    if protected is not None and protected.group is not None and not protected.group.has_clients:
        return Problem("", f"yields to {yields.to}, which has no client", "give it a client-id or a user")
    return None


def _of_circle(entry: QuotaEntry, groups: Mapping[str, QuotaEntry]) -> Problem | None:
    """An error for the first group of a circle, by name."""
    name = str(entry.entity)
    path, yields = [name], entry.options.yields
    while yields is not None and yields.group in groups and len(path) <= len(groups):
        path.append(yields.to)
        if yields.to == name:
            is_first = name == min(path)
            return (
                Problem("", f"yields in a circle: {' to '.join(path)}", "one must yield to none") if is_first else None
            )
        yields = groups[yields.group].options.yields
    return None
