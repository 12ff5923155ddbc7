"""The proxy, with a client quota on that is not reached, against HAProxy in TCP mode and against no peer at all.

All peers run side by side from start to end; each scenario goes through them round by round, so that whatever else the
machine does falls on all alike. A figure is the median over the rounds. CPU is the peer process's own.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench.frames import Shape, fetch_shape, produce_shape
from bench.load import Load, check_answers, run_depth_one, run_pipelined
from bench.null_broker import null_brokers
from bench.options import Options
from bench.peers import STARTERS, Peer
from bench.processes import pin
from bench.report import Figure, compare

NAME = "against_haproxy"
SUBJECT, OTHER = "proxy", "haproxy"
KIB, MIB = 1024, 1024 * 1024

PER_GIGABYTE = ("CPU", "s/GB")
PER_REQUEST = ("CPU", "µs/request")
P50 = ("p50", "µs")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One load. `depth` requests are in flight on each of `connections`; depth and connections of 1 measure latency.

    `cpu` names the metric; `target` is the largest wanted ratio of it, `p50_target` that of the median latency.
    """

    name: str
    shape: Callable[[], Shape]
    connections: int
    depth: int
    cpu: tuple[str, str]
    target: float | None = None
    p50_target: float | None = None

    @property
    def is_latency(self) -> bool:
        return self.connections == self.depth == 1


SCENARIOS = (
    Scenario("produce 1 MiB, depth 5, 4 connections", lambda: produce_shape(MIB), 4, 5, PER_GIGABYTE, target=0.7),
    Scenario("produce 16 KiB, depth 5, 4 connections", lambda: produce_shape(16 * KIB), 4, 5, PER_GIGABYTE, target=0.9),
    Scenario("produce 1 KiB, depth 50, 4 connections", lambda: produce_shape(KIB), 4, 50, PER_REQUEST, target=1.4),
    Scenario(
        "produce 1 KiB, depth 50, 4 connections, a send each",
        lambda: produce_shape(KIB, one_by_one=True),
        4,
        50,
        PER_REQUEST,
        target=1.4,
    ),
    Scenario("produce 1 KiB, depth 2, 200 connections", lambda: produce_shape(KIB), 200, 2, PER_REQUEST, target=1.4),
    Scenario(
        "produce 1 KiB, depth 1, 1 connection",
        lambda: produce_shape(KIB),
        1,
        1,
        PER_REQUEST,
        target=1.4,
        p50_target=1.15,
    ),
    Scenario("fetch 1 MiB, 1 partition", lambda: fetch_shape(MIB, 1), 4, 1, PER_GIGABYTE),
    Scenario("fetch 1 MiB, 50 partitions", lambda: fetch_shape(MIB, 50), 4, 1, PER_GIGABYTE),
    Scenario("fetch 1 MiB, 500 partitions", lambda: fetch_shape(MIB, 500), 4, 1, PER_GIGABYTE),
)


def run(options: Options) -> list[Figure]:
    """Run the scenarios with `options.scenario` in their names. Raises PeerError, LoadError."""
    chosen = [scenario for scenario in SCENARIOS if options.scenario.replace("_", " ") in scenario.name]
    if not chosen:
        return []
    rounds, seconds = options.rounds or (5 if options.quick else 11), 0.5 if options.quick else 1.5
    figures: list[Figure] = []
    with ExitStack() as stack:
        (broker,) = stack.enter_context(null_brokers(core=options.cores.broker))
        peers = [stack.enter_context(STARTERS[name](broker, options.cores.peer)) for name in options.peers]
        pin(options.cores.load)
        for scenario in chosen:
            options.progress(f"{scenario.name}: {rounds} rounds of {seconds:g} s, {len(peers)} peers")
            figures += _figures(scenario, peers, _rounds(scenario, peers, rounds, seconds))
        figures += [
            Figure(NAME, "over all of these", "peak memory", "MB", peer.name, (peer.peak_resident_bytes() / 1e6,))
            for peer in peers
            if peer.pid is not None
        ]
    targets = {(scenario.name, *scenario.cpu): scenario.target for scenario in chosen if scenario.target}
    targets |= {(scenario.name, *P50): scenario.p50_target for scenario in chosen if scenario.p50_target}
    return compare(figures, subject=SUBJECT, other=OTHER, ratio_targets=targets)


def _rounds(scenario: Scenario, peers: Sequence[Peer], rounds: int, seconds: float) -> list[list[Load]]:
    """For each peer the loads of its rounds; the peers take turns."""
    shape = scenario.shape()
    for peer in peers:
        check_answers(peer.address, shape)
    loads: list[list[Load]] = [[] for _ in peers]
    for _ in range(rounds):
        for peer, taken in zip(peers, loads, strict=True):
            if scenario.is_latency:
                load = run_depth_one(peer.address, shape, seconds=seconds, cpu_clock=peer.cpu_clock)
            else:
                load = run_pipelined(
                    peer.address,
                    shape,
                    connections=scenario.connections,
                    depth=scenario.depth,
                    seconds=seconds,
                    cpu_clock=peer.cpu_clock,
                )
            taken.append(load)
    return loads


def _figures(scenario: Scenario, peers: Sequence[Peer], loads: Sequence[Sequence[Load]]) -> list[Figure]:
    figures = []
    for peer, taken in zip(peers, loads, strict=True):

        def add(metric: str, unit: str, values: list[float], peer: Peer = peer) -> None:
            figures.append(Figure(NAME, scenario.name, metric, unit, peer.name, tuple(values)))

        if peer.pid is not None:
            metric, unit = scenario.cpu
            if scenario.cpu is PER_GIGABYTE:
                add(metric, unit, [load.cpu_seconds_per_gigabyte for load in taken])
            else:
                add(metric, unit, [load.cpu_microseconds_per_request for load in taken])
        if scenario.is_latency:
            add(*P50, [load.latency_microseconds(0.50) for load in taken])
            add("p99", "µs", [load.latency_microseconds(0.99) for load in taken])
        else:
            add("throughput", "MB/s", [load.megabytes_per_second for load in taken])
            add("throughput", "requests/s", [load.requests_per_second for load in taken])
    return figures
