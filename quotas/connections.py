"""Limits on connections: `connections` and `connection_creation_rate`, of an address, a listener and the total.

An address has the limit of its own entry; or else that of the network with the longest prefix, whose addresses share
it; or else that of the default entry.

A connection above `connections` is refused, as in Kafka above those of an address (max.connections.per.ip; 0 blocks an
address). It is not recorded in rates.

One above a rate waits (KIP-612, PR 12034): its wait is the throttle time of the violation that includes it, so each new
one waits longer than the one before. All rates are asked first: if one of the waits is above the maximum, the
connection is refused and recorded nowhere, so it does not lengthen the wait of others. A rate that earns less than one
connection in the maximum wait refuses only while it is in debt, otherwise it would refuse all.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from quotas.admission.limit import Limit
from quotas.entity import AnyEntity, EntityKind, Named
from quotas.limit_kinds import CONNECTION_CREATION_RATE, CONNECTIONS
from quotas.registry.networks import Networks, is_network
from quotas.registry.registry import Registry
from quotas.time_units import NS_PER_SECOND

_TOTAL_NAMES: Final = ("",)


@dataclass(frozen=True, slots=True)
class ConnectionVerdict:
    """The decision on a new connection.

    admitted     False: close it, after `wait_ns`
    wait_ns      nanoseconds from its arrival until it is served or closed
    limit_name   the limit that refuses or has the longest wait; None without any
    entity       the scope of that limit
    limit_value  connections per second, or connections
    """

    admitted: bool
    wait_ns: int = 0
    limit_name: str | None = None
    entity: AnyEntity | None = None
    limit_value: int | float = 0


class ConnectionQuotas:
    """Decides about new connections (`over`, then `record`), and counts them: `close` is called once for each `open`.

    A listener is given by its names.

    max_wait_ns   the longest wait of a connection
    """

    def __init__(self, registry: Registry, max_wait_ns: int) -> None:
        self._registry = registry
        self._max_wait_ns = max_wait_ns
        #: Of each address, listener and the total, under each of their names; of networks, those that are configured.
        self._open: dict[AnyEntity, int] = {}
        self._networks: Networks | None = None

    def over(self, ip: str, listener: tuple[str, ...]) -> ConnectionVerdict | None:
        """The verdict on a new connection above `connections`; None: there is room."""
        for kind, names in self._places(ip, listener):
            applies = self._registry.configured_value(CONNECTIONS, kind, *names)
            if applies is not None and self._open.get(applies.entity, 0) >= applies.rate:
                return ConnectionVerdict(False, 0, CONNECTIONS, applies.entity, float(applies.rate))
        return None

    def record(self, ip: str, listener: tuple[str, ...], now_ns: int) -> ConnectionVerdict:
        """The verdict of the rates on a new connection. Unless it is refused, all of them record it."""
        limits = [
            limit
            for kind, names in self._places(ip, listener)
            if (limit := self._registry.place_limit(CONNECTION_CREATION_RATE, kind, now_ns, *names)) is not None
        ]
        asked = [each for each in limits if self._may_refuse(each, now_ns)]
        wait_ns, worst = _longest((each.algorithm.debt_ns(now_ns, 1), each) for each in asked)
        admitted = wait_ns <= self._max_wait_ns
        if admitted:
            wait_ns, worst = _longest((each.algorithm.record(1, now_ns), each) for each in limits)
        if worst is None or not wait_ns:
            return ConnectionVerdict(True)
        return ConnectionVerdict(admitted, min(wait_ns, self._max_wait_ns), worst.name, worst.entity, worst.rate)

    def open(self, ip: str, listener: tuple[str, ...], *, admitted: bool) -> None:
        """Count a new connection: of its address and networks, and if it is admitted of its listener and the total."""
        self._count(1, ip, listener, admitted)

    def close(self, ip: str, listener: tuple[str, ...], *, admitted: bool) -> None:
        """A connection was closed; `admitted` as in `open`."""
        self._count(-1, ip, listener, admitted)

    def _may_refuse(self, limit: Limit, now_ns: int) -> bool:
        return limit.rate * self._max_wait_ns >= NS_PER_SECOND or limit.algorithm.debt_ns(now_ns) > 0

    def _count(self, change: int, ip: str, listener: tuple[str, ...], admitted: bool) -> None:
        places = self._places(ip, listener)
        for kind, names in places if admitted else places[:1]:
            for name in names:
                self._add(Named(kind, name), change)

    def _add(self, owner: Named, change: int) -> None:
        count = self._open.get(owner, 0) + change
        if count:
            self._open[owner] = count
        else:
            del self._open[owner]

    def _places(self, ip: str, listener: tuple[str, ...]) -> tuple[tuple[EntityKind, tuple[str, ...]], ...]:
        """The scopes of a connection: each kind, with the names under which it may be configured."""
        networks = self._registry.networks
        if networks is not self._networks:
            self._networks = networks
            self._count_again(networks)
        return (EntityKind.IP, networks.names_of(ip)), (EntityKind.LISTENER, listener), (EntityKind.TOTAL, _TOTAL_NAMES)

    def _count_again(self, networks: Networks) -> None:
        """The quotas have changed: networks have the connections of their addresses. O(addresses)."""
        owners = [owner for owner in self._open if isinstance(owner, Named) and owner.kind is EntityKind.IP]
        counts = {str(owner.name): self._open[owner] for owner in owners}
        for name in filter(is_network, counts):
            del self._open[Named(EntityKind.IP, name)]
        for ip, count in counts.items():
            for name in networks.names_of(ip)[1:]:
                self._add(Named(EntityKind.IP, name), count)


def _longest(waits: Iterable[tuple[int, Limit]]) -> tuple[int, Limit | None]:
    """The longest wait, and the first limit with it; (0, None) without limits."""
    return max(waits, key=lambda each: each[0], default=(0, None))
