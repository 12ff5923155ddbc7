"""The compact form of configured entries, since there may be a million that are never looked up."""

from collections.abc import Container
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

from quotas.entity import AnyEntity
from quotas.entry import QuotaEntry
from quotas.limit_options import NO_OPTIONS, LimitOptions


@dataclass(frozen=True, slots=True)
class SharedPart:
    """What many overrides have in common, kept once: the names of the limits that they set and lift, and their options.

    source    the name of the source that configured them, kept here because that costs no memory per entry
    earlier   an override of the same entity: its other limits apply too, with its own options
    """

    names: tuple[str, ...]
    options: LimitOptions = NO_OPTIONS
    unlimited: tuple[str, ...] = ()
    source: str = ""
    earlier: "Override | None" = None


# The shared part, followed by one rate for each of its names.
Override: TypeAlias = tuple[SharedPart, *tuple[int | Fraction, ...]]


@dataclass(frozen=True, slots=True)
class Applies:
    """The configured quota of one limit: its rate (units per second, before any share), options and bucket.

    entity   the scope of the bucket, real names only
    origin   the configured entity
    source   the name of the source of its entry: see `Configured`
    """

    rate: int | Fraction
    options: LimitOptions
    entity: AnyEntity
    origin: AnyEntity
    source: str = ""


class Compactor:
    """Makes overrides that share their common parts."""

    def __init__(self) -> None:
        self._shared: dict[SharedPart, SharedPart] = {}
        self._latest: dict[SharedPart, Override] = {}

    def compact(self, entry: QuotaEntry, source: str = "") -> Override:
        """The override of an entry of this source; shared with the latest one of its kind if both are equal."""
        part = SharedPart(tuple(entry.limits), entry.options, entry.unlimited, source)
        part = self._shared.setdefault(part, part)
        override: Override = (part, *entry.limits.values())
        if self._latest.get(part) != override:
            self._latest[part] = override
        return self._latest[part]


def limits_of(override: Override) -> dict[str, int | Fraction]:
    """Name to rate."""
    part, *rates = override
    of_earlier = {} if part.earlier is None else limits_of(part.earlier)
    kept = {name: rate for name, rate in of_earlier.items() if name not in part.unlimited}
    return {**kept, **dict(zip(part.names, rates, strict=True))}


def merged(earlier: Override | None, later: Override) -> Override:
    """One override from two entries of an entity: limits of the later one replace those of the same name."""
    part, *rates = later
    return later if earlier is None else (replace(part, earlier=earlier), *rates)


def apply(
    override: Override,
    found: dict[str, Applies],
    lifted: set[str],
    entity: AnyEntity,
    origin: AnyEntity,
    sources: Container[str] | None = None,
    bounded: str = "",
) -> None:
    """Add to `found` the limits of this override that are in neither mapping, and to `lifted` those that it lifts; only
    those of these sources, unless that is None. `bounded`: the source that may lower what others have for this entity.
    """
    part, *rates = override
    if sources is None or part.source in sources:
        for name, rate in zip(part.names, rates, strict=True):
            if name not in found and name not in lifted:
                found[name] = Applies(rate, part.options, entity, origin, part.source)
            elif part.source == bounded and name in found and found[name].origin == origin and rate < found[name].rate:
                found[name] = replace(found[name], rate=rate, source=bounded)
        lifted.update(part.unlimited)
    if part.earlier is not None:
        apply(part.earlier, found, lifted, entity, origin, sources, bounded)
