"""One quota for a fleet of 20 real proxies before one real broker, beside `--quota-share 1/N`: the same demands, one
client at each proxy, by `bench.fleet_demands`.

What passed is counted by acknowledgements at the clients. What the proxies might use together is known at each moment
from their logs (`deploy.local.granted`), from the start of the first one to the end of the last one. CPU is that of the
proxy processes; what `steps` costs is measured at proxies that do not write these logs.

    steps     each quarter of a second, one member begins to want 0.08 of the quota, or goes back to 0.01
    at rest   nothing is wanted; beside two proxies without a fleet
    killed    all want 1.5 / N; one is killed: until the others might use 98 % again
    ended     the same, with SIGTERM
"""

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import mean, median

from confluent_kafka.admin import AdminClient, NewTopic

from bench.fleet_demands import DEMANDS, MEMBERS, SECONDS, Wants
from bench.options import Options
from bench.processes import LOOPBACK, PeerError, cpu_ns
from bench.report import Figure
from demo.moving_client import BATCH_BYTES, RECORD, MovingClient, now_ns
from demo.proxy_process import ProxyFailedError, ProxyProcess
from deploy.local.cluster import KafkaCluster
from deploy.local.errors import PlaygroundError
from deploy.local.granted import Grant, grants_in, most_granted, reached_ns

NAME = "fleet"
QUOTA = 8_000_000
TOPIC = "orders"
FLEET, SHARE = "fleet", "quota share 1/N"
QUIET = "fleet, quiet log"
STEPS, AT_REST = "steps", "at rest"
FLEET_FLAGS = ("--fleet", "bench", "--fleet-max-members", str(MEMBERS))
FLAGS = {
    FLEET: (*FLEET_FLAGS, "--log-format", "json", "--log-level", "debug"),
    QUIET: FLEET_FLAGS,
    SHARE: ("--quota-share", str(1 / MEMBERS)),
}
HOT_EACH_SECONDS = 10
HOT_RATE = 0.9 * (1 - 0.4 * (MEMBERS - 1) / MEMBERS) * QUOTA
"""90 % of what is left for one that wants everything, while the others want 0.4 / N each."""
WANTS_EACH_SECONDS = 0.02
PAUSE_SECONDS = 4.0
JOIN_SECONDS = 90.0
CREDIT_SECONDS = 30.0
BACK = 0.98
#: One request of each connection, in percent of the quota in a second.
REQUESTS = 100 * MEMBERS * BATCH_BYTES / QUOTA


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one demand: percent of the demand up to the quota, of the quota, and of a core.

    hot_seconds: from when a member wanted everything until it might use `HOT_RATE`. hot_after: what it might use a
    second after it did, percent of its fair share.
    """

    unserved: float
    over_second: float
    over_ten_seconds: float
    cpu: float
    hot_seconds: tuple[float, ...] = ()
    hot_after: tuple[float, ...] = ()


class Proxies:
    """Real ones, of one kind. `logs`: one for each."""

    def __init__(self, stack: ExitStack, cluster: KafkaCluster, folder: Path, kind: str, count: int = MEMBERS) -> None:
        flags = "--quota", f"client-id=etl,producer_byte_rate={QUOTA},burst_seconds=0.1", *FLAGS[kind]
        self.logs = [folder / f"{kind.replace('/', ' of ')}-{number}.log" for number in range(count)]
        self.all = [
            stack.enter_context(ProxyProcess(cluster.bootstrap_servers, *flags, advertised_host=LOOPBACK, log=log))
            for log in self.logs
        ]
        self.kind = kind

    def wait_until_joined(self) -> None:
        deadline = time.monotonic() + JOIN_SECONDS
        while not all(json.loads(proxy.get("/fleet"))["joined"] for proxy in self.all):
            if time.monotonic() > deadline:
                raise PeerError(f"not all proxies have joined within {JOIN_SECONDS:g} s")
            time.sleep(0.5)

    def grants(self) -> list[list[Grant]]:
        """Of each."""
        return [one for log in self.logs for one in grants_in(log.read_text(errors="replace").splitlines()).values()]

    def cpu_of(self, wait: Callable[[], None]) -> float:
        """The mean percent of a core of a proxy, meanwhile."""
        before, began_ns = [cpu_ns(proxy.pid) for proxy in self.all], time.monotonic_ns()
        wait()
        used = sum(cpu_ns(proxy.pid) for proxy in self.all) - sum(before)
        return 100 * used / len(self.all) / (time.monotonic_ns() - began_ns)

    def start_clients(self, wants: Sequence[Sequence[float]], seconds: float) -> tuple[int, list[MovingClient]]:
        """`wants`: bytes per second of each member, by `WANTS_EACH_SECONDS`. Returns when they began, too."""
        clients = []
        for proxy, of_member in zip(self.all, zip(*wants, strict=True), strict=True):
            under_way = max(4 * len(RECORD), int(max(of_member) / 4))
            servers, each = f"{LOOPBACK}:{proxy.ports[0]}", partial(_at, of_member)
            clients.append(MovingClient(servers, TOPIC, each, under_way=under_way, **{"linger.ms": 20}))
        began_ns = now_ns()
        for client in clients:
            client.start(began_ns, seconds)
        return began_ns, clients


def _at(wants: Sequence[float], seconds: float) -> float:
    return wants[min(len(wants) - 1, int(seconds / WANTS_EACH_SECONDS))]


def steps(members: int, _random: Random) -> Wants:
    """Four changes each second."""
    return lambda seconds: [
        0.08 if (int(4 * seconds) + members - member) // members % 2 else 0.01 for member in range(members)
    ]


def wants_of(name: str, seconds: int, members: int = MEMBERS) -> list[list[float]]:
    """What each member wants, in bytes per second, each `WANTS_EACH_SECONDS`."""
    wants = {**DEMANDS, STEPS: steps}[name](members, Random(7))  # noqa: S311 - no secret
    pace = SECONDS / seconds if name == "growth" else 1  # all of its growth
    count = round(seconds / WANTS_EACH_SECONDS)
    return [[QUOTA * part for part in wants(step * WANTS_EACH_SECONDS * pace)] for step in range(count)]


def measure(proxies: Proxies, name: str, seconds: int) -> Outcome:
    """Run a demand."""
    wants = wants_of(name, seconds)
    began: list[tuple[int, list[MovingClient]]] = []

    def run_clients() -> None:
        began.append(proxies.start_clients(wants, seconds))
        for client in began[0][1]:
            client.join()

    cpu = proxies.cpu_of(run_clients)
    [(began_ns, clients)] = began
    acks = sorted(ack for client in clients for ack in client.acks)
    wanted = sum(min(QUOTA, sum(each)) for each in wants) * WANTS_EACH_SECONDS
    served = sum(size for at_ns, size in acks if at_ns < began_ns + seconds * 1e9)
    over = [100 * (most_in(acks, window) / (QUOTA * window) - 1) for window in (1, 10)]
    hot = list(_hot(proxies, wants, began_ns)) if name == "hot" and proxies.kind == FLEET else []
    seconds_of, after_of = ([each[place] for each in hot] for place in (0, 1))
    over = [max(0.0, each) for each in over]
    return Outcome(100 * (1 - served / wanted), over[0], over[1], cpu, tuple(seconds_of), tuple(after_of))


def most_in(acks: Sequence[tuple[int, int]], seconds: int) -> int:
    """The most bytes in any window of this many seconds, from acknowledgements in order."""
    most = total = first = 0
    for at_ns, size in acks:
        total += size
        while acks[first][0] <= at_ns - seconds * 1_000_000_000:
            total -= acks[first][1]
            first += 1
        most = max(most, total)
    return most


def _hot(proxies: Proxies, wants: Sequence[Sequence[float]], began_ns: int) -> Iterator[tuple[float, float]]:
    """Of each that wakes up: seconds until `HOT_RATE`; percent of the fair share after a second."""
    grants = proxies.grants()
    step_of_turn = round(HOT_EACH_SECONDS / WANTS_EACH_SECONDS)
    for step in range(0, len(wants), step_of_turn):
        woke_ns = began_ns + round(step * WANTS_EACH_SECONDS * 1e9)
        of_hot = grants[wants[step].index(max(wants[step]))]
        at_ns = reached_ns([of_hot], HOT_RATE, woke_ns)
        after = [each.rate for each in of_hot if each.set_ns <= woke_ns + 1e9][-1]
        yield CREDIT_SECONDS if at_ns is None else (at_ns - woke_ns) / 1e9, 90 * after / HOT_RATE


def run(options: Options) -> list[Figure]:
    """Each demand at the fleet, then at fixed shares; rest, death and end of members; 200 of them."""
    seconds = 10 if options.quick else 30
    names = [name for name in [*DEMANDS, STEPS] if options.scenario in name]
    figures: list[Figure] = []
    try:
        with KafkaCluster(1) as cluster, tempfile.TemporaryDirectory() as folder:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
            admin.create_topics([NewTopic(TOPIC, 4)])[TOPIC].result(30)
            outcomes: dict[str, dict[str, Outcome]] = {}
            for kind in (FLEET, *([QUIET] if STEPS in names else []), SHARE):
                with ExitStack() as stack:
                    options.progress(f"{MEMBERS} proxies, {kind}")
                    proxies = Proxies(stack, cluster, Path(folder), kind)
                    if kind != SHARE:
                        proxies.wait_until_joined()
                    if kind == FLEET:
                        figures += _at_rest(options, cluster, proxies, Path(folder), 2 * seconds)
                    for name in [STEPS] if kind == QUIET else names:
                        time.sleep(PAUSE_SECONDS)
                        outcomes.setdefault(name, {})[kind] = outcome = measure(proxies, name, seconds)
                        options.progress(f"{name}, {kind}, {seconds} s: {outcome}")
                    if kind == FLEET:
                        figures += _gone(options, proxies)
            figures = [*_demand_figures(outcomes), *figures]
    except (PlaygroundError, ProxyFailedError) as error:
        raise PeerError(str(error)) from error
    return figures


def _at_rest(options: Options, cluster: KafkaCluster, proxies: Proxies, folder: Path, seconds: int) -> Iterator[Figure]:
    if options.scenario not in AT_REST:
        return
    with ExitStack() as stack:
        others = Proxies(stack, cluster, folder, SHARE, 2)
        time.sleep(PAUSE_SECONDS)
        cpu: list[float] = []
        options.progress(f"{AT_REST}, {seconds} s")
        mine = proxies.cpu_of(lambda: cpu.append(others.cpu_of(lambda: time.sleep(seconds))))
    yield _figure(AT_REST, "CPU of a proxy", "% of a core", FLEET, mine)
    yield _figure(AT_REST, "CPU of a proxy", "% of a core", SHARE, *cpu)
    yield _figure(AT_REST, "CPU of a member above that", "% of a core", FLEET, mine - cpu[0], target=0.2)


def _gone(options: Options, proxies: Proxies) -> Iterator[Figure]:
    """One is killed, one ends; then what all might use at any moment of all this."""
    _, clients = proxies.start_clients([[1.5 * QUOTA / MEMBERS] * MEMBERS], 3 * CREDIT_SECONDS)
    for number, (name, sign, target) in enumerate((("killed", signal.SIGKILL, 20), ("ended", signal.SIGTERM, 1))):
        time.sleep(PAUSE_SECONDS)
        at_ns, gone = now_ns(), proxies.all[number]
        options.progress(f"one is {name}")
        os.kill(gone.pid, sign)
        seconds, deadline = None, time.monotonic() + CREDIT_SECONDS
        while seconds is None and time.monotonic() < deadline:
            time.sleep(0.5)
            rest = Proxies.grants(proxies)[number + 1 :]
            back_ns = reached_ns(rest, (BACK + 0.02 * len(rest) / MEMBERS - 0.005) * QUOTA, at_ns)
            seconds = None if back_ns is None else (back_ns - at_ns) / 1e9
        yield _figure(f"one is {name}", "its part is used", "s", FLEET, seconds or CREDIT_SECONDS, target=target)
    for client in clients:
        client.stop()
        client.join()
    yield _figure("all of this", "delivery of a record, mean", "ms", FLEET, _delivery_ms(proxies))
    most, most_ns = most_granted(proxies.grants())
    away = sum('"fleet_away"' in log.read_text(errors="replace") for log in proxies.logs)
    after_seconds = (most_ns - at_ns) / 1e9
    options.progress(f"most that all might use: {most} of {QUOTA}, {after_seconds:.1f} s after one ended; {away} away")
    # A member that is away may use `--fleet-fallback share`, which nobody leaves for it: see docs/fleet.md.
    bound = 100 * (1 + away / MEMBERS)
    yield _figure("all of this", "most that all might use", "% of the quota", FLEET, 100 * most / QUOTA, target=bound)


def _delivery_ms(proxies: Proxies) -> float:
    """Of those that are left."""
    return 1_000 * mean(float(json.loads(proxy.get("/fleet"))["delivery_seconds"]) for proxy in proxies.all[2:])


def _demand_figures(outcomes: dict[str, dict[str, Outcome]]) -> Iterator[Figure]:
    for name, by_kind in outcomes.items():
        for kind, outcome in by_kind.items():
            is_fleet = kind == FLEET and name != STEPS
            yield _figure(name, "unserved", "%", kind, outcome.unserved, target=9 if is_fleet else None)
            yield _figure(name, "over in a second", "%", kind, outcome.over_second, target=10 + REQUESTS)
            yield _figure(name, "over in ten seconds", "%", kind, outcome.over_ten_seconds, target=1 + REQUESTS / 10)
            yield _figure(name, "CPU of a proxy", "% of a core", kind, outcome.cpu)
            if outcome.hot_seconds:
                metric = "until 90 % of the fair share, median"
                yield _figure(name, metric, "s", kind, median(outcome.hot_seconds), target=1)
                yield _figure(name, "the same, slowest", "s", kind, max(outcome.hot_seconds))
                yield _figure(name, "of the fair share after 1 s, median", "%", kind, median(outcome.hot_after))
    for kind in (FLEET, SHARE):
        found = [by_kind[kind].unserved for name, by_kind in outcomes.items() if name != STEPS]
        if found:
            yield _figure("mean of these", "unserved", "%", kind, mean(found), target=5 if kind == FLEET else None)
    if STEPS in outcomes:
        more = outcomes[STEPS][QUIET].cpu - outcomes[STEPS][SHARE].cpu
        yield _figure(STEPS, "CPU of a member above that", "% of a core", FLEET, more, target=2)


def _figure(scenario: str, metric: str, unit: str, kind: str, value: float, target: float | None = None) -> Figure:
    return Figure(NAME, scenario, metric, unit, kind, (value,), target=target)
