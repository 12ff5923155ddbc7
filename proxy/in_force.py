"""What is in force now and may change while the proxy runs: the quotas, the throttle mode, and the off switch.

While enforcement is off the proxy behaves as with `--dry-run`: held frames are released, no notice is written. The
switch has an end, so that a forgotten one does not leave the proxy without limits. Enforcement begins without the debts
of a dry run: these would be served at once, by other clients, too.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from proxy.config.config import Config, EnforcementOptions
from proxy.config.quotas_file import Quotas
from proxy.observability import logs
from proxy.sessions.shared import Shared

NS_PER_SECOND: Final = 1_000_000_000
DRY_RUN: Final = "dry-run"
"""Not a throttle mode: what a dry run does in place of any."""
#: Limits that are updated in one turn: about 2 ms.
MOST_REFRESHED: Final = 100

_log = logging.getLogger(__name__)


class Caller(NamedTuple):
    """The process that used the switch, as the kernel reports it."""

    uid: int
    pid: int


class Off(NamedTuple):
    """Enforcement is off until `until_ns`; `until` is the same for people, in UTC."""

    until_ns: int
    until: str
    caller: Caller


class InForce:
    """See the module. Everything here is called in the event loop.

    quotas   those in force
    mode     the throttle mode; `DRY_RUN` in a dry run, and while enforcement is off
    """

    def __init__(self, config: Config, quotas: Quotas, shared: Shared) -> None:
        self.quotas = quotas
        self.mode = mode_of(config.enforcement)
        self._options = config.enforcement
        self._log_level = config.observability.log_level
        self._log_format = config.observability.log_format
        self._shared = shared
        self._off: Off | None = None
        self._is_refreshing = False
        shared.context.metrics.enforcement_enabled = self.mode != DRY_RUN

    def take_over(self, config: Config, quotas: Quotas) -> None:
        """Apply what may change of a configuration: quotas, dry run, throttle mode and log level."""
        if config.observability.log_level != self._log_level:
            self._log_level = config.observability.log_level
            logs.configure(self._log_format, self._log_level)
        self._options = config.enforcement
        self._apply_mode()
        if quotas is not self.quotas:
            self.take_over_quotas(quotas)

    def take_over_quotas(self, quotas: Quotas) -> None:
        """Replace the quotas. Fast for those that are prepared."""
        self.quotas = quotas
        registry, now_ns = self._shared.context.registry, self._shared.clock()
        registry.replace(quotas.configured, now_ns, share=quotas.share, most=MOST_REFRESHED)
        self._begin_refresh()

    def _begin_refresh(self) -> None:
        """Update the limits in use, some in each round of the loop, after another change, too."""
        if not self._is_refreshing:
            self._is_refreshing = True
            self._refresh()

    def _refresh(self) -> None:
        self._is_refreshing = self._shared.context.registry.refresh(MOST_REFRESHED)
        if self._is_refreshing:
            self._shared.loop.call_soon(self._refresh)

    # ---- the switch

    def switch_off(self, seconds: float, caller: Caller) -> None:
        """Stop enforcing for this time, counted from now, also if it is off already."""
        until = datetime.now(UTC) + timedelta(seconds=seconds)
        until_ns = self._shared.clock() + int(seconds * NS_PER_SECOND)
        self._off = Off(until_ns, until.isoformat(timespec="seconds"), caller)
        uid, pid = caller
        logs.event(_log, logging.WARNING, "enforcement_off", uid=uid, pid=pid, until=self._off.until, seconds=seconds)
        self._apply_mode()

    def switch_on(self, caller: Caller) -> None:
        """Enforce again."""
        self._end("switched on", caller)

    def tick(self, now_ns: int) -> None:
        """Enforce again when the time is over. Call it several times a second."""
        if self._off is not None and now_ns >= self._off.until_ns:
            self._end("time is over")

    @property
    def status(self) -> str:
        """One line for a person."""
        if self._off is not None:
            uid, pid = self._off.caller
            return f"enforcement is off until {self._off.until} (by uid {uid}, pid {pid})"
        if self.mode == DRY_RUN:
            return "enforcement is off: dry_run is configured"
        return f"enforcement is on, throttle mode {self.mode}"

    # ---- inside

    def _end(self, reason: str, caller: Caller | None = None) -> None:
        if self._off is not None:
            self._off = None
            uid, pid = (None, None) if caller is None else caller
            dry_run = self._options.dry_run or None
            logs.event(_log, logging.WARNING, "enforcement_on", reason=reason, uid=uid, pid=pid, dry_run=dry_run)
            self._apply_mode()

    def _apply_mode(self) -> None:
        """Change the measures of all connections. Held frames are decided again by these."""
        mode = mode_of(self._options) if self._off is None else DRY_RUN
        if mode == self.mode:
            return
        was_dry_run = self.mode == DRY_RUN
        self.mode = mode
        context = self._shared.context
        context.metrics.enforcement_enabled = mode != DRY_RUN
        context.measures.change(self._options.throttle_mode, enforces=mode != DRY_RUN)
        if was_dry_run:
            context.registry.forget_debts(self._shared.clock(), MOST_REFRESHED)
            self._begin_refresh()
        for observer in context.registry.observers:
            observer()


def mode_of(options: EnforcementOptions) -> str:
    """The throttle mode that these options ask for, or `DRY_RUN`."""
    return DRY_RUN if options.dry_run else options.throttle_mode
