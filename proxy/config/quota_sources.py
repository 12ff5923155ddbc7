"""The quotas of all sources, as they apply together: of the cluster, of the topic of quotas, of flags, and of the file.

A source has entries, and a name by which problems and answers call it. A further one is added by `merged`, before the
sources that override it; `proxy.process.active_config` applies a change of any source, always as a whole.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Final

from proxy.config.exemptions import exemptions_of
from quotas.entity import Entity
from quotas.entry import QuotaEntry
from quotas.limit_kinds import THRESHOLDS
from quotas.parsing.batch import threshold_errors
from quotas.problems import Problem
from quotas.registry.configured import Configured

CLUSTER: Final = "--cluster-quotas"
"""The name of the weakest source: the cluster's own client quotas."""
TOPIC: Final = "--quotas-topic"
"""The name of the next one: the topic that all proxies follow. It never raises what stronger sources allow a client."""

_THRESHOLDS: Final = {*THRESHOLDS, *THRESHOLDS.values()}

QuotaSources = Mapping[str, tuple[QuotaEntry, ...]]
"""Entries by the name of their source, the weakest source first."""


@dataclass(frozen=True)
class Quotas:
    """The active quotas: the entries (see `merged`), and the share that scales every rate, in (0, 1].

    `dry_run`: they are not enforced. `pending`: host names in it whose addresses are not known yet. `misfits`: why
    thresholds of the topic were left out.
    A source may have a million entries: `prepare` and comparisons take seconds then.
    """

    sources: QuotaSources
    share: float
    dry_run: bool = False
    pending: frozenset[str] = field(default=frozenset(), compare=False)
    misfits: tuple[Problem, ...] = field(default=(), compare=False)

    @cached_property
    def entries(self) -> tuple[QuotaEntry, ...]:
        return tuple(chain.from_iterable(self.sources.values()))

    @property
    def own_entries(self) -> Iterator[QuotaEntry]:
        """Those of this proxy: most names of a cluster and of a topic for many proxies never come here."""
        own = (entries for name, entries in self.sources.items() if name not in {CLUSTER, TOPIC})
        return chain.from_iterable(own)

    def over(self, others: QuotaSources) -> "Quotas":
        """These, and what `CLUSTER` and `TOPIC` have for other entities or limits; prepared. Seconds for many.

        Thresholds of the topic that do not fit to the others are left out: see `misfits`.
        """
        weaker = {name: others[name] for name in (CLUSTER, TOPIC) if name in others}
        sources = merged({**weaker, **self.sources})
        misfits = tuple(threshold_errors(chain.from_iterable(sources.values()))) if TOPIC in sources else ()
        if misfits:
            sources = {**sources, TOPIC: tuple(_without_thresholds(sources[TOPIC]))}
        quotas = replace(self, sources=sources, misfits=misfits)
        quotas.prepare()
        return quotas

    @cached_property
    def configured(self) -> Configured:
        return Configured(self.sources, bounded=TOPIC)

    @cached_property
    def exemptions(self) -> tuple[str, ...]:
        return exemptions_of(self.entries, self.share)

    def prepare(self) -> None:
        """Compute all three, outside of the event loop."""
        _ = self.configured, self.exemptions


def merged(sources: QuotaSources) -> QuotaSources:
    """The sources without the limits that a stronger one has for the same entity, except lower ones of clients in the
    topic. Empty entries are dropped.
    """
    found: dict[str, tuple[QuotaEntry, ...]] = {}
    for name in reversed(list(sources)):
        stronger = chain.from_iterable(found.values())
        found[name] = _without(sources[name], stronger, lowers=name == TOPIC) if found else sources[name]
    return {name: found[name] for name in sources}


def _without(entries: Iterable[QuotaEntry], stronger: Iterable[QuotaEntry], *, lowers: bool) -> tuple[QuotaEntry, ...]:
    left = {entry.entity: entry for entry in entries}
    for entry in stronger:
        weaker = left.get(entry.entity)
        if weaker is not None:
            may_lower = lowers and isinstance(entry.entity, Entity)
            kept = {name for name, rate in weaker.limits.items() if may_lower and rate < entry.limits.get(name, 0)}
            replaced = {*entry.limits, *entry.unlimited} - kept
            limits = {name: rate for name, rate in weaker.limits.items() if name not in replaced}
            unlimited = tuple(name for name in weaker.unlimited if name not in replaced)
            left[entry.entity] = replace(weaker, limits=limits, unlimited=unlimited, group=entry.group)
    return tuple(entry for entry in left.values() if entry.limits or entry.unlimited)


def _without_thresholds(entries: Iterable[QuotaEntry]) -> Iterator[QuotaEntry]:
    for entry in entries:
        limits = {name: rate for name, rate in entry.limits.items() if name not in _THRESHOLDS}
        if limits or entry.unlimited:
            yield replace(entry, limits=limits)
