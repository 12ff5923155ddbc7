"""The proxy with one limit and with all limits, none reached, against HAProxy in TCP mode and any other peer.

All peers run side by side from start to end; each scenario goes through them round by round, so that other work on the
machine affects all of them. A figure is the median over the rounds. CPU is the peer process's own; its user time is
shown apart from its system time, since the proxy shares the latter with every other program that forwards bytes.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median

from bench.load import Load, check_answers, run_depth_one, run_pipelined
from bench.null_broker import null_broker
from bench.options import Options
from bench.peers import FORWARDERS, Peer, all_limits, proxy
from bench.processes import pin
from bench.report import Figure, compare
from bench.shapes import Fetch, Produce, Shape

NAME = "against_haproxy"
OTHER = "haproxy"
KIB, MIB = 1024, 1024 * 1024

PER_GIGABYTE = "s/GB"
PER_REQUEST = "µs/request"
P50 = ("p50", "µs")

#: The largest wanted ratio to HAProxy: one limit and all limits, of the pure build and of the compiled one.
Targets = Mapping[str, tuple[float, float]]
#: A ratio at depth 1 may be this much above its target: HAProxy needs the same six system calls.
DEPTH_ONE = 0.05
#: The largest wanted ratios to the forwarder that charges the same limits: CPU by limits, and user CPU.
OVER_FORWARDER, USER_OVER_FORWARDER = {"one": 1.15, "all": 1.25}, 1.35
#: What all limits may cost over one limit: as a ratio where CPU is by the byte, since it is copying there; else µs for
#: each request and for each partition in it. Pure, compiled.
RATIO_TO_ONE_LIMIT, OVER_ONE_LIMIT = 1.1, ((12.0, 1.2), (5.0, 0.6))
#: A second under a limit may differ from it by this share, or by one request of each connection if that is more.
EVENNESS = 0.02
WARM_UP_SECONDS = 0.1
#: Before evenness is measured: the burst of a second is used up after one second at twice the limit.
BURST_SECONDS = 2.5
AT_REST, MEMORY_AT_REST_MB = "at rest", 45.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """One load. `depth` requests are in flight on each of `connections`; depth and connections of 1 measure latency.

    shape            what is sent
    cpu              the unit of the CPU
    targets          its largest wanted ratio; `p50_targets`: that of the median latency
    is_difference    the target is for all limits over one limit instead
    """

    name: str
    shape: Produce | Fetch
    depth: int
    connections: int
    cpu: str = PER_REQUEST
    targets: Targets | None = None
    p50_targets: Targets | None = None
    is_difference: bool = False

    @property
    def partitions(self) -> int:
        return self.shape.partitions

    @property
    def is_latency(self) -> bool:
        return self.connections == self.depth == 1


def _targets(*, one: tuple[float, float], all_limits: tuple[float, float], tolerance: float = 0.0) -> Targets:
    """Each is (pure, compiled)."""
    return {
        limits: (pure + tolerance, compiled + tolerance)
        for limits, (pure, compiled) in (("one", one), ("all", all_limits))
    }


DEPTH_50 = _targets(one=(1.4, 1.4), all_limits=(1.6, 1.5))

ROWS = (
    Scenario(
        *("produce 1 KiB, depth 1", Produce(KIB), 1, 1),
        targets=_targets(one=(1.15, 1.05), all_limits=(1.4, 1.2), tolerance=DEPTH_ONE),
        p50_targets=_targets(one=(1.05, 1.0), all_limits=(1.1, 1.05), tolerance=DEPTH_ONE),
    ),
    Scenario("produce 1 KiB, depth 50 x 4", Produce(KIB), 50, 4, targets=DEPTH_50),
    Scenario("produce 1 KiB, depth 50 x 4, a send each", Produce(KIB, one_by_one=True), 50, 4, targets=DEPTH_50),
    Scenario(
        *("produce 1 KiB, depth 2 x 200", Produce(KIB), 2, 200),
        targets=_targets(one=(1.5, 1.3), all_limits=(1.7, 1.4)),
    ),
    Scenario(
        *("produce 16 KiB, depth 5 x 4", Produce(16 * KIB), 5, 4),
        targets=_targets(one=(0.8, 0.75), all_limits=(1.0, 0.85)),
    ),
    Scenario(
        *("produce 1 MiB, depth 5 x 4", Produce(MIB), 5, 4, PER_GIGABYTE),
        targets=_targets(one=(0.6, 0.6), all_limits=(0.7, 0.7)),
    ),
)
#: Between the two extremes of rows, for what a wake-up costs while caches are warm.
FEW_CONNECTIONS = Scenario("produce 1 KiB, depth 2 x 20", Produce(KIB), 2, 20)
FETCHES = tuple(
    Scenario(
        *(
            f"fetch 1 MiB, 4 connections; {partitions} partition{'s' if partitions > 1 else ''}",
            Fetch(MIB, partitions),
            1,
            4,
            PER_GIGABYTE,
        ),
        targets=_targets(one=target, all_limits=target),
    )
    for partitions, target in ((1, (0.6, 0.6)), (50, (0.7, 0.6)), (500, (1.0, 0.8)))
)
#: As Java sends them: producer id, sizes that vary, compressed batches, several partitions of three topics.
JAVA = tuple(
    Scenario(f"java {name}, depth 5 x 4", shape, 5, 4, is_difference=True)
    for name, shape in (
        ("1 KiB, 1 partition", Produce(KIB, rotation=12)),
        ("16 KiB, 6 partitions", Produce(16 * KIB, topics=3, partitions=6)),
        ("100 KiB, 50 partitions", Produce(100 * KIB, topics=3, partitions=50)),
    )
)


def _scenarios() -> Iterator[Scenario]:
    """Each row, then what real producers send in its place: v12 and v13, a producer id, 12 partitions in rotation."""
    for row in ROWS:
        yield row
        yield from _versions(row, ", producer id, 12 partitions", rotation=12)
    yield FEW_CONNECTIONS
    yield from FETCHES
    for row in JAVA:
        yield from _versions(row, varies=True, is_compressed=True)


def _versions(row: Scenario, what: str = "", **more: int) -> Iterator[Scenario]:
    for version in (12, 13):
        assert isinstance(row.shape, Produce)
        shape = replace(row.shape, version=version, is_idempotent=True, **more)  # type: ignore[arg-type]
        yield replace(row, name=f"{row.name}; v{version}{what}", shape=shape)


SCENARIOS = tuple(_scenarios())


def run(options: Options) -> list[Figure]:
    """Run the scenarios whose names contain `options.scenario`. Raises PeerError, LoadError."""
    chosen = [scenario for scenario in SCENARIOS if options.scenario.replace("_", " ") in scenario.name]
    if not chosen:
        return []
    rounds, seconds = options.rounds or (5 if options.quick else 11), 0.3 if options.quick else 1.5
    figures: list[Figure] = []
    with ExitStack() as stack:
        broker = stack.enter_context(null_broker(core=options.cores.broker, port=options.broker_port))
        peers = [stack.enter_context(start(broker, options.cores.peer)) for start in options.peers.values()]
        pin(options.cores.load)
        at_rest = list(_memory(AT_REST, peers, Peer.resident_bytes))
        for scenario in chosen:
            options.progress(f"{scenario.name}: {rounds} rounds of {seconds:g} s, {len(peers)} peers")
            shape = scenario.shape.build()
            loads = _rounds(scenario, shape, peers, rounds, seconds)
            figures += chain.from_iterable(
                _figures(scenario, peer, taken) for peer, taken in zip(peers, loads, strict=True)
            )
            figures += _over_forwarder(scenario, peers, loads)
            if scenario.is_difference or scenario.cpu is PER_GIGABYTE:
                figures += _differences(scenario, peers, loads)
            if scenario in ROWS:
                figures += _at_half(scenario, shape, peers, loads, options)
        figures += [*at_rest, *_memory("at its peak", peers, Peer.peak_resident_bytes)]
    return compare(figures, other=OTHER)


def _rounds(scenario: Scenario, shape: Shape, peers: Sequence[Peer], rounds: int, seconds: float) -> list[list[Load]]:
    """For each peer the loads of its rounds; the peers take turns."""
    for peer in peers:
        check_answers(peer.address, shape)
    loads: list[list[Load]] = [[] for _ in peers]
    for _ in range(rounds):
        for peer, taken in zip(peers, loads, strict=True):
            taken.append(load_once(scenario, shape, peer, seconds))
    return loads


def load_once(
    scenario: Scenario, shape: Shape, peer: Peer, seconds: float, context: ssl.SSLContext | None = None
) -> Load:
    """One round of a scenario at one peer. `context`: of TLS; None: plaintext."""
    if scenario.is_latency:
        return run_depth_one(
            peer.address,
            shape,
            seconds=seconds,
            warm_up_seconds=WARM_UP_SECONDS,
            cpu_clock=peer.cpu_clock,
            context=context,
        )
    [load] = run_pipelined(
        peer.address,
        shape,
        connections=scenario.connections,
        depth=scenario.depth,
        seconds=seconds,
        warm_up_seconds=WARM_UP_SECONDS,
        cpu_clock=peer.cpu_clock,
        context=context,
    )
    return load


def cpu_of(scenario: Scenario, load: Load) -> float:
    """In the unit of the scenario."""
    units = load.payload_bytes if scenario.cpu is PER_GIGABYTE else load.requests * 1000
    return load.cpu.total_ns / units


def _user_share(loads: Sequence[Load]) -> float:
    """What of the CPU was user time, over all rounds: the kernel's samples of a single one are too few."""
    ticks_ns = sum(load.cpu.ticks_ns for load in loads)
    return sum(load.cpu.user_ticks_ns for load in loads) / ticks_ns if ticks_ns else 0.0


def cpu_figures(benchmark: str, name: str, scenario: Scenario, peer: str, loads: Sequence[Load]) -> Iterator[Figure]:
    """CPU of a peer in the unit of `scenario`, which is called `name` there: first all, then its parts."""
    user = _user_share(loads)
    for metric, share in (("CPU", 1.0), ("user CPU", user), ("system CPU", 1.0 - user)):
        values = tuple(share * cpu_of(scenario, load) for load in loads)
        yield Figure(benchmark, name, metric, scenario.cpu, peer, values)


def _figures(scenario: Scenario, peer: Peer, loads: Sequence[Load]) -> Iterator[Figure]:
    def figure(metric: tuple[str, str], values: list[float], targets: Targets | None = None) -> Figure:
        target = _target(targets, peer)
        return Figure(NAME, scenario.name, *metric, peer.name, tuple(values), ratio_target=target)

    if peer.pid is not None:
        cpu, *parts = cpu_figures(NAME, scenario.name, scenario, peer.name, loads)
        yield replace(cpu, ratio_target=_target(scenario.targets, peer))
        yield from parts
    if scenario.is_latency:
        yield figure(P50, [load.latency_microseconds(0.50) for load in loads], scenario.p50_targets)
        p99 = figure(("p99", "µs"), [load.latency_microseconds(0.99) for load in loads])
        yield replace(p99, is_shown=peer.pid is None)
    megabytes = figure(("throughput", "MB/s"), [load.megabytes_per_second for load in loads])
    requests = figure(("throughput", "requests/s"), [load.requests_per_second for load in loads])
    yield from (replace(each, is_shown=peer.pid is None) for each in (megabytes, requests))


def _target(targets: Targets | None, peer: Peer) -> float | None:
    return targets[peer.limits][peer.is_compiled] if targets and peer.limits else None


def _over_forwarder(scenario: Scenario, peers: Sequence[Peer], loads: Sequence[Sequence[Load]]) -> Iterator[Figure]:
    """The ratios to the forwarder that charges the same limits, round by round."""
    by_name = {peer.name: taken for peer, taken in zip(peers, loads, strict=True)}
    for peer, taken in zip(peers, loads, strict=True):
        if (least := by_name.get(FORWARDERS.get(peer.limits, ""))) is None:
            continue
        ratios = [cpu_of(scenario, mine) / cpu_of(scenario, other) for mine, other in zip(taken, least, strict=True)]
        user = _user_share(taken) / (_user_share(least) or 1.0)
        for metric, share, target in (
            ("CPU", 1.0, OVER_FORWARDER[peer.limits]),
            ("user CPU", user, USER_OVER_FORWARDER),
        ):
            values = tuple(share * ratio for ratio in ratios)
            yield Figure(NAME, scenario.name, f"{metric} / forwarder", "", peer.name, values, target=target)


def _differences(scenario: Scenario, peers: Sequence[Peer], loads: Sequence[Sequence[Load]]) -> Iterator[Figure]:
    """What all limits cost over one limit, round by round, for each build that is measured with both: their ratio where
    CPU is by the byte, otherwise their difference.
    """
    by_name = {peer.name: taken for peer, taken in zip(peers, loads, strict=True)}
    for peer in peers:
        one = by_name.get(peer.name.replace("all limits", "one limit"))
        if peer.limits != "all" or one is None:
            continue
        both = [
            (cpu_of(scenario, more), cpu_of(scenario, less)) for more, less in zip(by_name[peer.name], one, strict=True)
        ]
        if scenario.cpu is PER_GIGABYTE:
            ratios = tuple(more / less for more, less in both)
            yield Figure(NAME, scenario.name, "CPU / one limit", "", peer.name, ratios, target=RATIO_TO_ONE_LIMIT)
        else:
            request, partition = OVER_ONE_LIMIT[peer.is_compiled]
            yield Figure(
                *(NAME, scenario.name, "over one limit", "µs", peer.name),
                tuple(more - less for more, less in both),
                target=request + partition * scenario.partitions,
            )


def _at_half(
    scenario: Scenario, shape: Shape, peers: Sequence[Peer], loads: Sequence[Sequence[Load]], options: Options
) -> Iterator[Figure]:
    """All limits, with the byte limit at half of what passed without: CPU, and the second furthest from the limit."""
    name = f"{scenario.name}; byte limit at half of the load"
    seconds = 2 if options.quick else 10
    for peer, taken in zip(peers, loads, strict=True):
        if peer.limits != "all":
            continue
        options.progress(f"{name}: {seconds} s")
        limit = int(median(_charged_per_second(load) for load in taken) / 2)
        with proxy(
            peer.broker, options.cores.peer, quotas=all_limits(producer_byte_rate=limit), command=peer.command
        ) as limited:
            windows = run_pipelined(
                limited.address,
                shape,
                connections=scenario.connections,
                depth=scenario.depth,
                seconds=1,
                windows=seconds,
                warm_up_seconds=BURST_SECONDS,
                cpu_clock=limited.cpu_clock,
            )
        off = max(abs(_charged_per_second(load) / limit - 1) for load in windows)
        allowed = max(EVENNESS, scenario.connections * shape.payload_bytes / limit)
        yield from cpu_figures(NAME, name, scenario, peer.name, windows)
        yield Figure(NAME, name, "worst second", "% off", peer.name, (off * 100,), target=allowed * 100)


def _charged_per_second(load: Load) -> float:
    """The bytes that the limit counts: requests without the four bytes of their length."""
    return (load.payload_bytes - 4 * load.requests) * 1e9 / load.elapsed_ns


def _memory(metric: str, peers: Sequence[Peer], resident_bytes: Callable[[Peer], int]) -> Iterator[Figure]:
    for peer in peers:
        if peer.pid is not None:
            target = MEMORY_AT_REST_MB if peer.limits and metric == AT_REST else None
            yield Figure(NAME, "memory", metric, "MB", peer.name, (resident_bytes(peer) / 1e6,), target=target)
