"""The map between brokers and ports of the proxy.

Node N has the port ``FIRST + (N mod size)`` of ``--broker-ports``, the same after a restart and in every replica, or
the port of ``--broker-port N=PORT``. With ``--sni-host`` all nodes have one port, and each a host of its own, which
clients send as server name. Every response that names brokers updates their real addresses.

A node keeps its port until a response that lists all brokers has another node for that port, without the old one: then
the node has left. Not earlier, since brokers may list different sets for a moment, for instance after one joined.
Connections to the port then go to the new node. Its Metadata responses contain the leaders of all partitions. A host is
no other node's, so there a broker that invents nodes is bounded by `MAX_NODES`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from protocol.errors import ProtocolError
from proxy.config.addresses import Address, format_address
from proxy.config.config import ListeningOptions
from proxy.observability.logs import EventLog

MAX_NODES: Final = 20_000
"""Known nodes, twice those of one response. With more, all are forgotten: those that there are will be named again."""

_log = EventLog("proxy.brokers.nodes")


class BrokerPortConflict(ProtocolError):
    """Two nodes map to one port: one of them needs --broker-port."""

    reason = "broker_port_conflict"

    def __init__(self, port: int | str, node_id: int, other_id: int) -> None:
        super().__init__(
            f"nodes {other_id} and {node_id} both map to port {port}; give one of them its own port with "
            f"--broker-port {node_id}=PORT, or a larger --broker-ports range",
            0,
        )


BindAny = Callable[[], int]
"""Binds a listener to a port that the kernel chooses, and returns the port (``--broker-ports 0``); with ``--sni-host``
returns the port of all nodes."""

Place = int | str
"""Where connections to a node arrive: a port of the proxy, or with ``--sni-host`` a host."""


class Nodes:
    """The map between node ids, the proxy's ports and the brokers' real addresses."""

    def __init__(self, options: ListeningOptions, bind_any: BindAny) -> None:
        self._options = options
        self._ports = options.broker_ports
        self._exceptions = dict(options.node_ports)
        self._bind_any = bind_any
        self._real: dict[int, Address] = {}
        self._node_at: dict[Place, int] = {}
        self._chosen: dict[int, int] = {}

    def fixed_ports(self) -> list[int]:
        """All ports to bind at the start."""
        return sorted({*(self._ports or ()), *self._exceptions.values()})

    def port_of(self, node_id: int) -> int:
        """The proxy's port for a node; binds one where the kernel chooses ports."""
        if self._options.sni_host is not None:
            return int(self._options.sni_host.partition(":")[2] or self._bind_any())
        port = self._exceptions.get(node_id)
        if port is not None:
            return port
        if self._ports is not None:
            return self._ports[node_id % len(self._ports)]
        if node_id not in self._chosen:
            self._chosen[node_id] = self._bind_any()
        return self._chosen[node_id]

    def advertise(self, node_id: int, host: str, port: int) -> Address:
        """Remember the real address of a broker; returns the address that clients receive.

        Raises BrokerPortConflict if another node has that port of the proxy.
        """
        address, advertised = (host, port), (self._options.host_of(node_id), self.port_of(node_id))
        if self._real.get(node_id) == address:
            return advertised
        place = self._place_of(node_id)
        other_id = self._node_at.get(place)
        if other_id is not None and other_id != node_id:
            raise BrokerPortConflict(place, node_id, other_id)
        _log.info("broker_learned", node=node_id, address=format_address(address), proxy_port=advertised[1])
        if len(self._real) >= MAX_NODES:
            self._real.clear()
            self._node_at.clear()
        self._real[node_id] = address
        self._node_at[place] = node_id
        return advertised

    def advertise_all(self, brokers: Sequence[tuple[int, str, int]]) -> Iterator[Address | None]:
        """As `advertise`, for a list of all brokers (node id, host, port of each); other nodes of these ports left.

        Yields None for each broker that was checked, then the address of each, in order. A new broker takes 100 us.

        Raises BrokerPortConflict when two of them have one port of the proxy; nothing is remembered then.
        """
        node_at: dict[Place, int] = {}
        for node_id, _, _ in brokers:
            place = self._place_of(node_id)
            other_id = node_at.setdefault(place, node_id)
            if other_id != node_id:
                raise BrokerPortConflict(place, node_id, other_id)
            yield None
        for node_id, host, port in brokers:
            place = self._place_of(node_id)
            left_id = self._node_at.get(place)
            if left_id is not None and left_id != node_id:
                del self._node_at[place], self._real[left_id]
                _log.info("broker_left", node=left_id, proxy_port=place, port_now_of=node_id)
            yield self.advertise(node_id, host, port)

    def is_at(self, node_id: int, address: str) -> bool:
        """Whether this is the real address of a node, as far as is known."""
        known = self._real.get(node_id)
        return known is not None and format_address(known) == address

    def broker_at(self, place: Place) -> Address | None:
        """The real address for a port of the proxy, or a host in lower case; None while its node is unknown."""
        node_id = self._node_at.get(place)
        return None if node_id is None else self._real[node_id]

    def _place_of(self, node_id: int) -> Place:
        return self.port_of(node_id) if self._options.sni_host is None else self._options.host_of(node_id)
