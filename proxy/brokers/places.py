"""Which broker has which port of ``--broker-ports``.

This is a pure function of the brokers, so each restart and each replica that knows the same brokers finds the same
ports.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final, NamedTuple

from proxy.config.config import ListeningOptions

MAX_NAMED: Final = 8
"""The most brokers that a message names."""


class Placement(NamedTuple):
    """The port of each node.

    moved    nodes at another port, with the node that has their own port
    hidden   nodes without a port, because no port of the range is left
    """

    ports: Mapping[int, int]
    moved: Mapping[int, int]
    hidden: Set[int]

    def conflicts(self) -> Iterator[str]:
        """What happened, in clauses for people; empty if each node has its own port."""
        for node, holder in sorted(self.moved.items())[:MAX_NAMED]:
            yield f"broker {node} is at port {self.ports[node]}, because broker {holder} has its own port"
        if len(self.moved) > MAX_NAMED:
            yield f"{len(self.moved) - MAX_NAMED} more brokers are not at their own ports"
        if self.hidden:
            names = ", ".join(map(str, sorted(self.hidden)[:MAX_NAMED]))
            more = f" and {len(self.hidden) - MAX_NAMED} more" if len(self.hidden) > MAX_NAMED else ""
            yield f"clients cannot see broker {names}{more}, because no port of --broker-ports is left"

    def __str__(self) -> str:
        """All conflicts in one sentence; "" if each node has its own port."""
        found = "; ".join(self.conflicts())
        return f"{found}: {self.remedy}" if found else ""

    @property
    def remedy(self) -> str:
        """What to set."""
        nodes = [*sorted(self.hidden), *sorted(self.moved)][:MAX_NAMED]
        return f"give {' '.join(f'--broker-port {node}=PORT' for node in nodes)}, or a larger --broker-ports range"


NOWHERE: Final = Placement({}, {}, frozenset())


def placed(options: ListeningOptions, nodes: Set[int], before: Mapping[int, int]) -> Placement:
    """Give each node a port of the range, or that of its --broker-port.

    If several nodes have one own port, the one with the lowest id has it; each of the others gets a free port, which
    depends on its id rather than on the other nodes. If there are fewer ports than nodes, a node that has a port
    (`before`) keeps it, and a node without one is hidden.
    """
    ports, given = options.broker_ports or range(0), options.node_ports
    others = sorted(nodes - given.keys()) if ports else []
    port_of = {node: given[node] for node in nodes & given.keys()}
    free = set(ports).difference(port_of.values())
    if len(others) > len(free):
        port_of |= {node: before[node] for node in others if before.get(node) in free}
    node_at = {port: node for node, port in port_of.items()}
    for node in others:
        if node not in port_of:
            node_at.setdefault(own_port(options, node), node)
    port_of = {node: port for port, node in node_at.items()}
    port_of |= _free_ports([node for node in others if node not in port_of], ports, node_at.keys())
    return Placement(port_of, _moved(options, port_of), nodes - port_of.keys())


def _moved(options: ListeningOptions, port_of: Mapping[int, int]) -> dict[int, int]:
    """The nodes that are not at their own ports, and the node at each of these ports."""
    node_at = {port: node for node, port in port_of.items()}
    return {node: node_at[own] for node in port_of if node_at[own := own_port(options, node)] != node}


def own_port(options: ListeningOptions, node: int) -> int:
    """The port of a node unless another node has it."""
    ports = options.broker_ports or range(0)
    return options.node_ports.get(node) or ports[node % len(ports)]


def _free_ports(nodes: Sequence[int], ports: range, taken: Set[int]) -> dict[int, int]:
    """The first free port from a starting point that differs among nodes that often collide: nodes with consecutive
    ids, and nodes that have the same own port.
    """
    size, found = len(ports), dict[int, int]()
    free = [at for at, port in enumerate(ports) if port not in taken]
    for node in nodes[: len(free)]:
        start = (node + node // size + size // 2) % size
        found[node] = ports[free.pop(bisect_left(free, start) % len(free))]
    return found
