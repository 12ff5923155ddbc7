"""200 clients ask for the Metadata of 100,000 partitions at once: what does a 1 KB producer feel, does the loop stall?

Two null brokers: the storm goes to node 0, the producer to node 1, so that they meet in the proxy alone. The storm's
clients and node 0 have a lower priority (nice 10), for they share what cores are left with the producer and node 1. The
same without a proxy says what the machine itself adds.
"""

import gc
import multiprocessing
import os
import re
import select
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from bench import frames
from bench.frames import Address
from bench.load import DepthOne, Load, connect, greet, receive_frame
from bench.null_broker import null_brokers
from bench.options import Options
from bench.peers import Peer, direct, proxy
from bench.processes import die_with_parent, end_child, pin, receive_word
from bench.report import Figure
from bench.shapes import Cycle, Produce
from bench.streams import CyclicStream

NAME = "metadata_storm"
LONGEST_SECONDS = 60
TARGET_RATIO = 3.0
TARGET_STALL_MS = 20.0
_LAG_BUCKET = re.compile(r'^kafka_quota_proxy_event_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Storm:
    """Each of `clients` requests the Metadata of `partitions` partitions `asks` times, all of them at once."""

    clients: int
    partitions: int
    asks: int

    @property
    def client_id(self) -> str:
        """The client id, which contains the number of partitions for the null broker."""
        return f"metadata-{self.partitions}"


@dataclass(frozen=True, slots=True)
class Result:
    """The producer `alone` and in the `storm`; how long that lasted; the loop's lag in it, at most (0: unknown)."""

    alone: Load
    storm: Load
    length_seconds: float
    largest_lag_seconds: float

    @property
    def p99_ratio(self) -> float:
        """How many times as long the producer's p99 is in the storm."""
        return self.storm.latency_microseconds(0.99) / self.alone.latency_microseconds(0.99)


def run(options: Options) -> list[Figure]:
    """Alone and in the storm, through the proxy and without. Raises PeerError, LoadError."""
    rounds, alone_seconds = options.rounds or (2 if options.quick else 5), 1.0 if options.quick else 3.0
    storm = Storm(clients=200, partitions=100_000, asks=2 if options.quick else 3)
    results: dict[str, list[Result]] = {"proxy": [], "direct": []}
    with null_brokers(2, core=options.cores.broker, partitions=storm.partitions, niceness=(10, 0)) as [first, _]:
        pin(options.cores.load)
        size = len(frames.metadata_answer({0: first, 1: first}, storm.partitions, frames.METADATA_VERSION))
        answers = storm.clients * storm.asks
        options.progress(
            f"{rounds} rounds: {answers} Metadata answers of {size / 1e6:.1f} MB to {storm.clients} clients"
        )
        with proxy(first, options.cores.peer) as through, direct(first, None) as without:
            for _ in range(rounds):
                for peer in (through, without):
                    results[peer.name].append(measure(peer, storm, options, alone_seconds=alone_seconds))
    return [figure for name, found in results.items() for figure in _figures(name, storm, found)]


def _figures(peer: str, storm: Storm, results: Sequence[Result]) -> Iterator[Figure]:
    scenario = f"1 KiB producer, {storm.clients} clients want {storm.partitions:,} partitions"

    def figure(metric: str, unit: str, values: Iterable[float], target: float | None = None) -> Figure:
        return Figure(NAME, scenario, metric, unit, peer, tuple(values), target=target if peer == "proxy" else None)

    yield figure("p50 alone", "µs", (each.alone.latency_microseconds(0.5) for each in results))
    yield figure("p50 in the storm", "µs", (each.storm.latency_microseconds(0.5) for each in results))
    yield figure("p99 alone", "µs", (each.alone.latency_microseconds(0.99) for each in results))
    yield figure("p99 in the storm", "µs", (each.storm.latency_microseconds(0.99) for each in results))
    yield figure("p99 in the storm", "times alone", (each.p99_ratio for each in results), TARGET_RATIO)
    yield figure("longest request in the storm", "ms", (max(each.storm.latencies_ns) / 1e6 for each in results))
    yield figure("requests in the storm", "", (float(each.storm.requests) for each in results))
    yield figure("length of the storm", "s", (each.length_seconds for each in results))
    if peer == "proxy":
        # The longest of all rounds, not their median: what the loop never does, it does in no round.
        stall_ms = max(each.largest_lag_seconds for each in results) * 1000
        yield figure("longest lag of the loop that it saw, at most", "ms", (stall_ms,), TARGET_STALL_MS)


def measure(peer: Peer, storm: Storm, options: Options, *, alone_seconds: float) -> Result:
    """One round. The producer talks to node 1, wherever Metadata says that is: the proxy's port for it, or itself."""
    with connect(peer.address) as sock:
        producer_address = greet(sock, "storm-producer")[1]
    with (
        _storm_process(peer.address, storm, options.cores.load) as signal,
        DepthOne(producer_address, Produce(1024).build()) as producer,
    ):
        receive_word(signal, LONGEST_SECONDS)
        producer.warm_up(0.3)
        alone = producer.run_for(alone_seconds)
        lag_before = _lag_counts_of(peer)
        started = time.monotonic()
        signal.send("go")
        in_storm = producer.run_until(signal.poll, longest_seconds=LONGEST_SECONDS)
        receive_word(signal, LONGEST_SECONDS)
        length = time.monotonic() - started
        return Result(alone, in_storm, length, largest_lag(lag_before, _lag_counts_of(peer)))


def _lag_counts_of(peer: Peer) -> dict[float, float]:
    return {} if peer.metrics_url is None else lag_counts(peer.metrics())


def lag_counts(metrics: str) -> dict[float, float]:
    """The cumulative counts of the loop's lag by upper bound in seconds, out of the text of /metrics."""
    return {float(bound): float(count) for bound, count in _LAG_BUCKET.findall(metrics)}


def largest_lag(before: Mapping[float, float], after: Mapping[float, float]) -> float:
    """The upper bound of the highest bucket that gained an observation, in seconds; 0 when none did."""
    below, largest = 0.0, 0.0
    for bound in sorted(after):
        gained = after[bound] - before.get(bound, 0.0)
        if gained > below:
            largest = bound
        below = gained
    return largest


@contextmanager
def _storm_process(address: Address, storm: Storm, core: int | None) -> Iterator[Connection]:
    """A process with all the clients' connections: says "ready", waits for "go", says "done" when all is answered."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    with ours:
        with theirs:
            process = spawn.Process(target=_run_storm, args=(address, storm, core, theirs), daemon=True)
            process.start()
        try:
            yield ours
        finally:
            end_child(process)


def _run_storm(address: Address, storm: Storm, core: int | None, signal: Connection) -> None:
    die_with_parent()
    pin(core)
    os.nice(10)
    gc.disable()
    request = frames.metadata_request(storm.client_id)
    with select.epoll() as epoll:
        streams: dict[int, CyclicStream] = {}
        requests, answers = Cycle([request]), Cycle([bytes(_answer_size(address, request))])
        for _ in range(storm.clients):
            sock = connect(address)
            sock.setblocking(False)
            streams[sock.fileno()] = CyclicStream(sock, epoll, answers, requests)
            epoll.register(sock.fileno(), select.EPOLLIN)
        signal.send("ready")
        signal.recv()
        for stream in streams.values():
            stream.send_frames(1)
        answered = 0
        while answered < storm.clients * storm.asks:
            for fd, _ in epoll.poll():
                stream = streams[fd]
                if count := stream.receive():
                    answered += count
                    if stream.frames < storm.asks:
                        stream.send_frames(1)
        signal.send("done")


def _answer_size(address: Address, request: bytes) -> int:
    """Size of one answer as it arrives: addresses in it may be shorter or longer behind a proxy."""
    with connect(address) as sock:
        sock.sendall(request)
        return len(receive_frame(sock))
