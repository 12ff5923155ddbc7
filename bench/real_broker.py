"""A real broker with a tap in front of it, and one client at a time that wants more than it may have."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from confluent_kafka import Producer

from bench import flooding_clients, greedy_consumers
from bench.load import LoadError
from bench.processes import LOOPBACK, free_ports, running, wait_until_listening
from deploy.local.cluster import KafkaCluster
from deploy.local.frames import DataApi, DataFrame
from deploy.local.settings import Address
from deploy.local.tap import Tap

NODE = 1
RECORD_BYTES = 10_000
#: Of what consumers read: the answer of a broker is made of whole batches.
BATCH_BYTES = 40_000
_START_SECONDS = 60.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker. `address`: the advertised one, that of the tap."""

    tap: Tap
    cluster: KafkaCluster
    address: Address

    def log(self) -> str:
        """All that the broker has logged."""
        return self.cluster.log_path(NODE).read_text(errors="replace")


@dataclass(frozen=True, slots=True)
class Flood:
    """What the tap counted of one client, and what the client printed.

    frames: its Produce requests or its Fetch responses, in order.
    """

    frames: tuple[DataFrame, ...]
    output: bytes


@contextmanager
def tapped_broker() -> Iterator[Broker]:
    """Raises PlaygroundError."""
    with Tap() as tap, KafkaCluster(1, advertised=tap.advertise) as cluster:
        yield Broker(tap, cluster, cluster.advertised_addresses[NODE])


def flood(
    tap: Tap,
    library: str,
    bootstrap: Address,
    client_id: str,
    topic: str,
    seconds: float,
    *,
    records_per_second: int = 0,
) -> Flood:
    """Let a client send for `seconds`, starting with its first data request. Raises LoadError."""
    argv = flooding_clients.command(library, host_port(bootstrap), client_id, topic, records_per_second)
    return _run(tap, "produce", argv, client_id, seconds)


def read(tap: Tap, library: str, bootstrap: Address, client_id: str, topic: str, seconds: float) -> Flood:
    """Let a client, the only member of the group `client_id`, read for `seconds`. Raises LoadError."""
    argv = greedy_consumers.command(library, host_port(bootstrap), client_id, topic)
    return _run(tap, "fetch", argv, client_id, seconds)


def _run(tap: Tap, api: DataApi, argv: list[str], client_id: str, seconds: float) -> Flood:
    before = tap.unreadable
    with running(argv, None) as (process, output):
        deadline = time.monotonic() + _START_SECONDS
        ends_ns = None
        while ends_ns is None or time.monotonic_ns() < ends_ns:
            if process.poll() is not None or (ends_ns is None and time.monotonic() > deadline):
                end = printed(output)[-2000:].decode(errors="replace")
                raise LoadError(f"{client_id} moved nothing, or ended with {process.returncode}:\n{end}")
            time.sleep(_POLL_SECONDS)
            if ends_ns is None and (first := tap.frames(api, client_id)[:1]):
                ends_ns = first[0].time_ns + int(seconds * 1e9)
        lines = printed(output)
    frames = tap.frames(api, client_id)
    if tap.unreadable > before:
        raise LoadError(f"{tap.unreadable - before} connections were not Kafka's: nothing of them was measured")
    return Flood(tuple(frames), lines)


@dataclass(frozen=True, slots=True)
class Proxied:
    """A proxy. `servers`: what clients set; `log`: what it has printed, for `printed`."""

    servers: str
    metrics_url: str
    log: IO[bytes]


@contextmanager
def proxied(servers: str, *flags: str) -> Iterator[Proxied]:
    """A proxy in front of all brokers of a cluster. Raises PeerError."""
    ports = free_ports(2)
    listen, metrics = (f"{LOOPBACK}:{port}" for port in ports)
    argv = [sys.executable, "-m", "proxy", "run", "--bootstrap-servers", servers, "--listen", listen]
    argv += ["--broker-ports", "0", "--metrics-listen", metrics, *flags]
    with running(argv, None) as (process, log):
        wait_until_listening(process, log, ports[0], timeout_seconds=60)
        yield Proxied(listen, f"http://{metrics}/metrics", log)


def fill(bootstrap: str, topic: str, size: int, partitions: int = 1) -> None:
    """Write records of `RECORD_BYTES` in batches of `BATCH_BYTES`, `size` bytes in all. Raises LoadError."""
    failed: list[str] = []
    producer = Producer({"bootstrap.servers": bootstrap, "batch.size": BATCH_BYTES, "linger.ms": 50, "acks": 1})
    for number in range(size // RECORD_BYTES):
        producer.produce(
            topic,
            bytes(RECORD_BYTES),
            partition=number % partitions,
            on_delivery=lambda error, _: failed.append(str(error)) if error else None,
        )
        producer.poll(0)
    if producer.flush(_START_SECONDS) or failed:
        raise LoadError(f"topic {topic} was not filled: {failed[:3]}")


def printed(output: IO[bytes]) -> bytes:
    """The output of a running child so far. A `read` would move the position at which the child writes."""
    return os.pread(output.fileno(), os.fstat(output.fileno()).st_size, 0)


def host_port(address: Address) -> str:
    """HOST:PORT."""
    return f"{address[0]}:{address[1]}"
