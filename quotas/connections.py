"""Limits on connections: `connections` and `connection_creation_rate`, of an address, a listener and the total.

A connection above the `connections` of its address is refused, as in Kafka (max.connections.per.ip; 0 blocks an
address). Above those of its listener or the total it waits for a slot, as in Kafka's acceptor (max.connections), in the
order of arrival. In Kafka that wait has no end; here it is bounded, as is the number of such connections of a listener.

One above a rate waits (KIP-612, PR 12034): it is recorded when it has its slots, and its wait is the throttle time of
the violation that includes it, so each new one waits longer than the one before. One with a wait above the maximum is
not recorded, so it does not lengthen the wait of others (Kafka undoes the record of a connection above an address's
rate).

When limits change, `review` computes new verdicts for waiting connections. No wait becomes longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from quotas.admission.limit import Limit
from quotas.entity import TOTAL, AnyEntity, Kind, Named
from quotas.limit_kinds import CONNECTION_CREATION_RATE, CONNECTIONS
from quotas.registry.override import Applies
from quotas.registry.registry import Registry

_TOTAL_NAMES: Final = ("",)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on a new connection.

    admitted     False: close it, after `wait_ns`
    wait_ns      nanoseconds from its arrival until it is served
    limit_name   the limit that refuses or has the longest wait; None without any
    entity       the scope of that limit
    limit_value  connections per second, or connections
    recorded_in  the limits on rates that count it
    """

    admitted: bool
    wait_ns: int = 0
    limit_name: str | None = None
    entity: AnyEntity | None = None
    limit_value: int | float = 0
    recorded_in: tuple[Limit, ...] = field(default=(), compare=False, repr=False)


class WaitingConnection:
    """A connection that is not served yet: its address, the names of its listener, its verdict, and its arrival.

    It has slots of its listener and the total if its verdict admits it.
    """

    __slots__ = ("ip", "listener", "since_ns", "verdict")

    def __init__(self, ip: str, listener: tuple[str, ...], verdict: Verdict, since_ns: int) -> None:
        self.ip = ip
        self.listener = listener
        self.verdict = verdict
        self.since_ns = since_ns


class ConnectionQuotas:
    """Counts the connections of this process: `close` is called once for each `open` and each `wait`.

    A listener is given by its names; its buckets and counts have the first one.

    max_wait_ns   the longest wait of a connection, for a slot and for its rates together
    max_waiting   connections of one listener that wait for a slot
    """

    def __init__(self, registry: Registry, max_wait_ns: int, max_waiting: int) -> None:
        self._registry = registry
        self._max_wait_ns = max_wait_ns
        self._max_waiting = max_waiting
        #: Those that are not admitted yet count for their address only.
        self._open: dict[Named, int] = {}
        #: Those that wait for a slot, by first name of the listener, in the order of arrival.
        self._queues: dict[str, dict[WaitingConnection, None]] = {}

    def open_now(self, entity: Named) -> int:
        """Open connections of this address, listener or the total."""
        return self._open.get(entity, 0)

    def over(self, ip: str, listener: tuple[str, ...]) -> Verdict | None:
        """The verdict on a new connection without room below `connections`: it is closed after its wait unless a slot
        becomes free. None: there is room.
        """
        for kind, names in _places(ip, listener):
            applies = self._full(kind, names)
            if applies is not None:
                may_wait = kind is not Kind.IP and applies.rate > 0
                may_wait &= len(self._queues.get(listener[0], ())) < self._max_waiting
                wait_ns = self._max_wait_ns if may_wait else 0
                return Verdict(False, wait_ns, CONNECTIONS, applies.entity, float(applies.rate))
        return None

    def refused(self, ip: str, listener: tuple[str, ...], now_ns: int) -> Verdict | None:
        """The verdict, without a wait, on a new connection that its rates refuse; None: they admit it. Nothing is
        recorded.
        """
        waits = [(limit.algorithm.wait_ns(1, now_ns), limit) for limit in self._rates(ip, listener)]
        verdict = _longest(waits, ())
        return None if verdict.wait_ns <= self._max_wait_ns else replace(verdict, admitted=False, wait_ns=0)

    def open(self, ip: str, listener: tuple[str, ...], now_ns: int) -> Verdict:
        """Record a new connection in its rates. Returns their verdict."""
        verdict = self._record(self._rates(ip, listener), self._max_wait_ns, now_ns)
        self._count(1, Named(Kind.IP, ip))
        if verdict.admitted:
            self.take_slots(listener)
        return verdict

    def wait(self, waiting: WaitingConnection) -> None:
        """A new connection waits for a slot: see `over`."""
        self._count(1, Named(Kind.IP, waiting.ip))
        self._queues.setdefault(waiting.listener[0], {})[waiting] = None

    def take_slots(self, listener: tuple[str, ...]) -> None:
        """A connection is admitted; in a dry run also if its verdict refuses it."""
        self._count(1, Named(Kind.LISTENER, listener[0]), TOTAL)

    def grant(self, now_ns: int) -> WaitingConnection | None:
        """Take the connection that has waited longest for a slot that is free now, and decide about it by its rates.

        Its verdict is counted from its arrival. It is refused, without the slot, if its rates exceed the rest of its
        longest wait: call this again until it returns None. O(listeners with waiting connections).
        """
        first: WaitingConnection | None = None
        for queue in self._queues.values():
            waiting = next(iter(queue))
            if (first is None or waiting.since_ns < first.since_ns) and self._has_slot(waiting.listener):
                first = waiting
        if first is not None:
            self._leave(first)
            waited_ns = now_ns - first.since_ns
            left_ns = max(0, self._max_wait_ns - waited_ns)
            verdict = self._record(self._rates(first.ip, first.listener), left_ns, now_ns)
            first.verdict = replace(verdict, wait_ns=waited_ns + verdict.wait_ns)
            if verdict.admitted:
                self.take_slots(first.listener)
        return first

    def close(self, ip: str, listener: tuple[str, ...], waiting: WaitingConnection | None = None) -> None:
        """A connection was closed. `waiting`: it had not been served."""
        self._count(-1, Named(Kind.IP, ip))
        if waiting is None or waiting.verdict.admitted:
            self._count(-1, Named(Kind.LISTENER, listener[0]), TOTAL)
        elif self._is_queued(waiting):
            self._leave(waiting)

    def let_in(self, waiting: WaitingConnection) -> None:
        """Admit a waiting connection without a further wait, whatever the limits are: they are not enforced now."""
        if self._is_queued(waiting):
            self._leave(waiting)
        if not waiting.verdict.admitted:
            self.take_slots(waiting.listener)
        waiting.verdict = Verdict(True)

    def review(self, waiting: Sequence[WaitingConnection], now_ns: int) -> list[Verdict]:
        """New verdicts of waiting connections under the present limits, in the order of their recording.

        An admitted connection keeps its place in each limit that it is recorded in: it waits for earlier connections
        only. A limit without a record of it records it now. Refused connections are decided again after all others, if
        a slot is free; those that wait for a slot are not. No wait becomes longer. O(waiting). With an algorithm whose
        waits do not depend on the amount (`Algorithm.wait_ns`), all admitted ones wait for its debt.
        """
        limits = [self._rates(each.ip, each.listener) for each in waiting]
        verdicts = _review_admitted(waiting, limits, now_ns)
        for nth, each in enumerate(waiting):
            if not each.verdict.admitted and not self._is_queued(each) and self._has_slot(each.listener):
                left_ns = max(0, each.since_ns + each.verdict.wait_ns - now_ns)
                verdicts[nth] = _at_most(each, self._record(limits[nth], left_ns, now_ns), now_ns)
                if verdicts[nth].admitted:
                    self.take_slots(each.listener)
        return verdicts

    def _count(self, change: int, *owners: Named) -> None:
        for owner in owners:
            count = self._open.get(owner, 0) + change
            if count:
                self._open[owner] = count
            else:
                del self._open[owner]

    def _full(self, kind: Kind, names: tuple[str, ...]) -> Applies | None:
        """The `connections` of this scope, if they are used up."""
        applies = self._registry.configured_value(CONNECTIONS, kind, *names)
        if applies is None or self._open.get(Named(kind, names[0]), 0) < applies.rate:
            return None
        return applies

    def _has_slot(self, listener: tuple[str, ...]) -> bool:
        return self._full(Kind.LISTENER, listener) is None and self._full(Kind.TOTAL, _TOTAL_NAMES) is None

    def _is_queued(self, waiting: WaitingConnection) -> bool:
        return waiting in self._queues.get(waiting.listener[0], ())

    def _leave(self, waiting: WaitingConnection) -> None:
        """It waits for no slot any more."""
        name = waiting.listener[0]
        del self._queues[name][waiting]
        if not self._queues[name]:
            del self._queues[name]

    def _rates(self, ip: str, listener: tuple[str, ...]) -> tuple[Limit, ...]:
        found = [
            self._registry.place_limit(CONNECTION_CREATION_RATE, kind, *names) for kind, names in _places(ip, listener)
        ]
        return tuple([limit for limit in found if limit is not None])

    def _record(self, limits: tuple[Limit, ...], max_wait_ns: int, now_ns: int) -> Verdict:
        """Record a connection in all of them; undo it if its wait is above `max_wait_ns`."""
        verdict = _longest([(limit.algorithm.record(1, now_ns), limit) for limit in limits], limits)
        if verdict.wait_ns <= max_wait_ns:
            return verdict
        for limit in limits:
            limit.algorithm.refund(1, now_ns, now_ns)
        return replace(verdict, admitted=False, wait_ns=max_wait_ns, recorded_in=())


def _review_admitted(
    waiting: Sequence[WaitingConnection], limits: Sequence[tuple[Limit, ...]], now_ns: int
) -> list[Verdict]:
    """New verdicts of those that are admitted; the others keep theirs. `limits`: the rates of each."""
    for each, own in zip(waiting, limits, strict=True):
        if each.verdict.admitted:
            for limit in set(own).difference(each.verdict.recorded_in):
                limit.algorithm.record(1, now_ns)
    later: Counter[Limit] = Counter()
    verdicts = [each.verdict for each in waiting]
    for nth in reversed(range(len(waiting))):
        if verdicts[nth].admitted:
            waits = [(limit.algorithm.wait_ns(-later[limit], now_ns), limit) for limit in limits[nth]]
            verdicts[nth] = _at_most(waiting[nth], _longest(waits, limits[nth]), now_ns)
            later.update(limits[nth])
    return verdicts


def _longest(waits: Iterable[tuple[int, Limit]], recorded_in: tuple[Limit, ...]) -> Verdict:
    """The verdict of the first limit with the longest wait."""
    wait_ns, worst = max(waits, key=lambda each: each[0], default=(0, None))
    if worst is None or not wait_ns:
        return Verdict(True, recorded_in=recorded_in)
    return Verdict(True, wait_ns, worst.name, worst.entity, worst.rate, recorded_in)


def _at_most(waiting: WaitingConnection, verdict: Verdict, now_ns: int) -> Verdict:
    """A verdict of `now_ns`, with its wait counted from the arrival and no longer than before."""
    waited_ns = now_ns - waiting.since_ns
    return replace(verdict, wait_ns=min(waiting.verdict.wait_ns, waited_ns + verdict.wait_ns))


def _places(ip: str, listener: tuple[str, ...]) -> tuple[tuple[Kind, tuple[str, ...]], ...]:
    """The scopes of a connection: each kind, with the names under which it may be configured."""
    return (Kind.IP, (ip,)), (Kind.LISTENER, listener), (Kind.TOTAL, _TOTAL_NAMES)
