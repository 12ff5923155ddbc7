"""Reports of throttling: log lines, metrics, and the list of throttled clients."""

import logging
from collections.abc import Iterable

from proxy.config.config import EnforcementOptions
from proxy.enforcement.holds import Delay, Hold
from proxy.enforcement.identity import NS_PER_MS, Identity, throttle_time_ms
from proxy.observability.admin import WaitingClient
from proxy.observability.entities import Entities
from proxy.observability.logs import RateLimited, event
from quotas.admission.decision import Decision
from quotas.admission.limit import Limit
from quotas.connections import Verdict

NS_PER_SECOND = 1_000_000_000
#: The values of the label and log field `mode`.
NOTIFY, DELAY, PAUSE, REJECT = "notify", "delay", "pause", "reject"

_log = logging.getLogger("proxy.enforcement")


class Report:
    """Shared by all connections. A request is counted once: with the time of its hold, else with its notice or delay.

    most_ns   longest throttle time and longest delay
    """

    def __init__(self, options: EnforcementOptions, entities: Entities) -> None:
        self._entities = entities
        self.most_ns = options.max_throttle_ms * NS_PER_MS
        self._event = "would_throttle" if options.dry_run else "throttled"
        self._lines = RateLimited()

    def noticed(self, identity: Identity, decision: Decision, wait_ns: int, now_ns: int, mode: str = NOTIFY) -> None:
        """A request passed or was refused, and its response contains this wait."""
        limit = decision.limit
        if limit is not None:
            self._count(identity, limit.name, mode, wait_ns, now_ns)
            self._log_limit(identity, limit, mode, wait_ns, decision.wait_ns, now_ns)

    def held(self, identity: Identity, decision: Decision, now_ns: int) -> None:
        """A frame is held for the first time. It is counted when the hold ends: see `released`."""
        limit = decision.limit
        if limit is not None:
            wait_ns = decision.wait_ns + limit.queued_ns()
            self._log_limit(identity, limit, PAUSE, wait_ns, decision.wait_ns, now_ns, decision.topics)

    def released(self, identity: Identity, hold: Hold, now_ns: int) -> None:
        """A hold has ended, and the frame passes."""
        self._count(identity, hold.limit.name, PAUSE, now_ns - hold.since_ns, now_ns)

    def would_hold(self, identity: Identity, decision: Decision, now_ns: int) -> None:
        """A dry run forwards a frame that another mode would hold."""
        self.noticed(identity, decision, decision.wait_ns, now_ns, PAUSE)

    def connection_waits(self, identity: Identity, verdict: Verdict, now_ns: int) -> None:
        """A new connection is over a limit on connections."""
        name, entity = verdict.limit_name or "", str(verdict.entity)
        self._count(identity, name, PAUSE, verdict.wait_ns, now_ns)
        self._log(identity, name, entity, verdict.limit_value, PAUSE, verdict.wait_ns, verdict.wait_ns, now_ns)

    # ---- inside

    def _count(self, identity: Identity, limit_name: str, mode: str, wait_ns: int, now_ns: int) -> None:
        self._entities.throttled(limit_name, identity.user, identity.client_id, mode, wait_ns / NS_PER_SECOND, now_ns)

    def _log_limit(
        self,
        identity: Identity,
        limit: Limit,
        mode: str,
        wait_ns: int,
        debt_ns: int,
        now_ns: int,
        topics: tuple[str, ...] = (),
    ) -> None:
        self._log(identity, limit.name, str(limit.entity), limit.rate, mode, wait_ns, debt_ns, now_ns, topics)

    def _log(
        self,
        identity: Identity,
        limit_name: str,
        entity: str,
        limit_value: int | float,  # not `float`: mypyc would make it one, and the log show it so
        mode: str,
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
                self._event,
                client_id=identity.client_id,
                user=identity.user,
                peer=identity.peer,
                limit=limit_name,
                entity=entity,
                limit_value=limit_value,
                debt_seconds=round(debt_ns / NS_PER_SECOND, 3),
                throttle_ms=throttle_time_ms(wait_ns, self.most_ns),
                mode=mode,
                topics=",".join(topics) or None,
                suppressed=suppressed,
            )


class Waiting:
    """One connection for `/throttles`: its client, its hold or delay, or the wait for its connection rate."""

    __slots__ = ("delay", "hold", "identity", "since_ns", "verdict")

    def __init__(
        self, identity: Identity, hold: Hold | None, delay: Delay | None, verdict: Verdict | None, since_ns: int
    ) -> None:
        self.identity = identity
        self.hold = hold
        self.delay = delay
        self.verdict = verdict
        self.since_ns = since_ns


def waiting_clients(connections: Iterable[Waiting], now_ns: int) -> list[WaitingClient]:
    """Connections with a held frame, a delayed response or a notice that is not over, and those over their connection
    rate.
    """
    found = []
    for each in connections:
        waits = _waits(each, now_ns)
        if waits is not None:
            mode, limit, entity, value, waited_ns, remaining_ns = waits
            found.append(
                WaitingClient(
                    user=each.identity.user,
                    client_id=each.identity.client_id,
                    peer=each.identity.peer,
                    limit=limit,
                    entity=entity,
                    limit_value=float(value),
                    waited_seconds=waited_ns / NS_PER_SECOND,
                    remaining_seconds=remaining_ns / NS_PER_SECOND,
                    mode=mode,
                    after_notices=each.identity.back_off.conduct.value,
                )
            )
    return found


def _waits(each: Waiting, now_ns: int) -> tuple[str, str, str, int | float, int, int] | None:
    """Mode, limit, entity, value, time waited and time left of a throttled connection; None: it is not throttled."""
    hold, delay, notice, verdict = each.hold, each.delay, each.identity.notice, each.verdict
    if hold is not None:
        limit = hold.limit
        return PAUSE, limit.name, str(limit.entity), limit.rate, now_ns - hold.since_ns, limit.debt_ns(now_ns)
    if delay is not None:
        limit = delay.limit
        return DELAY, limit.name, str(limit.entity), limit.rate, now_ns - delay.since_ns, delay.until_ns - now_ns
    if notice.limit is not None and notice.until_ns > now_ns:
        limit = notice.limit
        return NOTIFY, limit.name, str(limit.entity), limit.rate, 0, notice.until_ns - now_ns
    if verdict is not None and verdict.limit_name is not None:  # without a limit it is about to be served
        waited_ns = now_ns - each.since_ns
        remaining_ns = max(0, verdict.wait_ns - waited_ns)
        return PAUSE, verdict.limit_name, str(verdict.entity), verdict.limit_value, waited_ns, remaining_ns
    return None
