"""A real broker with a tap in front of it, and one flooding client at a time."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from bench.flooding_clients import command
from bench.load import LoadError
from bench.processes import running
from deploy.local.cluster import KafkaCluster
from deploy.local.frames import DataFrame
from deploy.local.settings import Address
from deploy.local.tap import Tap

NODE = 1
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
    """What the tap counted of one flooding client, and what the client printed.

    frames: its Produce requests, in order.
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
    """Let a client send for `seconds` from its first data frame on. Raises LoadError."""
    before = tap.unreadable
    with running(command(library, host_port(bootstrap), client_id, topic, records_per_second), None) as (
        process,
        output,
    ):
        deadline = time.monotonic() + _START_SECONDS
        ends_ns = None
        while ends_ns is None or time.monotonic_ns() < ends_ns:
            if process.poll() is not None or (ends_ns is None and time.monotonic() > deadline):
                end = printed(output)[-2000:].decode(errors="replace")
                raise LoadError(f"{library} sent nothing, or ended with {process.returncode}:\n{end}")
            time.sleep(_POLL_SECONDS)
            if ends_ns is None and (first := tap.frames("produce", client_id)[:1]):
                ends_ns = first[0].time_ns + int(seconds * 1e9)
        lines = printed(output)
    frames = tap.frames("produce", client_id)
    if tap.unreadable > before:
        raise LoadError(f"{tap.unreadable - before} connections were not Kafka's: nothing of them was measured")
    return Flood(tuple(frames), lines)


def printed(output: IO[bytes]) -> bytes:
    """The output of a running child so far. A `read` would move the position at which the child writes."""
    return os.pread(output.fileno(), os.fstat(output.fileno()).st_size, 0)


def host_port(address: Address) -> str:
    """HOST:PORT."""
    return f"{address[0]}:{address[1]}"
