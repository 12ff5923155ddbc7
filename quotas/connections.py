"""Who may connect: `connections` at a time and `connection_creation_rate`, of an address, a listener and the total.

A connection above `connections` is refused. One above a rate waits as long as the rate requires (KIP-612, PR 12034):
it is recorded when it is accepted, and its wait is the violation's throttle time with it included, so each one of a
crowd waits a little longer than the one before. One that would have to wait too long is not recorded, as Kafka takes
back the record of a connection above an address's rate: it does not lengthen the wait of others.

When limits change, those that wait look again (`review`), and never wait longer for it than they were told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from quotas.admission.limit import Limit
from quotas.entity import TOTAL, AnyEntity, Kind, Named
from quotas.limit_kinds import CONNECTION_CREATION_RATE, CONNECTIONS
from quotas.registry.registry import Registry

_KINDS: Final = (Kind.IP, Kind.LISTENER, Kind.TOTAL)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a new connection.

    admitted     False: it is to be closed, after `wait_ns`
    wait_ns      nanoseconds for which it is not served, from when it came
    limit_name   which limit asks for the longest wait, or refuses; None: none does
    entity       whose limit that is
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
    """A connection that waits for its rates: where it came from and to, by which verdict, and when it came."""

    ip: str
    listener: tuple[str, ...]
    verdict: Verdict
    since_ns: int


class ConnectionQuotas:
    """Counts the connections of this process. Each `opened` is followed by one `closed`, also where it was refused.

    max_wait_ns   the longest that a connection waits for its rate
    """

    def __init__(self, registry: Registry, max_wait_ns: int) -> None:
        self._registry = registry
        self._max_wait_ns = max_wait_ns
        self._open: dict[Named, int] = {}

    def open_now(self, entity: Named) -> int:
        """Connections of this address, listener or the total that are open."""
        return self._open.get(entity, 0)

    def opened(self, ip: str, listener: tuple[str, ...], now_ns: int) -> Verdict:
        """A connection from `ip` was accepted at a listener with these names, the first of which owns its buckets."""
        refused: Verdict | None = None
        for kind, names in _places(ip, listener):
            owner = TOTAL if kind is Kind.TOTAL else Named(kind, names[0])
            self._open[owner] = count = self._open.get(owner, 0) + 1
            applies = self._registry.configured_value(CONNECTIONS, kind, *names)
            if applies is not None and count > applies.rate and refused is None:
                refused = Verdict(False, 0, CONNECTIONS, applies.entity, float(applies.rate))
        return refused or self.created(ip, listener, now_ns)

    def created(self, ip: str, listener: tuple[str, ...], now_ns: int) -> Verdict:
        """What the rates alone say of a new connection, which is recorded. `opened` asks them, but not for a connection
        that it refuses: where that is served all the same, as in a dry run, it counts for its rates too.
        """
        return self._record(self._rates(ip, listener), self._max_wait_ns, now_ns)

    def concerned_by(self, changed: Iterable[AnyEntity]) -> bool:
        """Whether a change of these entities may affect waiting connections."""
        return any(isinstance(entity, Named) and entity.kind in _KINDS for entity in changed)

    def review(self, held: Sequence[WaitingConnection], now_ns: int) -> list[Verdict]:
        """What the limits of now say of those that wait, in the order in which they were recorded.

        Who was admitted keeps its place in each limit that still is the one it was recorded in: it waits for those
        before it, and not for those after it. In a limit that is new to it, it is recorded now. Who was to be turned
        away is decided anew, after all others. No wait becomes longer than before. Costs O(held).
        An algorithm that knows no wait for an amount (`Algorithm.wait_ns`) lets all admitted ones wait for its debt.
        """
        limits = [self._rates(each.ip, each.listener) for each in held]
        for each, own in zip(held, limits, strict=True):
            if each.verdict.admitted:
                for limit in own:
                    if limit not in each.verdict.recorded_in:
                        limit.algorithm.record(1, now_ns)
        behind: Counter[Limit] = Counter()
        verdicts = [each.verdict for each in held]
        for nth in reversed(range(len(held))):
            if verdicts[nth].admitted:
                asked = [(limit.algorithm.wait_ns(-behind[limit], now_ns), limit) for limit in limits[nth]]
                verdicts[nth] = _at_most(held[nth], _longest(asked, limits[nth]), now_ns)
                behind.update(limits[nth])
        for nth, each in enumerate(held):
            if not each.verdict.admitted:
                left_ns = max(0, each.since_ns + each.verdict.wait_ns - now_ns)
                verdicts[nth] = _at_most(each, self._record(limits[nth], left_ns, now_ns), now_ns)
        return verdicts

    def closed(self, ip: str, listener: tuple[str, ...]) -> None:
        """It is closed."""
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
        """Record a connection in all of them; take it back where it would wait for longer than `max_wait_ns`."""
        verdict = _longest([(limit.algorithm.record(1, now_ns), limit) for limit in limits], limits)
        if verdict.wait_ns <= max_wait_ns:
            return verdict
        for limit in limits:
            limit.algorithm.refund(1, now_ns, now_ns)
        return replace(verdict, admitted=False, wait_ns=max_wait_ns, recorded_in=())


def _longest(asked: Iterable[tuple[int, Limit]], recorded_in: tuple[Limit, ...]) -> Verdict:
    """The verdict of the limit that asks for the longest wait, the first of them where several do."""
    wait_ns, worst = max(asked, key=lambda each: each[0], default=(0, None))
    if worst is None or not wait_ns:
        return Verdict(True, recorded_in=recorded_in)
    return Verdict(True, wait_ns, worst.name, worst.entity, worst.rate, recorded_in)


def _at_most(held: WaitingConnection, verdict: Verdict, now_ns: int) -> Verdict:
    """A verdict of `now_ns`, from when the connection came, and with no longer a wait than it was told."""
    waited_ns = now_ns - held.since_ns
    return replace(verdict, wait_ns=min(held.verdict.wait_ns, waited_ns + verdict.wait_ns))


def _places(ip: str, listener: tuple[str, ...]) -> tuple[tuple[Kind, tuple[str, ...]], ...]:
    """Whose limits concern a connection: the kinds, and the names under which each may be configured."""
    return (Kind.IP, (ip,)), (Kind.LISTENER, listener), (Kind.TOTAL, ("",))
