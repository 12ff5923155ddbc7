"""What a seed and options make of proxies, brokers and clients, and what faults can do to them."""

import functools
import json
import logging
import math
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from proxy.config.config import (
    OFF,
    Config,
    EnforcementOptions,
    FleetOptions,
    ListeningOptions,
    ObservabilityOptions,
    QuotaOptions,
    SecurityOptions,
    UsageOptions,
)
from simulation import draws
from simulation.broker import Broker
from simulation.client import Client
from simulation.cluster import Cluster
from simulation.consumer import Consumer
from simulation.disks import MARKS, Disks
from simulation.draws import DISK_GUARD, QUOTAS_TOPIC, Options
from simulation.fleet_topic import FleetTopic, SimLog
from simulation.hostile import Hostile
from simulation.kernel import MachineClock, nothing
from simulation.limits import Limits, Table, of_client, shared_by
from simulation.link import Link, Sent
from simulation.network import SimSocket
from simulation.process import RUNNING, ProxyProcess
from simulation.producer import Producer, Shape
from simulation.scene import ADMIN_PORT, TOPICS, Scene
from simulation.stored import TOPIC, Stored
from simulation.taps import Bound, Line, Requests, Responses

RELOAD_SECONDS: Final = 1.0
"""After this a changed quota must apply."""
PORT: Final = 9092
PROXIES, BROKERS = "10.0.1.", "10.0.2."
MOST_ERROR_PPM: Final = 9_900
"""Of the clocks of a fleet; `quotas.fleet.parameters` allows for 1 %."""
MAX_MEMBERS: Final = 4, 4, 201
"""The members of large fleets repeat what they have advertised (`quotas.fleet.repeats`)."""
FETCH_SECONDS: Final = (0.001, 0.01), (0.02, 0.1), (0.1, 0.5)
"""Some members read the fleet's topic sooner than others."""
JOINS: Final = 4
"""The id of a broker that joins: with four ports, its own is that of node 0."""
HUNGRY: Final = Shape(rate=1_000_000, batch_bytes=100_000, acks=-1, request_bytes=500_000, buffer_bytes=10_000_000)
"""Of one client at each member of a fleet, so that they have to share."""


class World(Scene):
    """A run. `disks`, `stored`: of those with a disk guard, and with a topic of quotas."""

    FIRST_BROKERS = 3

    def __init__(self, seed: int, options: Options, directory: Path) -> None:
        super().__init__(seed, options, directory)
        self.quotas_file = directory / "quotas.toml"
        kernel, random = self.kernel, self.kernel.random
        self.network.partial = random.choice([0, 0.02, 0.3])
        self.network.buffer_bytes = random.choice([16_384, 131_072, 524_288])
        self.network.on_connection = self._tap
        self.cluster = Cluster(TOPICS, self.FIRST_BROKERS)
        if random.random() < 0.3 and self.kinds.isdisjoint(draws.RESTARTING):
            self.cluster.quotas["backfill"] = {"producer_byte_rate": 150_000.0}
        self.disks = Disks(self) if DISK_GUARD in self.parts else None
        self.brokers = [self._new_broker(number) for number in range(self.FIRST_BROKERS)]
        self.topic = FleetTopic(kernel)
        if random.random() < 0.85:
            self.topic.grow_old()
        self.fallback, self.max_members = random.choice(["share", "floor"]), random.choice(MAX_MEMBERS)
        #: Of the members of a fleet, by host.
        self.logs: dict[str, SimLog] = {}
        fastest = MachineClock(kernel, MOST_ERROR_PPM if self.is_fleet else 0)
        self.limits = Limits(kernel, fastest, self.cluster.quotas, self.parts)
        self.stored = Stored(self) if QUOTAS_TOPIC in self.parts else None
        self.flow = Bound(fastest, math.inf)
        self.kills = self.changes = 0
        #: What faults have changed: an object, and the name of its attribute.
        self.before_faults: dict[tuple[object, str], object] = {}
        #: Which node each address of a run of a proxy leads to.
        self.node_at: dict[tuple[ProxyProcess, tuple[str, int]], int] = {}
        self.produced: dict[str, int] = {}
        #: By client id and correlation id: throttle times of brokers that no client has been told yet.
        self.broker_throttles_ms: dict[tuple[str, int], int] = {}
        self.proxies = [self._new_proxy(number) for number in range(self.size)]
        self.hostile: list[Hostile] = []
        #: Called with each response that a client gets.
        self.on_response: list[Callable[[Link, Sent, Sequence[Any]], object]] = []
        #: Called when a Produce request or a Fetch response begins to pass.
        self.on_passing: list[Callable[[Line], object]] = []

    @property
    def has_shared_waits(self) -> bool:
        """Whether clients may wait at more than limits of their own name."""
        return bool(self.is_fleet or self.limits.has_shared or self.stored or self.disks)

    # ---- parts

    def _new_broker(self, number: int) -> Broker:
        broker = Broker(self.kernel, self.network, self.cluster, number, (f"10.0.2.{number + 1}", PORT))
        broker.on_append = self._appended
        broker.on_throttle = self._throttled_by_broker
        if self.disks:
            self.disks.add(broker)
        return broker

    def _new_proxy(self, number: int) -> ProxyProcess:
        host = f"10.0.1.{number + 1}"
        self.limits.write(self.quotas_file)
        config = Config(
            bootstrap_servers=tuple((f"10.0.2.{each + 1}", PORT) for each in range(self.FIRST_BROKERS)),
            listening=ListeningOptions(
                address=(host, PORT), broker_ports=range(PORT + 1, PORT + 5), advertised_host=host
            ),
            observability=ObservabilityOptions(
                metrics_listen=(host, ADMIN_PORT), max_metric_entities=self.max_entities
            ),
            security=SecurityOptions(max_buffered_bytes=self.max_buffered_bytes),
            quotas=QuotaOptions(
                file=self.quotas_file,
                cluster="total" if self.cluster.quotas else OFF,
                topic=TOPIC if self.stored else None,
                admins=("ANONYMOUS",),
                producer_id_window_size_seconds=draws.IDS_WINDOW_SECONDS,
                producer_id_window_count=draws.IDS_WINDOW_COUNT,
            ),
            fleet=FleetOptions(name="team", max_members=self.max_members, fallback=self.fallback)
            if self.is_fleet
            else FleetOptions(),
            enforcement=EnforcementOptions(disk_guard=MARKS if self.disks else None),
            usage=UsageOptions(file=self.directory / f"usage-{len(self.started) + 1}.jsonl", interval_seconds=5.0),
        )
        log, error_ppm = None, 0
        if self.is_fleet:
            log = self.logs[host] = SimLog(self.topic, self.kernel.random.choice(FETCH_SECONDS))
            error_ppm = self.kernel.random.choice([-MOST_ERROR_PPM, 0, MOST_ERROR_PPM])
        stored_log = self.stored.new_log() if self.stored else None
        self.started.append(ProxyProcess(self.kernel, self.network, host, config, log, stored_log, error_ppm))
        return self.started[-1]

    def populate(self) -> None:
        random = self.kernel.random
        for number in range(self.options.clients or random.randint(3, 12)):
            self.add_client(number)

    def add_client(self, number: int) -> None:
        """`web`, which is far below each limit, comes first; then clients that want more than they may have."""
        random = self.kernel.random
        name = "web" if number == 0 else random.choice(["etl", "etl", "backfill", "reader"])
        is_hungry = self.is_fleet and 1 <= number <= self.size
        if is_hungry:
            name = "etl"
        proxy = self.proxies[number % len(self.proxies)]
        common = self.kernel, self.network, f"10.0.3.{number % 250 + 1}", name, [proxy.listens_at], list(TOPICS)
        options: dict[str, Any] = {"metadata_version": random.choice([5, 7, 9]), "obeys": random.random() < 0.7}
        if name == "reader":
            options |= {"version": random.choice([4, 11, 12]), "reads_committed": random.random() < 0.5}
            client: Client = Consumer(*common, **options)
        else:
            shape = HUNGRY if is_hungry else self._shape(name, random)
            client = Producer(*common, **options, shape=shape, first=number << 32)
        client.on_link = self._watch_link
        self.clients.append(client)

    def _shape(self, name: str, random: Random) -> Shape:
        if name == "web":
            return Shape(rate=2_000, batch_bytes=500, records=1, version=8)
        size = random.choice([1_000, 16_384, 100_000])
        is_transactional = random.random() < 0.2
        busy_seconds, period_seconds = random.choice([(1, 1), (0.5, 3), (1, 8)])
        return Shape(
            busy_seconds=busy_seconds,
            period_seconds=period_seconds,
            rate=size * random.choice([1, 5, 20]),
            batch_bytes=size,
            records=random.choice([1, 10]),
            acks=-1 if is_transactional else random.choice([1, -1, -1, 0]),
            in_flight=random.choice([1, 5, 20]),
            request_bytes=random.choice([size, 500_000]),
            buffer_bytes=100 * size,
            version=random.choice([3, 5, 7, 8, 9, 10]),
            is_idempotent=is_transactional or random.random() < 0.5,
            is_transactional=is_transactional,
        )

    def stop_clients(self) -> None:
        for client in (*self.clients, *self.probes):
            client.stop()
        for enemy in self.hostile:
            enemy.stop()

    # ---- what passes

    def _tap(self, near: SimSocket, far: SimSocket) -> None:
        """A new connection: of a proxy to a broker, or of a client to a proxy."""
        proxy, passes = (near.host, self._produced) if far.host.startswith(BROKERS) else (far.host, nothing)
        if not proxy.startswith(PROXIES) or far.name[1] == ADMIN_PORT:
            return
        is_upstream = near.host == proxy
        requests = Requests(near, passes, self._passes if is_upstream else self._request_begins)
        fetched, begins = (nothing, self._response_begins) if is_upstream else (self._fetched, self._passes)
        responses = Responses(far, fetched, begins, requests)
        near.on_sent, far.on_sent = requests.feed, responses.feed
        if is_upstream:
            self.requests.append(requests)
        self.lines.setdefault(proxy, []).append(responses if is_upstream else requests)

    def _passes(self, line: Line) -> None:
        for look in self.on_passing:
            look(line)

    def _request_begins(self, line: Line) -> None:
        """From a client."""
        self.flow.lines.begun(line)
        if self.disks and line.sock.peer is not None:
            self.disks.begun(line.sock.peer.host, line)
        for name in (of_client(line.client_id), *shared_by(line.client_id)):
            self.limits.begun(name, "producer_byte_rate", line)

    def _response_begins(self, line: Line) -> None:
        """From a broker."""
        self.limits.begun(of_client(line.client_id), "consumer_byte_rate", line)

    def _produced(self, line: Line, size: int) -> None:
        client_id = line.client_id
        self.produced[client_id] = self.produced.get(client_id, 0) + size
        self.flow.add(size, line)
        if self.disks:
            self.disks.passed(line.sock.host, size, line)
        for name in (of_client(client_id), *shared_by(client_id)):
            self.limits.count(name, "producer_byte_rate", size, line)

    def _fetched(self, line: Line, size: int) -> None:
        self.limits.count(of_client(line.client_id), "consumer_byte_rate", size, line)

    def _appended(self, broker: int, topic: str, size: int) -> None:
        """A broker has received a batch."""
        if self.disks:
            self.disks.written(broker, size)
        self.limits.count(f'topic="{topic}"', "bytes_in_rate", size, None)

    def _throttled_by_broker(self, client_id: str, correlation: int, throttle_ms: int) -> None:
        self.broker_throttles_ms[client_id, correlation] = throttle_ms

    def _watch_link(self, link: Link) -> None:
        self.links.append(link)
        link.on_response = functools.partial(self._on_response, link)

    def _on_response(self, link: Link, sent: Sent, values: Sequence[Any]) -> None:
        for check in self.on_response:
            check(link, sent, values)

    # ---- what faults do

    def add_broker(self) -> None:
        self.brokers.append(self._new_broker(JOINS))

    def change_quotas(self, late: ProxyProcess | None = None, late_seconds: float = 0.0) -> None:
        """One proxy may read the file later than the others."""
        random = self.kernel.random
        self._change(
            {
                entity: {name: float(int(rate * random.choice([0.5, 2]))) for name, rate in limits.items()}
                for entity, limits in self.limits.file.items()
            },
            late,
            late_seconds,
        )

    def lift_quotas(self) -> Callable[[], None]:
        """There are none until what this returns is called."""
        lifted = self.limits.file
        if not lifted:
            return nothing
        self._change({})
        return lambda: self._change(lifted)

    def _change(self, file: Table, late: ProxyProcess | None = None, late_seconds: float = 0.0) -> None:
        limits = self.limits
        limits.change(limits.files, file)
        limits.write(self.quotas_file)
        self.changes += 1
        self.kernel.after(late_seconds + RELOAD_SECONDS, functools.partial(self._changed, self.changes))
        for proxy in self.proxies:
            self.kernel.after(late_seconds if proxy is late else 0, functools.partial(proxy.send_signal, signal.SIGHUP))

    def _changed(self, change: int) -> None:
        """The latest change applies by now."""
        if change == self.changes:
            self.limits.settle(self.limits.files)

    def kill(self, number: int) -> None:
        if self.proxies[number].exit_code is None:
            self.kills += 1
            self.proxies[number].kill()

    def restart(self, number: int) -> None:
        if self.proxies[number].exit_code is not None:
            self.proxies[number].close()
            self.proxies[number] = self._new_proxy(number)

    def note_log(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", record.getMessage())
        found: dict[str, Any] = getattr(record, "fields", {})
        self.logged.append((RUNNING.get(), record.levelno, event, found))
        self.kernel.note(RUNNING.get(), event)
        if record.levelno >= logging.ERROR or found.get("reason") == "defect":
            self.fail(f"logged an error: {event} {json.dumps(found, default=str)}")
