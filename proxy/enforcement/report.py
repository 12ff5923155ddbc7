"""Reports of throttling: log lines, metrics, and the list of throttled clients."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from proxy.config.config import EnforcementOptions
from proxy.enforcement.delay import Delay
from proxy.enforcement.identity import Client, Identity, throttle_time_ms
from proxy.observability.entities import Entities
from proxy.observability.logs import EventLog, RateLimited
from proxy.observability.throttle_tallies import ThrottleTally
from quotas.admission.limit import Limit
from quotas.connections import ConnectionVerdict
from quotas.entity import TOTAL as TOTAL_ENTITY
from quotas.time_units import NS_PER_MS, NS_PER_SECOND

#: The values of the label and log field `mode`.
NOTIFY, DELAY, PAUSE, REJECT = "notify", "delay", "pause", "reject"

#: Why a client is throttled, in logs, metrics and `/throttles`: a limit is nearly used up; is in debt; is in debt and
#: the one of the whole proxy. Or a bound of the proxy: bytes that are buffered, requests without a response.
SOFT, DEBT, TOTAL, MEMORY, IN_FLIGHT = "soft", "debt", "total", "memory", "in_flight"
#: How the clock of each connection, the log and `/throttles` name these two: option and entity.
BOUNDS: Final[Mapping[str, tuple[str, object]]] = {
    MEMORY: ("max_buffered_bytes", "proxy"),
    IN_FLIGHT: ("max_pending_requests", "proxy"),
}

#: Limits, and connections of each, whose time since their last line is known.
_MOST: Final = 1_000

_log = EventLog("proxy.enforcement")


def reason_of(limit: Limit) -> str:
    """The reason of a throttle for the debt of this limit."""
    return TOTAL if limit.entity == TOTAL_ENTITY else DEBT


class _Throttle(NamedTuple):
    """A client, and the limit that throttles it. `limit_value`: of one that a fleet shares, what all members may use
    together; then `allowed_here` is what this process may use of it now.
    """

    client_id: str
    user: str
    peer: str
    limit: str
    entity: str
    limit_value: int | float | None  # not `float`: mypyc would make it one, and the log show it so
    fleet: str | None = None
    fleet_members: int | None = None
    allowed_here: int | float | None = None


def _of(client: Client, limit: Limit) -> _Throttle:
    name, entity, whole = limit.name, str(limit.entity), limit.whole
    if whole is None:
        return _Throttle(*client.names, name, entity, limit.rate)
    return _Throttle(*client.names, name, entity, whole.rate, whole.fleet, whole.members, limit.rate)


class _Span(NamedTuple):
    """How long a connection is or was held, as far as that is known. `until`: the time of day when a hold ends."""

    now_ns: int
    begin_ns: int
    end_ns: int
    until: str = ""


class _Held:
    """How long connections were held by a limit since its last line: the time in which at least one was."""

    __slots__ = ("held_ns", "line_ns", "peers", "until_ns")

    def __init__(self, line_ns: int, until_ns: int) -> None:
        self.line_ns: Final = line_ns
        self.until_ns = max(line_ns, until_ns)
        self.held_ns = self.until_ns - line_ns
        self.peers: Final = set[str]()

    def add(self, peer: str, begin_ns: int, end_ns: int) -> None:
        if len(self.peers) < _MOST:
            self.peers.add(peer)
        self.held_ns += max(0, end_ns - max(begin_ns, self.until_ns))
        self.until_ns = max(end_ns, self.until_ns)

    def fields(self, now_ns: int) -> dict[str, object]:
        held_ns = self.held_ns - max(0, self.until_ns - now_ns)  # a notice may end later
        times = {"held_seconds": held_ns, "of": now_ns - self.line_ns}
        fields: dict[str, object] = {name: round(each / NS_PER_SECOND, 1) for name, each in times.items()}
        return fields | {"connections": len(self.peers)}


class Report:
    """Shared by all connections. A request is counted once: with the time of its hold, else with its notice or delay.

    is_dry_run   nothing is throttled: log lines call it so
    most_ns      longest throttle time and delay
    """

    def __init__(self, options: EnforcementOptions, entities: Entities) -> None:
        self._entities = entities
        self.most_ns = options.max_throttle_ms * NS_PER_MS
        self.is_dry_run = options.dry_run
        self._lines = RateLimited()
        #: By entity and limit.
        self._held: dict[tuple[object, str], _Held] = {}

    def throttled(
        self, client: Client, limit: Limit, mode: str, reason: str, wait_ns: int, debt_ns: int, now_ns: int
    ) -> None:
        """A request passed or was refused, and its response contains this wait or is late by it; in a dry run, it would
        be so, or the request would be held.
        """
        if mode != PAUSE:  # what the client was notified of, or waited, and no more
            wait_ns = min(wait_ns, self.most_ns)
        self._count(client, limit, mode, reason, wait_ns, now_ns)
        span = _Span(now_ns, now_ns, now_ns + min(wait_ns, self.most_ns))
        self._log(client, limit, mode, reason, wait_ns, debt_ns, span)

    def held(self, client: Client, limit: Limit, debt_ns: int, size: int, topics: tuple[str, ...], now_ns: int) -> None:
        """A frame of `size` bytes is held for the first time. It is counted when the hold ends: see `released`.

        topics   those with records that the limit counts, if it does not count the request itself
        """
        wait_ns = debt_ns + limit.queued_ns(limit.expected_time_of(size))
        span = _Span(now_ns, now_ns, now_ns)
        self._log(client, limit, PAUSE, reason_of(limit), wait_ns, debt_ns, span, topics)

    def released(self, client: Client, limit: Limit, held_ns: int, now_ns: int) -> None:
        """A frame has passed that was held, first by this limit; `held_ns`: by all, and in all its parts."""
        self._count(client, limit, PAUSE, reason_of(limit), held_ns, now_ns)
        held = self._held.get((limit.entity, limit.name))
        if held is not None:
            held.add(client.peer, now_ns - held_ns, now_ns)

    def still_held(self, client: Client, limit: Limit, held_ns: int, wait_ns: int, until: str, now_ns: int) -> None:
        """A frame is held for longer than a line is suppressed. `until`: the time of day when that ends."""
        span = _Span(now_ns, now_ns - held_ns, now_ns, until)
        debt_ns = limit.expected_ns(limit.debt_ns(now_ns), now_ns)
        self._log(client, limit, PAUSE, reason_of(limit), wait_ns, debt_ns, span)

    def blocked(self, client: Client, waited_ns: Mapping[tuple[str, object], int], now_ns: int) -> None:
        """What a connection has waited for since the last call: bounds of the proxy are logged, so that the log has the
        same times as `explain`.
        """
        for reason, bound in BOUNDS.items():
            if bound in waited_ns:
                self._entities.throttle_reasons[reason] += 1
                span = _Span(now_ns, now_ns - waited_ns[bound], now_ns)
                of = _Throttle(*client.names, bound[0], str(bound[1]), None)
                self._log(client, of, PAUSE, reason, 0, 0, span)

    def connection_waited(self, client: Client, verdict: ConnectionVerdict, now_ns: int) -> None:
        """A new connection has waited so long for a limit on connections; in a dry run, it would have."""
        name, wait_ns = verdict.limit_name or "", verdict.wait_ns
        self._entities.throttle_reasons[DEBT] += 1
        self._entities.observe(name, client.user, client.client_id, PAUSE, wait_ns / NS_PER_SECOND)
        tallies = self._entities.throttle_tallies
        if tallies is not None and name and not self.is_dry_run:
            tally = tallies.of(client.user, client.client_id, name, verdict.entity, verdict.limit_value)
            tally.throttled_ns += wait_ns
        of = _Throttle(*client.names, name, str(verdict.entity), verdict.limit_value)
        self._log(client, of, PAUSE, DEBT, wait_ns, wait_ns, _Span(now_ns, now_ns - wait_ns, now_ns))

    def broker_throttled(self, client: Client, throttle_ms: int, now_ns: int) -> None:
        """A response of the broker contains a throttle time: the client is above a quota of the broker."""
        client.entity.times.broker_throttled_seconds += throttle_ms / 1000
        self._lines.event(
            _log.warning,
            "broker_throttles",
            (client.user, client.client_id, "broker"),
            now_ns,
            client_id=client.client_id,
            user=client.user,
            peer=client.peer,
            throttle_ms=throttle_ms,
            effect="the client waits because of the broker's quota, not because of this proxy",
            hint="kafka-configs.sh --describe --entity-type clients (or users) shows it",
        )

    def lock_at_risk(self, client: Client, limit: Limit, held_ns: int, lock_timeout_ms: int, now_ns: int) -> None:
        """A ShareFetch response was held for so long that its records may be delivered again (KIP-932)."""
        self._lines.event(
            _log.warning,
            "share_lock_at_risk",
            (str(limit.entity), limit.name, "lock"),
            now_ns,
            **_of(client, limit)._asdict(),
            held_ms=held_ns // NS_PER_MS,
            lock_timeout_ms=lock_timeout_ms,
            effect="records come too late and are delivered again",
            hint="raise the limit, raise group.share.record.lock.duration.ms of the brokers, or use fewer members",
        )

    def exceeded(self, client: Client, limit: Limit, size: int) -> None:
        """Data of `size` bytes found this limit in debt: it is held, or in a dry run it passes."""
        client.entity.exceed(limit.name, size)
        tally = self._tally_of(client, limit)
        if tally is not None and self.is_dry_run:
            tally.would_have_bytes += size
        elif tally is not None:
            tally.delayed_bytes += size

    def refused(self, client: Client, limit: Limit, size: int) -> None:
        """Records of `size` bytes were answered with an error because of this limit."""
        tally = self._tally_of(client, limit)
        if tally is not None:
            tally.refused_bytes += size

    # ---- inside

    def _count(self, client: Client, limit: Limit, mode: str, reason: str, wait_ns: int, now_ns: int) -> None:
        self._entities.throttle_reasons[reason] += 1
        self._entities.throttled(limit.name, client.user, client.client_id, mode, wait_ns / NS_PER_SECOND, now_ns)
        tally = self._tally_of(client, limit)
        if tally is not None and not self.is_dry_run:
            tally.throttled_ns += wait_ns

    def _tally_of(self, client: Client, limit: Limit) -> ThrottleTally | None:
        tallies = self._entities.throttle_tallies
        return None if tallies is None else tallies.of_limit(client.user, client.client_id, limit)

    def _log(
        self,
        client: Client,
        by: Limit | _Throttle,
        mode: str,
        reason: str,
        wait_ns: int,
        debt_ns: int,
        span: _Span,
        topics: Sequence[str] = (),
    ) -> None:
        now_ns = span.now_ns
        # What a line contains is found only if there is one: nearly all are suppressed.
        key: tuple[object, str] = (by.entity, by.name) if isinstance(by, Limit) else (by.entity, by.limit)
        held = self._held.get(key)
        if held is not None:
            held.add(client.peer, span.begin_ns, span.end_ns)
        if self._lines.admit(key, now_ns) is not None:
            if held is None and len(self._held) >= _MOST:
                del self._held[next(iter(self._held))]
            self._held[key] = _Held(now_ns, span.end_ns if held is None else held.until_ns)
            _log.warning(
                "would_throttle" if self.is_dry_run else "throttled",
                **(_of(client, by) if isinstance(by, Limit) else by)._asdict(),
                debt_seconds=round(debt_ns / NS_PER_SECOND, 3),
                throttle_ms=throttle_time_ms(wait_ns, self.most_ns),
                mode=mode,
                reason=reason,
                topics=",".join(topics) or None,
                until=span.until or None,
                **({} if held is None else held.fields(now_ns)),
            )


# ---- /throttles


class ThrottleStatus(NamedTuple):
    """One connection that a quota holds now: the client, the limit and its entity, and for how long.

    The fields are the keys in JSON, and the columns of the table; those that are None are left out. `limit_value`: the
    rate that the limit allows, in its unit per second; see `_Throttle`.
    """

    client_id: str
    user: str
    peer: str
    limit: str
    entity: str
    limit_value: int | float | None
    waited_seconds: float
    remaining_seconds: float
    mode: str
    reason: str = "debt"
    fleet: str | None = None
    fleet_members: int | None = None
    allowed_here: int | float | None = None


def throttle_status(
    identity: Identity, delay: Delay | None, held: tuple[Limit, int, int] | None, bound: str, now_ns: int
) -> ThrottleStatus | None:
    """Why and for how long a connection is throttled; None: it is not, and has no notice that is not over.

    delay   of its next response
    held    the limit that holds its next request or response, since when in ns, and its size in the queue
    bound   `MEMORY` or `IN_FLIGHT`, if it is not read because of that; "": it is read
    """
    client, notice = identity.client, identity.notice
    if delay is not None:
        limit = delay.limit
        return _status(_of(client, limit), DELAY, reason_of(limit), now_ns - delay.since_ns, delay.until_ns - now_ns)
    if held is not None:
        limit, since_ns, queued = held
        remaining_ns = limit.wait_ns(now_ns, queued)
        return _status(_of(client, limit), PAUSE, reason_of(limit), now_ns - since_ns, remaining_ns)
    if bound:
        return _status(_Throttle(*client.names, BOUNDS[bound][0], "proxy", 0), PAUSE, bound, 0, 0)
    if notice.limit is not None and notice.until_ns > now_ns:
        return _status(_of(client, notice.limit), NOTIFY, notice.reason, 0, notice.until_ns - now_ns)
    return None


def connection_status(client: Client, verdict: ConnectionVerdict, since_ns: int, now_ns: int) -> ThrottleStatus | None:
    """The same, for a new connection that waits since `since_ns`; None: it is about to be served."""
    if verdict.limit_name is None:
        return None
    waited_ns = now_ns - since_ns
    of = _Throttle(*client.names, verdict.limit_name, str(verdict.entity), verdict.limit_value)
    return _status(of, PAUSE, DEBT, waited_ns, max(0, verdict.wait_ns - waited_ns))


def _status(of: _Throttle, mode: str, reason: str, waited_ns: int, remaining_ns: int) -> ThrottleStatus:
    times = waited_ns / NS_PER_SECOND, remaining_ns / NS_PER_SECOND
    return ThrottleStatus(*of[:6], *times, mode, reason, of.fleet, of.fleet_members, of.allowed_here)
