"""The configuration that may change while the proxy runs: the quotas, the throttle mode, and whether they are enforced.

While enforcement is off the proxy behaves as it does with `--dry-run`: it releases held frames and sends no throttle
notice. When enforcement starts again, the debts of that time are forgotten: other clients would have to wait for them.
"""

import asyncio
from collections.abc import Mapping
from itertools import islice
from math import inf
from types import MappingProxyType
from typing import Final

from proxy.config.cautions import unmatched, unmatched_entries
from proxy.config.config import Config
from proxy.config.quota_sources import Quotas
from proxy.observability.logs import EventLog, configure
from proxy.sessions.shared import Shared
from quotas.entry import QuotaEntry

#: Limits that are updated in one slice of the loop: about 2 ms.
MOST_REFRESHED: Final = 100
#: Entries and limits that are compared in one slice of the loop: about 2 ms.
MOST_SEARCHED: Final = 5_000
UNMATCHED_NS: Final = 60_000_000_000
"""An entry that matched nothing for this long causes one warning. The time starts with the first request."""

_log = EventLog(__name__)


class ActiveConfig:
    """Applies changes to all connections. Everything here is called in the event loop.

    config, quotas   those that apply. At first: made of the proxy's `own` ones and of `others`, by source
    """

    def __init__(
        self,
        config: Config,
        quotas: Quotas,
        shared: Shared,
        own: Quotas | None = None,
        others: Mapping[str, tuple[QuotaEntry, ...]] = MappingProxyType({}),
    ) -> None:
        self.config = config
        self.quotas = quotas
        self.own = quotas if own is None else own
        self._others = dict(others)
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
        those of other sources.
        """
        before, self.config = self.config.observability, config
        if config.observability != before:
            configure(config.observability.log_format, config.observability.log_level)
        self._change(config.enforcement.throttle_mode, enforces=not quotas.dry_run, by="file")
        if quotas is not self.own:
            self.own = quotas
            await self._combine()

    async def apply_source(self, name: str, entries: tuple[QuotaEntry, ...]) -> None:
        """Apply the entries of `CLUSTER` or `TOPIC` instead of the previous ones."""
        self._others[name] = entries
        await self._combine()

    async def _combine(self) -> None:
        """The latest of all sources: one change after the other, as each is prepared in a thread."""
        async with self._replacing:
            quotas, before = self.own, self.quotas.misfits
            if any(self._others.values()):
                quotas = await asyncio.to_thread(quotas.over, dict(self._others))
            self.replace_quotas(quotas)
            for each in quotas.misfits if quotas.misfits != before else ():
                effect = "the thresholds of the topic of quotas do not apply"
                _log.warning("quotas_topic_left_out", limits=each.message, effect=effect)

    def replace_quotas(self, quotas: Quotas) -> None:
        """Replace the entries and the share. Fast for quotas that are prepared."""
        self.quotas = quotas
        registry, now_ns = self._shared.context.registry, self._shared.clock()
        registry.replace(quotas.configured, now_ns, share=quotas.share, most=MOST_REFRESHED)
        self._begin_refresh()
        self._search_ns = None

    def unmatched(self) -> list[str]:
        """The entries that nothing has matched; empty if there are too many entries or limits to compare at once."""
        limits = list(islice(self._shared.context.registry.limits_in_use(), MOST_SEARCHED))
        entries = list(islice(self.quotas.own_entries, MOST_SEARCHED))
        if len(entries) + len(limits) >= MOST_SEARCHED:
            return []
        return [str(each.entity) for each in unmatched_entries(entries, limits)]

    def warn_of_unmatched(self, now_ns: int) -> None:
        """Find entries that matched nothing, once it is time; in a thread, because there may be a million."""
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
        actions = self._shared.context.actions
        self._change(actions.mode, enforces=not actions.enforces, by="SIGUSR2")

    def _change(self, mode: str, *, enforces: bool, by: str) -> None:
        """Change the throttle actions of all connections. Held frames are decided again."""
        context = self._shared.context
        actions, was_enforcing = context.actions, context.actions.enforces
        if (mode, enforces) == (actions.mode, was_enforcing):
            return
        actions.change(mode, enforces=enforces)
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
