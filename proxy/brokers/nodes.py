"""The map between brokers and ports of the proxy.

Node N has the port ``FIRST + (N mod size)`` of ``--broker-ports``, the same after a restart and in every replica, or
the port of ``--broker-port N=PORT``. Every response that names brokers updates their real addresses.

A node keeps its port until a response that lists all brokers has another node for that port, without the old one: then
the node has left. Not earlier, since brokers may list different sets for a moment, for instance after one joined.
Connections to the port then go to the new node. Its Metadata responses contain the leaders of all partitions.
"""

from collections.abc import Callable, Iterator, Sequence

from protocol.errors import ProtocolError
from proxy.config.addresses import Address, format_address
from proxy.config.config import ListeningOptions
from proxy.observability.logs import EventLog

_log = EventLog("proxy.brokers.nodes")


class BrokerPortConflict(ProtocolError):
    """Two nodes map to one port: one of them needs --broker-port."""

    reason = "broker_port_conflict"

    def __init__(self, port: int, node_id: int, other_id: int) -> None:
        super().__init__(
            f"nodes {other_id} and {node_id} both map to port {port}; give one of them its own port with "
            f"--broker-port {node_id}=PORT, or a larger --broker-ports range",
            0,
        )


BindAny = Callable[[], int]
"""Binds a listener to a port that the kernel chooses, and returns the port (``--broker-ports 0``)."""


class Nodes:
    """The map between node ids, the proxy's ports and the brokers' real addresses."""

    def __init__(self, options: ListeningOptions, bind_any: BindAny) -> None:
        self._host = options.advertised_host
        self._ports = options.broker_ports
        self._exceptions = dict(options.node_ports)
        self._bind_any = bind_any
        self._real: dict[int, Address] = {}
        self._node_at_port: dict[int, int] = {}
        self._chosen: dict[int, int] = {}

    def fixed_ports(self) -> list[int]:
        """All ports to bind at the start."""
        return sorted({*(self._ports or ()), *self._exceptions.values()})

    def port_of(self, node_id: int) -> int:
        """The proxy's port for a node; binds one where the kernel chooses ports."""
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
        address = (host, port)
        if self._real.get(node_id) == address:
            return self._host, self.port_of(node_id)
        proxy_port = self.port_of(node_id)
        other_id = self._node_at_port.get(proxy_port)
        if other_id is not None and other_id != node_id:
            raise BrokerPortConflict(proxy_port, node_id, other_id)
        _log.info("broker_learned", node=node_id, address=format_address(address), proxy_port=proxy_port)
        self._real[node_id] = address
        self._node_at_port[proxy_port] = node_id
        return self._host, proxy_port

    def advertise_all(self, brokers: Sequence[tuple[int, str, int]]) -> Iterator[Address | None]:
        """As `advertise`, for a list of all brokers (node id, host, port of each); other nodes of these ports left.

        Yields None for each broker that was checked, then the address of each, in order. A new broker takes 100 us.

        Raises BrokerPortConflict when two of them have one port of the proxy; nothing is remembered then.
        """
        node_at_port: dict[int, int] = {}
        for node_id, _, _ in brokers:
            proxy_port = self.port_of(node_id)
            other_id = node_at_port.setdefault(proxy_port, node_id)
            if other_id != node_id:
                raise BrokerPortConflict(proxy_port, node_id, other_id)
            yield None
        for node_id, host, port in brokers:
            proxy_port = self.port_of(node_id)
            left_id = self._node_at_port.get(proxy_port)
            if left_id is not None and left_id != node_id:
                del self._node_at_port[proxy_port], self._real[left_id]
                _log.info("broker_left", node=left_id, proxy_port=proxy_port, port_now_of=node_id)
            yield self.advertise(node_id, host, port)

    def is_at(self, node_id: int, address: str) -> bool:
        """Whether this is the real address of a node, as far as is known."""
        known = self._real.get(node_id)
        return known is not None and format_address(known) == address

    def broker_at(self, port: int) -> Address | None:
        """The real address for a port of the proxy; None while its node is unknown."""
        node_id = self._node_at_port.get(port)
        return None if node_id is None else self._real[node_id]
