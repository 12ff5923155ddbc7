"""What model clients have in common: how they find brokers, and when they come back after a failure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from simulation import kafka
from simulation.kafka import NONE
from simulation.kernel import MS, SECOND, Event, Kernel, nothing
from simulation.link import Link
from simulation.network import Address, Network

RETRY_SECONDS: Final = 0.1
METADATA_SECONDS: Final = 60.0
FIRST_REST_NS: Final = 50 * MS
MOST_REST_NS: Final = SECOND
"""Java's reconnect.backoff.ms and reconnect.backoff.max.ms."""
GROUP, TRANSACTION = 0, 1
Values = tuple[Any, ...]
Place = tuple[str, int]
"""A topic, and the number of a partition."""


class Client:
    """Finds the brokers through its bootstrap addresses, and keeps one connection to each that it uses."""

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        host: str,
        client_id: str,
        bootstrap: Sequence[Address],
        topics: Sequence[str],
        *,
        obeys: bool = True,
        metadata_version: int = 7,
    ) -> None:
        self.kernel, self.network, self.host, self.client_id = kernel, network, host, client_id
        self.bootstrap, self.topics, self.obeys = bootstrap, topics, obeys
        self.nodes: dict[int, Address] = {}
        self.leaders: dict[Place, int] = {}
        self.links: dict[int, Link] = {}
        self.is_stopped = False
        self.on_link: Callable[[Link], object] = nothing
        self._metadata_version = metadata_version
        self._asking: Link | None = None
        self._next = kernel.random.randrange(len(bootstrap))
        self._ticks: list[Event] = []
        #: By address: how often connections failed, and until when it is left alone.
        self._rests: dict[Address, tuple[int, int]] = {}
        self._coordinator: int | None = None
        self.refresh()
        self._tick(METADATA_SECONDS, self.refresh)

    def _tick(self, seconds: float, call: Callable[[], object]) -> None:
        """Call it now and again, until the client stops."""
        self._ticks.append(self.kernel.every(seconds, call))
        call()

    # ---- the cluster

    def refresh(self) -> None:
        """Ask for the leaders, on a connection that is open or a new one."""
        if self.is_stopped or self._asking is not None:
            return
        self._asking = next((each for each in self.links.values() if each.is_free), None)
        if self._asking is None:
            self._next += 1
            address = self.bootstrap[self._next % len(self.bootstrap)]
            self._asking = self._link_to(address, self._ask)
            if self._asking is None:
                self.kernel.at(self._rests[address][1], self.refresh)
        else:
            self._ask()

    def retry(self) -> None:
        """Find out where the leaders are now, and go on with them."""
        self.kernel.after(RETRY_SECONDS, self.refresh)

    def _link_to(self, address: Address, on_free: Callable[[], object]) -> Link | None:
        """A new connection; None: too soon after one that failed."""
        if self._rests.get(address, (0, 0))[1] > self.kernel.now_ns:
            return None

        def freed() -> None:
            if link.is_closed:
                self._rest(link)
            on_free()

        link = Link(self.kernel, self.network, self.host, address, self.client_id, freed, obeys=self.obeys)
        self.on_link(link)
        return link

    def _rest(self, link: Link) -> None:
        failures = 0 if link.answered_ns else self._rests.get(link.address, (0, 0))[0] + 1
        rest_ns = min(MOST_REST_NS, FIRST_REST_NS << min(failures, 5))
        until_ns = self.kernel.now_ns + int(rest_ns * self.kernel.random.uniform(0.8, 1.2))
        self._rests[link.address] = failures, until_ns

    def _ask(self) -> None:
        link = self._asking
        if link is None or (link.in_flight and link not in self.links.values()):
            return
        if link.is_closed:
            self._asking = None
            self.retry()
        elif link.is_connected:
            topics: list[Values] = [(name, {}) for name in self.topics]
            link.request(kafka.METADATA, self._metadata_version, (topics, False, False, False), self._learn)

    def _learn(self, values: Values | None) -> None:
        link, self._asking = self._asking, None
        if values is None:
            self.retry()
            return
        _, brokers, _, _, topics, _ = values
        self.nodes = {node: (host, port) for node, host, port, _ in brokers}
        self.leaders = {
            (name, number): leader
            for _, name, _, partitions, _ in topics
            for error, number, leader, *_ in partitions
            if error == NONE
        }
        if link is not None and link not in self.links.values():
            link.on_free = nothing
            link.close("learned")
        for node, old in list(self.links.items()):
            if self.nodes.get(node) != old.address:
                old.close("moved")
        self.work()

    def link(self, node: int) -> Link | None:
        """The connection to a node, if it can take a request now; it is opened if there is none."""
        found = self.links.get(node)
        if found is None and node in self.nodes:
            found = self._link_to(self.nodes[node], lambda: self._on_free(node))
            if found is not None:
                self.links[node] = found
        return found if found is not None and found.is_free else None

    def _on_free(self, node: int) -> None:
        found = self.links.get(node)
        if found is not None and found.is_closed:
            del self.links[node]
            if found is self._asking:
                self._asking = None
            self.kernel.at(self._rests[found.address][1], self.refresh)
        elif not self.is_stopped:
            self.work()

    def any_link(self) -> Link | None:
        return next((each for each in map(self.link, sorted(self.nodes)) if each is not None), None)

    def coordinator(self, key: str, kind: int) -> Link | None:
        """The connection to the coordinator of a group or a transaction, if it is known and can take a request now."""
        if self._coordinator is not None:
            return self.link(self._coordinator)
        link = self.any_link()
        if link is not None and not any(each.api == kafka.FIND_COORDINATOR for each in link.in_flight):
            link.request(kafka.FIND_COORDINATOR, 1, (key, kind), self._found)
        return None

    def _found(self, values: Values | None) -> None:
        if values is not None:
            _, error, _, node, host, port = values
            if error == NONE:
                self._coordinator = node
                self.nodes.setdefault(node, (host, port))

    def lost_coordinator(self) -> None:
        self._coordinator = None
        self.retry()

    def by_leader(self, places: Iterable[Place]) -> Iterator[tuple[int, list[Place]]]:
        """Those of these partitions that have a leader, by its node."""
        found: dict[int, list[Place]] = {}
        for place in places:
            if place in self.leaders:
                found.setdefault(self.leaders[place], []).append(place)
        return iter(found.items())

    def work(self) -> None:
        """Send what can be sent."""

    def stop(self) -> None:
        self.is_stopped = True
        for tick in self._ticks:
            tick.cancel()
        for link in [*self.links.values(), *([self._asking] if self._asking else [])]:
            link.on_free = nothing
            link.close("stopped")
        self.links.clear()
        self._asking = None
