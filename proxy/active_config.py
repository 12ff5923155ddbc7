"""What applies now and may change while the proxy runs: the quotas, the throttle mode, and whether they are enforced.

While enforcement is off the proxy behaves as with `--dry-run`: held frames are released, no notice is written.
Enforcement begins without the debts of that time: other clients would wait for these, too.
"""

import asyncio
from itertools import islice
from math import inf
from typing import Final

from proxy.config.cautions import unmatched, unmatched_entries
from proxy.config.config import Config
from proxy.config.quota_sources import Quotas
from proxy.observability.logs import EventLog, configure
from proxy.sessions.shared import Shared
from quotas.entry import QuotaEntry

#: Limits that are updated in one turn: about 2 ms.
MOST_REFRESHED: Final = 100
#: Entries and limits that are compared in one turn: about 2 ms.
MOST_SEARCHED: Final = 5_000
UNMATCHED_NS: Final = 60_000_000_000
"""An entry that matched nothing for this long is warned about, once. The time begins with the first request."""

_log = EventLog(__name__)


class ActiveConfig:
    """Applies changes to all connections. Everything here is called in the event loop.

    config, quotas   those that apply
    """

    def __init__(self, config: Config, quotas: Quotas, shared: Shared) -> None:
        self.config = config
        self.quotas = self._own = quotas
        self._of_cluster: tuple[QuotaEntry, ...] = ()
        self._replacing = asyncio.Lock()
        self._shared = shared
        self._is_refreshing = False
        #: When entries that matched nothing are searched; None: no request has arrived yet.
        self._search_ns: float | None = None
        metrics = shared.context.metrics
        metrics.enforcement_enabled = not quotas.dry_run
        metrics.sources.configured = lambda: (entry.entity for entry in self.quotas.own_entries if entry.has_buckets)

    async def apply(self, config: Config, quotas: Quotas) -> None:
        """Apply what may change of a configuration: quotas, dry run, throttle mode and log level. `quotas`: without
        those of the cluster.
        """
        before, self.config = self.config.observability, config
        if config.observability != before:
            configure(config.observability.log_format, config.observability.log_level)
        self._change(config.enforcement.throttle_mode, enforces=not quotas.dry_run, by="file")
        if quotas is not self._own:
            self._own = quotas
            await self._combine()

    async def apply_cluster(self, entries: tuple[QuotaEntry, ...]) -> None:
        """Apply the cluster's own client quotas, in place of those before."""
        self._of_cluster = entries
        await self._combine()

    async def _combine(self) -> None:
        """The latest of both sources: one change after the other, as each is prepared in a thread."""
        async with self._replacing:
            quotas = self._own
            if self._of_cluster:
                quotas = await asyncio.to_thread(quotas.over, self._of_cluster)
            self.replace_quotas(quotas)

    def replace_quotas(self, quotas: Quotas) -> None:
        """Replace the entries and the share. Fast for quotas that are prepared."""
        self.quotas = quotas
        registry, now_ns = self._shared.context.registry, self._shared.clock()
        registry.replace(quotas.configured, now_ns, share=quotas.share, most=MOST_REFRESHED)
        self._begin_refresh()
        self._search_ns = None

    def unmatched(self) -> list[str]:
        """The entries that nothing has matched; none where there are too many entries or limits to look at at once."""
        limits = list(islice(self._shared.context.registry.limits_in_use(), MOST_SEARCHED))
        entries = list(islice(self.quotas.own_entries, MOST_SEARCHED))
        if len(entries) + len(limits) >= MOST_SEARCHED:
            return []
        return [str(each.entity) for each in unmatched_entries(entries, limits)]

    def warn_of_unmatched(self, now_ns: int) -> None:
        """Look for entries that matched nothing, if it is time; a thread does this, since there may be a million."""
        context = self._shared.context
        if self._search_ns is None:
            if context.metrics.requests:
                self._search_ns = now_ns + UNMATCHED_NS
        elif now_ns >= self._search_ns:
            self._search_ns = inf  # once
            entries, limits = self.quotas.own_entries, context.registry.limits_in_use
            clients = (
                (each.produce_bytes + each.fetch_bytes, each.client_id, each.user) for each in context.metrics.entities
            )
            self._shared.loop.run_in_executor(None, lambda: _log.warn_of(unmatched(entries, limits(), clients)))

    def toggle(self) -> None:
        """Switch enforcement off, or on if it is off, until the next call or `apply`."""
        measures = self._shared.context.measures
        self._change(measures.mode, enforces=not measures.enforces, by="SIGUSR2")

    def _change(self, mode: str, *, enforces: bool, by: str) -> None:
        """Change the measures of all connections. Held frames are decided again by these."""
        context = self._shared.context
        measures, was_enforcing = context.measures, context.measures.enforces
        if (mode, enforces) == (measures.mode, was_enforcing):
            return
        measures.change(mode, enforces=enforces)
        context.metrics.enforcement_enabled = enforces
        if enforces != was_enforcing:
            _log.warning("enforcement_on" if enforces else "enforcement_off", by=by)
        if enforces and not was_enforcing:
            context.registry.forget_debts(self._shared.clock(), MOST_REFRESHED)
            self._begin_refresh()
        for observer in context.registry.observers:
            observer()

    def _begin_refresh(self) -> None:
        """Update the limits in use, some in each round of the loop. A change meanwhile is part of these rounds."""
        if not self._is_refreshing:
            self._is_refreshing = True
            self._refresh()

    def _refresh(self) -> None:
        self._is_refreshing = self._shared.context.registry.refresh(MOST_REFRESHED)
        if self._is_refreshing:
            self._shared.loop.call_soon(self._refresh)
