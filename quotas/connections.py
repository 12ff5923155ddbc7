"""Limits on connections: `connections` and `connection_creation_rate`, of an address, a listener and the total.

A connection above `connections` is refused. One above a rate waits (KIP-612, PR 12034): it is recorded when it is
accepted, and its wait is the throttle time of the violation that includes it, so each new one waits longer than the one
before. One with a wait above the maximum is not recorded, so it does not lengthen the wait of others (Kafka undoes the
record of a connection above an address's rate).

When limits change, `review` computes new verdicts for waiting connections. No wait becomes longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from quotas.admission.limit import Limit
from quotas.entity import TOTAL, AnyEntity, Kind, Named
from quotas.limit_kinds import CONNECTION_CREATION_RATE, CONNECTIONS
from quotas.registry.registry import Registry


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


class WaitingConnection(NamedTuple):
    """A connection that waits for its rates: its address, the names of its listener, its verdict, and its arrival."""

    ip: str
    listener: tuple[str, ...]
    verdict: Verdict
    since_ns: int


class ConnectionQuotas:
    """Counts the connections of this process. Call `count_closed` once for each `count_opened`, also after a refusal.

    max_wait_ns   the longest wait of a connection for its rate
    """

    def __init__(self, registry: Registry, max_wait_ns: int) -> None:
        self._registry = registry
        self._max_wait_ns = max_wait_ns
        self._open: dict[Named, int] = {}

    def open_now(self, entity: Named) -> int:
        """Open connections of this address, listener or the total."""
        return self._open.get(entity, 0)

    def count_opened(self, ip: str, listener: tuple[str, ...], now_ns: int) -> Verdict:
        """Decide about a connection that was accepted from `ip` at a listener with these names; its buckets have the
        first name.
        """
        refused: Verdict | None = None
        for kind, names in _places(ip, listener):
            owner = TOTAL if kind is Kind.TOTAL else Named(kind, names[0])
            self._open[owner] = count = self._open.get(owner, 0) + 1
            applies = self._registry.configured_value(CONNECTIONS, kind, *names)
            if applies is not None and count > applies.rate and refused is None:
                refused = Verdict(False, 0, CONNECTIONS, applies.entity, float(applies.rate))
        return refused or self.record_creation(ip, listener, now_ns)

    def record_creation(self, ip: str, listener: tuple[str, ...], now_ns: int) -> Verdict:
        """Record a new connection in its rates, and decide by these alone. `count_opened` calls it unless it refuses;
        a dry run calls it for a refused connection, which it serves.
        """
        return self._record(self._rates(ip, listener), self._max_wait_ns, now_ns)

    def review(self, waiting: Sequence[WaitingConnection], now_ns: int) -> list[Verdict]:
        """New verdicts of waiting connections under the present limits, in the order of their recording.

        An admitted connection keeps its place in each limit that it is recorded in: it waits for earlier connections
        only. A limit without a record of it records it now. Refused connections are decided again after all others. No
        wait becomes longer. O(waiting). With an algorithm whose waits do not depend on the amount
        (`Algorithm.wait_ns`), all admitted ones wait for its debt.
        """
        limits = [self._rates(each.ip, each.listener) for each in waiting]
        for each, own in zip(waiting, limits, strict=True):
            if each.verdict.admitted:
                for limit in own:
                    if limit not in each.verdict.recorded_in:
                        limit.algorithm.record(1, now_ns)
        later: Counter[Limit] = Counter()
        verdicts = [each.verdict for each in waiting]
        for nth in reversed(range(len(waiting))):
            if verdicts[nth].admitted:
                waits = [(limit.algorithm.wait_ns(-later[limit], now_ns), limit) for limit in limits[nth]]
                verdicts[nth] = _at_most(waiting[nth], _longest(waits, limits[nth]), now_ns)
                later.update(limits[nth])
        for nth, each in enumerate(waiting):
            if not each.verdict.admitted:
                left_ns = max(0, each.since_ns + each.verdict.wait_ns - now_ns)
                verdicts[nth] = _at_most(each, self._record(limits[nth], left_ns, now_ns), now_ns)
        return verdicts

    def count_closed(self, ip: str, listener: tuple[str, ...]) -> None:
        """A connection was closed."""
        for owner in (Named(Kind.IP, ip), Named(Kind.LISTENER, listener[0]), TOTAL):
            left = self._open[owner] - 1
            if left:
                self._open[owner] = left
            else:
                del self._open[owner]

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
    return (Kind.IP, (ip,)), (Kind.LISTENER, listener), (Kind.TOTAL, ("",))
