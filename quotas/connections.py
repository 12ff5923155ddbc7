"""Who may connect: `connections` at a time and `connection_creation_rate`, of an address, a listener and the total.

A connection beyond `connections` is refused. One beyond a rate waits for as long as the rate asks (KIP-612, PR 12034):
it is recorded when it is accepted, and its wait is the violation's throttle time with it included, so each one of a
crowd waits a little longer than the one before. One that would have to wait too long is not recorded, as Kafka takes
back the record of a connection beyond an address's rate: it has no part in what the others wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quotas.entity import TOTAL, AnyEntity, Kind, Named
from quotas.limit_kinds import CONNECTION_CREATION_RATE, CONNECTIONS

if TYPE_CHECKING:
    from quotas.admission.limit import Limit
    from quotas.registry.registry import Registry


class Verdict(NamedTuple):
    """What becomes of a new connection.

    admitted     False: it is to be closed, after `wait_ns`
    wait_ns      nanoseconds for which it is not served
    limit_name   which limit asks for the longest wait, or refuses; None: none does
    entity       whose limit that is
    limit_value  connections per second, or connections
    """

    admitted: bool
    wait_ns: int = 0
    limit_name: str | None = None
    entity: AnyEntity | None = None
    limit_value: float = 0


WELCOME = Verdict(True)
"""The usual answer."""


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
        limits = [
            self._registry.place_limit(CONNECTION_CREATION_RATE, kind, *names) for kind, names in _places(ip, listener)
        ]
        longest_ns = 0
        worst: Limit | None = None
        for limit in limits:
            if limit is not None:
                wait_ns = limit.algorithm.record(1, now_ns)
                if wait_ns > longest_ns:
                    longest_ns, worst = wait_ns, limit
        if worst is None:
            return WELCOME
        if longest_ns <= self._max_wait_ns:
            return Verdict(True, longest_ns, worst.name, worst.entity, worst.rate)
        for limit in limits:
            if limit is not None:
                limit.algorithm.record(-1, now_ns)
        return Verdict(False, self._max_wait_ns, worst.name, worst.entity, worst.rate)

    def closed(self, ip: str, listener: tuple[str, ...]) -> None:
        """It is closed."""
        for owner in (Named(Kind.IP, ip), Named(Kind.LISTENER, listener[0]), TOTAL):
            left = self._open[owner] - 1
            if left:
                self._open[owner] = left
            else:
                del self._open[owner]


def _places(ip: str, listener: tuple[str, ...]) -> tuple[tuple[Kind, tuple[str, ...]], ...]:
    """Whose limits concern a connection: the kinds, and the names under which each may be configured."""
    return (Kind.IP, (ip,)), (Kind.LISTENER, listener), (Kind.TOTAL, ("",))
