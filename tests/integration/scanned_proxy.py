"""The proxy as a client sees it, with a relay in between that reads along.

Clients talk to 127.0.0.9, where a relay stands in front of each port of the proxy; the proxy names that address in what
it rewrites. So every byte that a client receives passes the relay.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from demo.address_scan import ScanningRelay
from demo.proxy_process import reserve_port
from deploy.local.cluster import KafkaCluster
from deploy.local.settings import Address
from deploy.local.tap import Tap
from tests.integration.proxy_process import ProxyProcess, eventually

CLIENT_SIDE = "127.0.0.9"
PROXY_SIDE = "127.0.0.1"
BROKER_HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")


def relayed_by(tap: Tap) -> Callable[[Address, Address], object]:
    """For `RelayedProxy`: the relay is this tap."""
    return lambda listen, target: tap.relay(target, listen)


class RelayedProxy:
    """`cluster` through the proxy and a relay. flags: more of the command line's.

    relay_port: told where clients connect and where the proxy listens, passes connections on.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        *flags: str,
        relay_port: Callable[[Address, Address], object],
        event_loop: str = "uvloop",
    ) -> None:
        self.cluster = cluster
        self._relay_port = relay_port
        nodes = cluster.advertised_addresses
        # Both sides listen on the same numbers, so these cannot be left to whoever comes first.
        self._reserved = [reserve_port(PROXY_SIDE, CLIENT_SIDE) for _ in range(1 + len(nodes))]
        self._ports = [port for port, _ in self._reserved]
        self.node_ports = dict(zip(nodes, self._ports[1:], strict=True))
        """Node id → its port, on both sides."""
        self.proxy = ProxyProcess(
            cluster.bootstrap_servers,
            *("--listen", f"{PROXY_SIDE}:{self._ports[0]}", "--advertised-host", CLIENT_SIDE),
            *(part for node, port in self.node_ports.items() for part in ("--broker-port", f"{node}={port}")),
            *flags,
            event_loop=event_loop,
        )
        self.bootstrap_servers = f"{CLIENT_SIDE}:{self._ports[0]}"
        """What clients set."""

    @property
    def nodes(self) -> int:
        """How many brokers there are."""
        return len(self.cluster.node_addresses)

    def create_topic(self, name: str, partitions: int = 3) -> str:
        """Creates a topic through the proxy, one replica on each broker, and returns its name.

        Waits until each partition's leader knows that it is one: a broker that does not drops what comes with acks=0.
        """
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        admin.create_topics([NewTopic(name, partitions, self.nodes)])[name].result(30)
        eventually(lambda: self.latest_offsets(name, partitions), 30, f"{name} has leaders")
        return name

    def latest_offsets(self, topic: str, partitions: int = 3) -> list[int]:
        """The next offset of each partition; empty while one of them has no leader that serves it."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        asked = {TopicPartition(topic, each): OffsetSpec.latest() for each in range(partitions)}
        try:
            return [answer.result(15).offset for answer in admin.list_offsets(asked, request_timeout=10).values()]
        except KafkaException:
            return []

    def __enter__(self) -> Self:
        for port in self._ports:
            self._relay_port((CLIENT_SIDE, port), (PROXY_SIDE, port))
        try:
            self.proxy.start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.proxy.__exit__(kind, error, traceback)
        finally:
            self._close()

    def _close(self) -> None:
        for _, sockets in self._reserved:
            for each in sockets:
                each.close()


class ScannedProxy(RelayedProxy):
    """The relay searches every byte towards clients for the brokers' own addresses (127.0.0.2 to .4).

    Record bytes are searched too, since no test's record holds an address.
    """

    def __init__(self, cluster: KafkaCluster, *flags: str, event_loop: str = "uvloop") -> None:
        self.relay = ScanningRelay(BROKER_HOSTS)
        super().__init__(cluster, *flags, relay_port=self.relay.listen, event_loop=event_loop)

    def _close(self) -> None:
        self.relay.close()
        super()._close()
