"""What applies now and may change while the proxy runs: the quotas, the throttle mode, and whether they are enforced.

While enforcement is off the proxy behaves as with `--dry-run`: held frames are released, no notice is written.
Enforcement begins without the debts of that time: other clients would wait for these, too.
"""

from __future__ import annotations

import logging
from typing import Final

from proxy.config.cautions import unmatched
from proxy.config.config import Config
from proxy.config.quotas_file import Quotas
from proxy.observability import logs
from proxy.sessions.shared import Shared

DRY_RUN: Final = "dry-run"
"""Not a throttle mode: what a dry run does in place of any."""
#: Limits that are updated in one turn: about 2 ms.
MOST_REFRESHED: Final = 100
UNMATCHED_NS: Final = 300_000_000_000
"""An entry that matched nothing for this long is warned about, once. The time begins with the first request."""

_log = logging.getLogger(__name__)


class ActiveConfig:
    """Applies changes to all connections. Everything here is called in the event loop.

    quotas   those that apply
    mode     the throttle mode; `DRY_RUN` while enforcement is off
    """

    def __init__(self, config: Config, quotas: Quotas, shared: Shared) -> None:
        self.quotas = quotas
        self.mode = mode_of(config, quotas)
        self._throttle_mode = config.enforcement.throttle_mode
        self._observability = config.observability
        self._shared = shared
        self._is_refreshing = False
        #: When entries that matched nothing are searched; None: they were, or no request has arrived yet.
        self._search_ns: int | None = None
        self._was_searched = False
        self._publish_mode()

    def apply(self, config: Config, quotas: Quotas) -> None:
        """Apply what may change of a configuration: quotas, dry run, throttle mode and log level."""
        if config.observability != self._observability:
            self._observability = config.observability
            logs.configure(self._observability.log_format, self._observability.log_level)
        self._throttle_mode = throttle_mode = config.enforcement.throttle_mode
        measures = self._shared.context.measures
        measures.change(throttle_mode, enforces=measures.enforces)
        self._change_mode(mode_of(config, quotas), by="file")
        if quotas is not self.quotas:
            self.replace_quotas(quotas)

    def replace_quotas(self, quotas: Quotas) -> None:
        """Replace the entries and the share. Fast for quotas that are prepared."""
        self.quotas = quotas
        registry, now_ns = self._shared.context.registry, self._shared.clock()
        registry.replace(quotas.configured, now_ns, share=quotas.share, most=MOST_REFRESHED)
        self._begin_refresh()
        self._search_ns, self._was_searched = None, False

    def warn_of_unmatched(self, now_ns: int) -> None:
        """Look for entries that matched nothing, if it is time; a thread does this, since there may be a million."""
        context = self._shared.context
        if self._was_searched or not context.metrics.requests:
            return
        if self._search_ns is None:
            self._search_ns = now_ns + UNMATCHED_NS
        if now_ns >= self._search_ns:
            self._was_searched = True
            entries, limits = self.quotas.entries, context.registry.limits_in_use
            self._shared.loop.run_in_executor(None, lambda: logs.warn(_log, unmatched(entries, limits())))

    def toggle(self) -> None:
        """Switch enforcement off, or on if it is off, until the next call or `apply`."""
        self._change_mode(self._throttle_mode if self.mode == DRY_RUN else DRY_RUN, by="SIGUSR2")

    def _change_mode(self, mode: str, by: str) -> None:
        """Change the measures of all connections. Held frames are decided again by these."""
        before = self.mode
        if mode == before:
            return
        self.mode = mode
        self._publish_mode()
        context = self._shared.context
        context.measures.change(self._throttle_mode, enforces=mode != DRY_RUN)
        if DRY_RUN in {before, mode}:
            logs.event(_log, logging.WARNING, "enforcement_off" if mode == DRY_RUN else "enforcement_on", by=by)
        if before == DRY_RUN:
            context.registry.forget_debts(self._shared.clock(), MOST_REFRESHED)
            self._begin_refresh()
        for observer in context.registry.observers:
            observer()

    def _publish_mode(self) -> None:
        self._shared.context.metrics.enforcement_enabled = self.mode != DRY_RUN

    def _begin_refresh(self) -> None:
        """Update the limits in use, some in each round of the loop. A change meanwhile is part of these rounds."""
        if not self._is_refreshing:
            self._is_refreshing = True
            self._refresh()

    def _refresh(self) -> None:
        self._is_refreshing = self._shared.context.registry.refresh(MOST_REFRESHED)
        if self._is_refreshing:
            self._shared.loop.call_soon(self._refresh)


def mode_of(config: Config, quotas: Quotas) -> str:
    """The throttle mode of a configuration, or `DRY_RUN`."""
    return DRY_RUN if quotas.dry_run else config.enforcement.throttle_mode
