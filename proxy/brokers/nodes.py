"""The map between brokers and ports of the proxy.

Node N has the port ``FIRST + (N mod size)`` of ``--broker-ports``, the same after a restart and in every replica, or
the port of ``--broker-port N=PORT``. If another node has that port, it gets a free one or is hidden from clients
(`proxy.brokers.places`). With ``--sni-host`` all nodes have one port, and each has a host of its own, which clients
send as the server name. Every response that names brokers updates their real addresses.

A node keeps its own port until a response that lists all brokers lacks it and also has a new node for that port, or
more nodes than there are ports. Only then has the node left: brokers may list different sets for a moment, for instance
after one joined. Connections to the port then go to the new node, whose Metadata responses contain the leaders of all
partitions. With hosts no two nodes collide, so `MAX_NODES` bounds the nodes that a broker can invent.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from typing import Final

from protocol.addresses import HIDDEN_ADDRESS
from proxy.brokers.places import NOWHERE, own_port, placed
from proxy.config.addresses import Address, format_address
from proxy.config.config import ListeningOptions
from proxy.config.errors import BindError
from proxy.observability.logs import EventLog

MAX_NODES: Final = 20_000
"""Known nodes, twice as many as one response may have. Above it all are forgotten: responses will name them again."""

_log = EventLog("proxy.brokers.nodes")

BindAny = Callable[[], int]
"""Binds a listener to a port that the kernel chooses, and returns the port (``--broker-ports 0``); with ``--sni-host``
returns the port of all nodes. Raises BindError."""

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
        #: The placement of nodes in a range of ports; without a range it stays empty.
        self.placement = NOWHERE
        self._reported = ""
        self._fails_to_bind = False

    def fixed_ports(self) -> list[int]:
        """All ports to bind at the start."""
        return sorted({*(self._ports or ()), *self._exceptions.values()})

    def port_of(self, node_id: int) -> int | None:
        """The proxy's port for a node, if it has one; binds one where the kernel chooses ports."""
        if self._options.sni_host is not None:
            return int(self._options.sni_host.partition(":")[2] or self._bind_any())
        if self._ports is not None:
            return self.placement.ports.get(node_id)
        port = self._exceptions.get(node_id) or self._chosen.get(node_id)
        if port is None:
            try:
                port = self._chosen[node_id] = self._bind_any()
                self._fails_to_bind = False
            except BindError as error:  # no descriptor is left
                if not self._fails_to_bind:
                    _log.warning("broker_hidden", node=node_id, detail=str(error))
                self._fails_to_bind = True
        return port

    def advertise(self, node_id: int, host: str, port: int) -> Address:
        """Remember the real address of a broker; returns the address that clients receive, or `HIDDEN_ADDRESS`."""
        if self._is_new(node_id) and not self.placement.hidden:  # otherwise no port is left
            self._place({*self.placement.ports, node_id})
        return self._advertise(node_id, host, port)

    def _advertise(self, node_id: int, host: str, port: int) -> Address:
        own = self.port_of(node_id)
        if own is None:
            return HIDDEN_ADDRESS
        address, advertised = (host, port), (self._options.host_of(node_id), own)
        if self._real.get(node_id) == address:
            return advertised
        _log.info("broker_learned", node=node_id, address=format_address(address), proxy_port=own)
        if len(self._real) >= MAX_NODES:
            self._real.clear()
            self._node_at.clear()
        self._real[node_id] = address
        self._node_at[self._place_of(node_id, own)] = node_id
        return advertised

    def advertise_all(self, brokers: Sequence[tuple[int, str, int]]) -> Iterator[Address | None]:
        """Like `advertise`, for a list of all brokers (node id, host, port of each). If entries have the same id, the
        first counts, as it does in clients; the others are hidden.

        Yields None for each broker that was checked, then the address of each, in order. A new broker takes 100 us.
        """
        listed, repeated, has_new = set[int](), set[int](), False
        for index, (node_id, _, _) in enumerate(brokers):
            if node_id in listed:
                repeated.add(index)
            listed.add(node_id)
            has_new = has_new or self._is_new(node_id)
            yield None
        if has_new or not listed >= self.placement.moved.keys() | self.placement.hidden:
            self._place(listed)
        for index, broker in enumerate(brokers):
            yield HIDDEN_ADDRESS if index in repeated else self._advertise(*broker)

    def is_at(self, node_id: int, address: str) -> bool:
        """Whether this is the real address of a node, as far as the proxy knows."""
        known = self._real.get(node_id)
        return known is not None and format_address(known) == address

    def broker_at(self, place: Place) -> Address | None:
        """The real address for a port of the proxy, or a host in lower case; None while its node is unknown."""
        node_id = self._node_at.get(place)
        return None if node_id is None else self._real[node_id]

    def _is_new(self, node_id: int) -> bool:
        placement = self.placement
        return bool(self._ports) and node_id not in placement.ports and node_id not in placement.hidden

    def _place_of(self, node_id: int, port: int) -> Place:
        return port if self._options.sni_host is None else self._options.host_of(node_id)

    def _place(self, listed: Set[int]) -> None:
        """Find ports for the nodes of a list that has new nodes, or lacks nodes that are not at their own port."""
        before, options = self.placement, self._options
        taken = {own_port(options, node) for node in listed if self._is_new(node)}
        kept = before.ports.keys() - before.moved.keys()
        nodes = listed | {node for node in kept if before.ports[node] not in taken}
        after = placed(options, nodes, before.ports)
        if after.hidden:
            after = placed(options, listed, before.ports)
        self.placement = after
        self._node_at = {port: node for node, port in after.ports.items() if node in self._real}
        node_at = {port: node for node, port in after.ports.items()}
        for node in before.ports.keys() - after.ports.keys():
            self._real.pop(node, None)
            if node not in listed:
                port = before.ports[node]
                _log.info("broker_left", node=node, proxy_port=port, port_now_of=node_at.get(port))
        detail = "; ".join(after.conflicts())
        if detail and detail != self._reported:
            self._reported = detail
            _log.warning("broker_port_conflict", detail=detail, hint=after.remedy)
