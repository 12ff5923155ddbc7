"""The quotas of all sources, as they apply together: those of the cluster, of flags, and of the quotas file.

A source has entries, and a name by which problems and answers call it. A further one is added by `merged`, before the
sources that override it; `proxy.active_config` applies a change of any source, always as a whole.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Final

from proxy.config.exemptions import exemptions_of
from quotas.entry import QuotaEntry
from quotas.registry.configured import Configured

CLUSTER: Final = "--cluster-quotas"
"""The name of the weakest source: the cluster's own client quotas."""

QuotaSources = Mapping[str, tuple[QuotaEntry, ...]]
"""Entries by the name of their source, the weakest source first."""


@dataclass(frozen=True)
class Quotas:
    """The active quotas: the entries (see `merged`), and the share that scales every rate, in (0, 1].

    `dry_run`: they are not enforced. `pending`: host names in it whose addresses are not known yet.
    A source may have a million entries: `prepare` and comparisons take seconds then.
    """

    sources: QuotaSources
    share: float
    dry_run: bool = False
    pending: frozenset[str] = field(default=frozenset(), compare=False)

    @cached_property
    def entries(self) -> tuple[QuotaEntry, ...]:
        return tuple(chain.from_iterable(self.sources.values()))

    @property
    def own_entries(self) -> Iterator[QuotaEntry]:
        """Those of this proxy: most names of a cluster never come here."""
        return chain.from_iterable(entries for name, entries in self.sources.items() if name != CLUSTER)

    def over(self, of_cluster: tuple[QuotaEntry, ...]) -> "Quotas":
        """These, and what the cluster has for other entities or limits; prepared. Seconds for many."""
        quotas = replace(self, sources=merged({CLUSTER: of_cluster, **self.sources}))
        quotas.prepare()
        return quotas

    @cached_property
    def configured(self) -> Configured:
        return Configured(self.sources)

    @cached_property
    def exemptions(self) -> tuple[str, ...]:
        return exemptions_of(self.entries, self.share)

    def prepare(self) -> None:
        """Compute all three, outside of the event loop."""
        _ = self.configured, self.exemptions


def merged(sources: QuotaSources) -> QuotaSources:
    """The sources without the limits that a stronger one has for the same entity. Entries without any limit go."""
    found: dict[str, tuple[QuotaEntry, ...]] = {}
    for name in reversed(list(sources)):
        found[name] = _without(sources[name], chain.from_iterable(found.values())) if found else sources[name]
    return {name: found[name] for name in sources}


def _without(entries: Iterable[QuotaEntry], stronger: Iterable[QuotaEntry]) -> tuple[QuotaEntry, ...]:
    left = {entry.entity: entry for entry in entries}
    for entry in stronger:
        weaker = left.get(entry.entity)
        if weaker is not None:
            replaced = {*entry.limits, *entry.unlimited}
            limits = {name: rate for name, rate in weaker.limits.items() if name not in replaced}
            unlimited = tuple(name for name in weaker.unlimited if name not in replaced)
            left[entry.entity] = replace(weaker, limits=limits, unlimited=unlimited, group=entry.group)
    return tuple(entry for entry in left.values() if entry.limits or entry.unlimited)
