"""A real Kafka cluster of one or three KRaft brokers on this machine."""

import base64
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.local import probe
from deploy.local.artifacts import BROKERS, class_path
from deploy.local.errors import BrokerFailed, PlaygroundError
from deploy.local.node import BrokerNode, PortReservation
from deploy.local.security import PROTOCOLS, Security
from deploy.local.settings import Address, NodeAddressing, server_properties

_POLL_SECONDS = 0.05
_WATCH_SECONDS = 0.5


class KafkaCluster:
    """Starts on entry, and is gone with all its processes and files on exit, or when this process dies.

    brokers: 1 or 3. version: a key of artifacts.BROKERS. overrides: settings for every broker, last in its properties.
    advertised: told a node id and the port it really listens on, says which address clients shall be told, for a tap or
    a proxy in between; by default the real one. Replication between brokers never goes there.
    disk_bytes: size of the disk of each broker, in memory (tmpfs; needs root to mount); 0: they share this machine's.
    security: adds a listener for each of SSL, SASL_SSL and SASL_PLAINTEXT (`secure_addresses`).

    Node N (1, 2, 3) listens on 127.0.0.(N+1): a test recognises a leaked broker address by that.
    Everything raises PlaygroundError: DownloadFailed, JavaMissing, BrokerFailed.
    """

    def __init__(
        self,
        brokers: int = 1,
        version: str = "4.3.1",
        overrides: Mapping[str, str] | None = None,
        advertised: Callable[[int, int], Address] | None = None,
        start_timeout_seconds: float = 120.0,
        security: Security | None = None,
        disk_bytes: int = 0,
    ) -> None:
        if brokers not in (1, 3):
            raise PlaygroundError(f"a cluster has 1 or 3 brokers, not {brokers}")
        if version not in BROKERS:
            raise PlaygroundError(f"there is no Kafka {version} here; there are {', '.join(BROKERS)}")
        self.version = version
        self._size = brokers
        self._overrides = dict(overrides or {})
        self._advertised = advertised
        self._start_timeout_seconds = start_timeout_seconds
        self._security = security
        self._disk_bytes = disk_bytes
        self._reservations: list[PortReservation] = []
        self._directory: Path | None = None
        self._nodes: dict[int, BrokerNode] = {}

    @property
    def node_addresses(self) -> dict[int, Address]:
        """Node id → where its client listener really is."""
        return {node: broker.addressing.client for node, broker in self._nodes.items()}

    @property
    def advertised_addresses(self) -> dict[int, Address]:
        """Node id → advertised address; the same as node_addresses unless `advertised` was given."""
        return {node: broker.addressing.advertised for node, broker in self._nodes.items()}

    @property
    def bootstrap_servers(self) -> str:
        """The advertised addresses as Kafka clients take them: `host:port,host:port`."""
        return ",".join(f"{host}:{port}" for host, port in self.advertised_addresses.values())

    def secure_addresses(self, protocol: str) -> str:
        """`host:port,...` of the listeners of a security protocol: SSL, SASL_SSL or SASL_PLAINTEXT."""
        return ",".join(
            f"{host}:{port}" for host, port in (node.addressing.more[protocol] for node in self._nodes.values())
        )

    def data_path(self, node: int) -> Path:
        """The directory with all data of a broker."""
        return self._nodes[node].directory / "data"

    def is_running(self, node: int) -> bool:
        """Whether the process of a broker is there."""
        return self._nodes[node].running

    def log_path(self, node: int) -> Path:
        """The file with everything that broker has printed, over all its starts."""
        return self._nodes[node].log_path

    def start(self) -> Self:
        """Fetches what is missing, formats and starts all brokers, and returns when each knows all the others.

        Does nothing when it is started already.
        """
        if self._directory is not None:
            return self
        jars = class_path(BROKERS[self.version])
        try:
            self._start_brokers(jars)
        except BaseException:  # also Ctrl-C: nothing may be left behind
            self.close()
            raise
        return self

    def stop_broker(self, node: int, *, graceful: bool = True) -> None:
        """Ends one broker, keeps its data and ports. graceful: it may hand its partitions over first; else SIGKILL."""
        self._nodes[node].stop(graceful=graceful, timeout_seconds=30.0)

    def start_broker(self, node: int) -> None:
        """Starts a stopped broker on its old ports and data. Returns when it serves and all running ones know it."""
        self._nodes[node].start()
        self._wait_until_ready()

    def wait(self) -> None:
        """Returns never while all brokers run. Raises BrokerFailed when one of them ends on its own."""
        while True:
            for broker in self._nodes.values():
                if not broker.running:
                    raise BrokerFailed(f"broker {broker.node} ended; {broker.log_tail()}")
            time.sleep(_WATCH_SECONDS)

    def close(self) -> None:
        """Ends all brokers and removes their data. May be called again."""
        for broker in self._nodes.values():
            broker.stop(graceful=False, timeout_seconds=0)  # the data goes away: there is nothing to hand over
            if self._disk_bytes:
                subprocess.run(["umount", "--lazy", broker.directory / "data"], check=False, capture_output=True)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        for reservation in self._reservations:
            reservation.close()
        self._reservations.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _start_brokers(self, jars: str) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="kafka-playground-"))
        addressing = {node: self._address(node) for node in range(1, self._size + 1)}
        for node, own in addressing.items():
            self._nodes[node] = BrokerNode(node, self._directory / f"node-{node}", jars, own)
        cluster_id = new_cluster_id()

        overrides = self._overrides
        if self._security is not None:
            overrides = self._security.server_properties(self._directory) | overrides
        scram = () if self._security is None else self._security.scram_credentials()

        def format_storage(broker: BrokerNode) -> None:
            data = broker.directory / "data"
            if self._disk_bytes:
                data.mkdir(parents=True)
                size = f"size={self._disk_bytes}"
                subprocess.run(["mount", "-t", "tmpfs", "-o", size, "playground", data], check=True)
            broker.format(cluster_id, server_properties(broker.node, addressing, data, overrides), scram)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(format_storage, self._nodes.values()))
        for broker in self._nodes.values():
            broker.start()
        self._wait_until_ready()

    def _address(self, node: int) -> NodeAddressing:
        host = f"127.0.0.{node + 1}"
        client, internal, controller = (self._reserve(host) for _ in range(3))
        advertised = self._advertised(node, client[1]) if self._advertised else client
        more = {} if self._security is None else {protocol: self._reserve(host) for protocol in PROTOCOLS}
        return NodeAddressing(client=client, advertised=advertised, internal=internal, controller=controller, more=more)

    def _reserve(self, host: str) -> Address:
        reservation = PortReservation(host)
        self._reservations.append(reservation)
        return reservation.address

    def _wait_until_ready(self) -> None:
        """Every running broker answers, and its metadata names every running broker."""
        deadline = time.monotonic() + self._start_timeout_seconds
        running = {node: broker for node, broker in self._nodes.items() if broker.running}
        for broker in running.values():
            broker.wait_until_ready(deadline)
        for broker in running.values():
            self._wait_until_known(broker, set(running), deadline)

    def _wait_until_known(self, broker: BrokerNode, expected: set[int], deadline: float) -> None:
        known: dict[int, Address] = {}
        while time.monotonic() < deadline:
            try:
                known = probe.known_brokers(*broker.addressing.client, timeout_seconds=5.0)
            except OSError:
                known = {}
            if expected <= known.keys():
                return
            time.sleep(_POLL_SECONDS)
        raise BrokerFailed(
            f"broker {broker.node} knows the brokers {sorted(known)} instead of {sorted(expected)}; {broker.log_tail()}"
        )


def new_cluster_id() -> str:
    """A random id as Kafka writes it: 22 characters, and like its own ids never one that looks like an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        if not text.startswith("-"):
            return text
