"""The compact form of configured entries, since there may be a million that are never looked up."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, TypeAlias

from quotas.entity import AnyEntity
from quotas.entry import QuotaEntry
from quotas.exemption import Exemption

NS_PER_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """The common part of overrides, shared: the names of their limits and of those they lift, and their options.

    source    the name of what they were configured by: costs an entry nothing here
    earlier   an override of the same entity: its other limits apply too, with its own options
    is_per_process  see `QuotaEntry`
    """

    names: tuple[str, ...]
    burst_ns: int | None = None
    mode: str | None = None
    algorithm: str | None = None
    unlimited: tuple[str, ...] = ()
    exempt: Exemption | None = None
    rejects: bool | None = None
    source: str = ""
    earlier: "Override | None" = None
    is_per_process: bool = False


# The shape, then one rate for each of its names.
Override: TypeAlias = tuple[Shape, *tuple[int | Fraction, ...]]


@dataclass(frozen=True, slots=True)
class Applies:
    """The configured quota of one limit: its rate (units per second, before any share), options and bucket.

    entity   the scope of the bucket, real names only
    origin   the configured entity
    exempt   the clients that it neither charges nor holds
    rejects  see `QuotaEntry`
    source   the name of the source of its entry: see `Configured`
    is_per_process  see `QuotaEntry`
    """

    rate: int | Fraction
    burst_ns: int | None
    mode: str | None
    algorithm: str | None
    entity: AnyEntity
    origin: AnyEntity
    exempt: Exemption | None = None
    rejects: bool | None = None
    source: str = ""
    is_per_process: bool = False


class Compactor:
    """Makes overrides that share their common parts."""

    def __init__(self) -> None:
        self._shapes: dict[Shape, Shape] = {}
        self._latest: dict[Shape, Override] = {}

    def compact(self, entry: QuotaEntry, source: str = "") -> Override:
        """The override of an entry of this source; shared with the latest one of its shape if both are equal."""
        burst_ns = None if entry.burst_seconds is None else int(entry.burst_seconds * NS_PER_SECOND)
        names = tuple(entry.limits)
        shape = Shape(
            names,
            burst_ns,
            entry.mode,
            entry.algorithm,
            entry.unlimited,
            entry.exempt,
            entry.rejects,
            source,
            is_per_process=entry.is_per_process,
        )
        shape = self._shapes.setdefault(shape, shape)
        override: Override = (shape, *entry.limits.values())
        if self._latest.get(shape) != override:
            self._latest[shape] = override
        return self._latest[shape]


def limits_of(override: Override) -> dict[str, int | Fraction]:
    """Name to rate."""
    shape, *rates = override
    of_earlier = {} if shape.earlier is None else limits_of(shape.earlier)
    kept = {name: rate for name, rate in of_earlier.items() if name not in shape.unlimited}
    return {**kept, **dict(zip(shape.names, rates, strict=True))}


def merged(earlier: Override | None, later: Override) -> Override:
    """One override of two entries of an entity: limits of the later one replace those of the same name."""
    shape, *rates = later
    return later if earlier is None else (replace(shape, earlier=earlier), *rates)


def apply(
    override: Override, found: dict[str, Applies], lifted: set[str], entity: AnyEntity, origin: AnyEntity
) -> None:
    """Add the limits of this override that are not in `found` nor `lifted`, and to `lifted` those that it lifts."""
    shape, *rates = override
    for name, rate in zip(shape.names, rates, strict=True):
        if name not in found and name not in lifted:
            options = shape.burst_ns, shape.mode, shape.algorithm
            of_entry = shape.exempt, shape.rejects
            found[name] = Applies(rate, *options, entity, origin, *of_entry, shape.source, shape.is_per_process)
    lifted.update(shape.unlimited)
    if shape.earlier is not None:
        apply(shape.earlier, found, lifted, entity, origin)
