"""Reports of throttling: log lines, metrics, and the list of throttled clients."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from proxy.config.config import EnforcementOptions
from proxy.enforcement.holds import Delay, Hold
from proxy.enforcement.identity import NS_PER_MS, Identity, throttle_time_ms
from proxy.observability.admin import WaitingClient
from proxy.observability.entities import Entities
from proxy.observability.logs import RateLimited, event
from proxy.observability.throttle_tallies import ThrottleTally
from quotas.admission.decision import Decision
from quotas.admission.limit import Limit
from quotas.connections import Verdict
from quotas.entity import TOTAL as TOTAL_ENTITY

NS_PER_SECOND = 1_000_000_000
#: The values of the label and log field `mode`.
NOTIFY, DELAY, PAUSE, REJECT = "notify", "delay", "pause", "reject"

#: Why a client is throttled, in logs, metrics and `/throttles`: a limit is nearly used up; is in debt; is in debt for
#: longer than `--hard-debt-seconds`; is the one of the whole proxy. Or a bound of the proxy: bytes that are buffered,
#: requests without a response.
SOFT, DEBT, HARD_DEBT, TOTAL, MEMORY, IN_FLIGHT = (
    "soft",
    "debt",
    "hard_debt",
    "total",
    "memory",
    "in_flight",
)
_BOUNDS: Final = {MEMORY: "max_buffered_bytes", IN_FLIGHT: "max_pending_requests"}

_log = logging.getLogger("proxy.enforcement")


class Report:
    """Shared by all connections. A request is counted once: with the time of its hold, else with its notice or delay.

    is_dry_run   nothing is throttled: log lines call it so
    most_ns      longest throttle time, delay and stop of reading
    """

    def __init__(self, options: EnforcementOptions, entities: Entities) -> None:
        self._entities = entities
        self.most_ns = options.max_throttle_ms * NS_PER_MS
        self._hard_ns = options.hard_debt_seconds * NS_PER_SECOND
        self.is_dry_run = options.dry_run
        self._lines = RateLimited()

    def reason_of(self, decision: Decision) -> str:
        """Why a request over a limit is throttled."""
        if self._hard_ns and decision.wait_ns > self._hard_ns:
            return HARD_DEBT
        return TOTAL if decision.limit is not None and decision.limit.entity == TOTAL_ENTITY else DEBT

    def stop_of(self, decision: Decision, now_ns: int) -> Delay | None:
        """For how long a connection is not read after a request that left so much debt: until the rest is within
        `--hard-debt-seconds`, at most the longest throttle time.
        """
        limit = decision.limit
        if limit is None or self.reason_of(decision) != HARD_DEBT:
            return None
        stop_ms = throttle_time_ms(decision.wait_ns - self._hard_ns, self.most_ns)
        return Delay(limit, now_ns, stop_ms, is_shown=False)

    def neared(self, identity: Identity, limit: Limit, wait_ns: int, now_ns: int) -> None:
        """A request passed and left less than the soft mark of a limit, and its response contains this wait."""
        self._count(identity, limit, NOTIFY, SOFT, wait_ns, now_ns)
        self._log_limit(identity, limit, NOTIFY, SOFT, wait_ns, 0, now_ns)

    def blocked(self, identity: Identity, reason: str, now_ns: int) -> None:
        """A connection is not read because of a bound of the proxy."""
        self._entities.throttle_reasons[reason] += 1
        self._log(identity, _BOUNDS[reason], "proxy", None, PAUSE, reason, 0, 0, now_ns)

    def noticed(self, identity: Identity, decision: Decision, wait_ns: int, now_ns: int, mode: str = NOTIFY) -> None:
        """A request passed or was refused, and its response contains this wait."""
        limit = decision.limit
        if limit is not None:
            reason = self.reason_of(decision)
            self._count(identity, limit, mode, reason, wait_ns, now_ns)
            self._log_limit(identity, limit, mode, reason, wait_ns, decision.wait_ns, now_ns)

    def held(self, identity: Identity, decision: Decision, now_ns: int) -> None:
        """A frame is held for the first time. It is counted when the hold ends: see `released`."""
        limit = decision.limit
        if limit is not None:
            wait_ns = decision.wait_ns + limit.queued_ns()
            reason = self.reason_of(decision)
            self._log_limit(identity, limit, PAUSE, reason, wait_ns, decision.wait_ns, now_ns, decision.topics)

    def released(self, identity: Identity, limit: Limit, held_ns: int, now_ns: int) -> None:
        """A frame has passed that was held, first by this limit; `held_ns`: by all, and in all its parts."""
        reason = TOTAL if limit.entity == TOTAL_ENTITY else DEBT
        self._count(identity, limit, PAUSE, reason, held_ns, now_ns)

    def would_hold(self, identity: Identity, decision: Decision, now_ns: int) -> None:
        """A dry run forwards a frame that another mode would hold."""
        self.noticed(identity, decision, decision.wait_ns, now_ns, PAUSE)

    def connection_waited(self, identity: Identity, verdict: Verdict, now_ns: int) -> None:
        """A new connection has waited so long for a limit on connections; in a dry run, it would have."""
        name, entity = verdict.limit_name or "", str(verdict.entity)
        self._entities.throttle_reasons[DEBT] += 1
        self._entities.observe(name, identity.user, identity.client_id, PAUSE, verdict.wait_ns / NS_PER_SECOND)
        tallies = self._entities.throttle_tallies
        if tallies is not None and name and not self.is_dry_run:
            tally = tallies.of(identity.user, identity.client_id, name, verdict.entity, verdict.limit_value)
            tally.throttled_ns += verdict.wait_ns
        self._log(identity, name, entity, verdict.limit_value, PAUSE, DEBT, verdict.wait_ns, verdict.wait_ns, now_ns)

    def exceeded(self, identity: Identity, limit: Limit, size: int) -> None:
        """Data of `size` bytes found this limit in debt: it is held, or in a dry run it passes."""
        identity.entity.exceed(limit.name, size)
        tally = self._tally_of(identity, limit)
        if tally is None:
            return
        if self.is_dry_run:
            tally.would_have_bytes += size
        else:
            tally.delayed_bytes += size

    def refused(self, identity: Identity, limit: Limit, size: int) -> None:
        """Records of `size` bytes were answered with an error because of this limit."""
        tally = self._tally_of(identity, limit)
        if tally is not None:
            tally.refused_bytes += size

    # ---- inside

    def _count(self, identity: Identity, limit: Limit, mode: str, reason: str, wait_ns: int, now_ns: int) -> None:
        self._entities.throttle_reasons[reason] += 1
        self._entities.throttled(limit.name, identity.user, identity.client_id, mode, wait_ns / NS_PER_SECOND, now_ns)
        tally = self._tally_of(identity, limit)
        if tally is not None and not self.is_dry_run:
            tally.throttled_ns += wait_ns

    def _tally_of(self, identity: Identity, limit: Limit) -> ThrottleTally | None:
        tallies = self._entities.throttle_tallies
        return None if tallies is None else tallies.of_limit(identity.user, identity.client_id, limit)

    def _log_limit(
        self,
        identity: Identity,
        limit: Limit,
        mode: str,
        reason: str,
        wait_ns: int,
        debt_ns: int,
        now_ns: int,
        topics: tuple[str, ...] = (),
    ) -> None:
        self._log(identity, limit.name, str(limit.entity), limit.rate, mode, reason, wait_ns, debt_ns, now_ns, topics)

    def _log(
        self,
        identity: Identity,
        limit_name: str,
        entity: str,
        limit_value: int | float | None,  # not `float`: mypyc would make it one, and the log show it so
        mode: str,
        reason: str,
        wait_ns: int,
        debt_ns: int,
        now_ns: int,
        topics: tuple[str, ...] = (),
    ) -> None:
        suppressed = self._lines.admit((entity, limit_name), now_ns)
        if suppressed is not None:
            event(
                _log,
                logging.WARNING,
                "would_throttle" if self.is_dry_run else "throttled",
                client_id=identity.client_id,
                user=identity.user,
                peer=identity.peer,
                limit=limit_name,
                entity=entity,
                limit_value=limit_value,
                debt_seconds=round(debt_ns / NS_PER_SECOND, 3),
                throttle_ms=throttle_time_ms(wait_ns, self.most_ns),
                mode=mode,
                reason=reason,
                topics=",".join(topics) or None,
                suppressed=suppressed,
            )


@dataclass(slots=True)
class Waiting:
    """One connection for `/throttles`.

    hold, delay, stop   of its next request, of its next response, of all reading
    blocked             the bound of the proxy for which it is not read; "": none
    verdict, since_ns   the wait for its connection rate
    """

    identity: Identity
    hold: Hold | None = None
    delay: Delay | None = None
    stop: Delay | None = None
    blocked: str = ""
    verdict: Verdict | None = None
    since_ns: int = 0


def waiting_clients(connections: Iterable[Waiting], now_ns: int) -> list[WaitingClient]:
    """Connections that are throttled in any way, or have a notice that is not over."""
    return [
        WaitingClient(
            user=each.identity.user,
            client_id=each.identity.client_id,
            peer=each.identity.peer,
            limit=wait.limit,
            entity=wait.entity,
            limit_value=float(wait.value),
            waited_seconds=wait.waited_ns / NS_PER_SECOND,
            remaining_seconds=wait.remaining_ns / NS_PER_SECOND,
            mode=wait.mode,
            reason=wait.reason,
            after_notices=each.identity.back_off.conduct.value,
        )
        for each in connections
        if (wait := _wait_of(each, now_ns)) is not None
    ]


class _Wait(NamedTuple):
    mode: str
    reason: str
    limit: str
    entity: str
    value: int | float
    waited_ns: int
    remaining_ns: int


def _wait_of(each: Waiting, now_ns: int) -> _Wait | None:
    """Why and for how long a connection is throttled; None: it is not."""
    for delay, mode, reason in ((each.stop, PAUSE, HARD_DEBT), (each.delay, DELAY, DEBT)):
        if delay is not None:
            return _wait_for(delay.limit, mode, reason, now_ns - delay.since_ns, delay.until_ns - now_ns)
    hold, notice, verdict = each.hold, each.identity.notice, each.verdict
    if hold is not None:
        # If it is the last of the queue.
        remaining_ns = hold.limit.debt_ns(now_ns) + max(0, hold.limit.queued_ns(-hold.units))
        reason = TOTAL if hold.limit.entity == TOTAL_ENTITY else DEBT
        return _wait_for(hold.limit, PAUSE, reason, now_ns - hold.since_ns, remaining_ns)
    if each.blocked:
        return _Wait(PAUSE, each.blocked, _BOUNDS[each.blocked], "proxy", 0, 0, 0)
    if notice.limit is not None and notice.until_ns > now_ns:
        return _wait_for(notice.limit, NOTIFY, notice.reason, 0, notice.until_ns - now_ns)
    if verdict is not None and verdict.limit_name is not None:  # without a limit it is about to be served
        waited_ns = now_ns - each.since_ns
        remaining_ns = max(0, verdict.wait_ns - waited_ns)
        entity = str(verdict.entity)
        return _Wait(PAUSE, DEBT, verdict.limit_name, entity, verdict.limit_value, waited_ns, remaining_ns)
    return None


def _wait_for(limit: Limit, mode: str, reason: str, waited_ns: int, remaining_ns: int) -> _Wait:
    return _Wait(mode, reason, limit.name, str(limit.entity), limit.rate, waited_ns, remaining_ns)
