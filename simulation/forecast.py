"""What quotas would do to clients: one real proxy with them in virtual time, before any real client has to wait.

The broker is fast and has no quota of its own, so whatever a client waits for is due to the quotas. A producer behaves
like Java's: it obeys throttle times, has 5 requests in flight, a buffer of 32 MiB, and a delivery timeout of 2 minutes.
A consumer reads records that arrive at the rate that it wants. Each connection belongs to a program of its own, all
programs of a client run on one address, and no client logs in.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGTERM, SIGUSR2
from typing import Any, Final, NamedTuple

from proxy.config.config import Config, ListeningOptions, ObservabilityOptions, QuotaOptions
from proxy.config.quotas_file import active_quotas
from proxy.observability.client_times import LIMIT, ClientTimes, LimitTimes
from proxy.observability.labels import entity_label
from quotas.admission.limit import Limit
from quotas.limit_kinds import BYTES_IN_RATE, CONSUMER_BYTE_RATE, MESSAGES_IN_RATE, PRODUCER_BYTE_RATE
from simulation import http
from simulation.broker import Broker
from simulation.cluster import Batch, Cluster, batches_of
from simulation.consumer import Consumer
from simulation.demand import Demand
from simulation.kernel import SECOND, Kernel
from simulation.link import REQUEST_TIMEOUT_NS
from simulation.network import Network
from simulation.process import ProxyProcess
from simulation.producer import DELIVERY_NS, Producer, Shape

HOST: Final = "192.0.2.1"
BROKER: Final = "192.0.2.2", 9092
ADMIN_PORT: Final = 19404
CLIENTS: Final = "198.51.100."
SOCKET_BYTES: Final = 1 << 20
"""Of a connection's buffers: large ones make a run cheap."""
TOPIC: Final = "events"
"""Of a producer that names none."""
RECORD_BYTES: Final = 1_000
_ARRIVALS_PER_SECOND: Final = 10
_LAST_SECONDS: Final = (DELIVERY_NS + REQUEST_TIMEOUT_NS) // SECOND
#: Limits on data, which clients share by the bytes that they move.
_ON_DATA: Final = (PRODUCER_BYTE_RATE, BYTES_IN_RATE, MESSAGES_IN_RATE, CONSUMER_BYTE_RATE)


class ClientForecast(NamedTuple):
    """One client; the fields are the keys of the JSON.

    held_ratio       the share of its connections' time that they spent at limits
    limits           where that was, with seconds summed over its connections, the longest first
    longest_wait_seconds
                     from the making of a record to its delivery
    expired_ratio    the share of its records that were not delivered within the delivery timeout
    verdict, headline, sentences
                     as in `explain --json`
    rates, waits     by second: bytes, and the longest wait of a record that was delivered then
    """

    client_id: str
    direction: str
    connections: int
    wanted_bytes_per_second: int
    bytes_per_second: int
    held_ratio: float
    limits: Sequence[Mapping[str, Any]]
    longest_wait_seconds: float
    expired_ratio: float
    verdict: str
    headline: str
    sentences: Sequence[str]
    rates: Sequence[int]
    waits: Sequence[float]


class LimitForecast(NamedTuple):
    """A limit that several clients share. `shares`: by client, of what passed."""

    limit: str
    entity: str
    limit_value: float
    used_ratio: float
    shares: Mapping[str, float]


class Forecast(NamedTuple):
    """`is_dry_run`: the file enforces nothing; this is what it does without `dry_run`. `refused`: why connections were
    closed. `not_exercised`: entries, and limits of entries, that these clients cannot meet.
    """

    seconds: int
    seed: int
    is_dry_run: bool
    clients: Sequence[ClientForecast]
    shared_limits: Sequence[LimitForecast]
    refused: Sequence[str]
    not_exercised: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        clients, limits = [each._asdict() for each in self.clients], [each._asdict() for each in self.shared_limits]
        return self._asdict() | {"clients": clients, "shared_limits": limits}


def forecast(quotas_file: Path, demands: Sequence[Demand], seconds: int = 60, seed: int = 1) -> Forecast:
    """Let these clients run for that long. Raises ConfigError for the file."""
    with _quiet():
        run = _Run(quotas_file, demands, seconds, seed)
        run.measure()
        page = run.page("/explain")
        findings = {each["client_id"]: each for each in page if each["states"]}
        refused = [each["sentences"][0] for each in page if not each["states"] and each["verdict"] != "none"]
        shared, not_exercised = list(run.shared_limits()), list(run.not_exercised())
        run.deliver()
        clients = [each.forecast(run.began_ns, seconds, findings.get(each.name, {})) for each in run.clients]
        run.end()
    return Forecast(seconds, seed, run.is_dry_run, clients, shared, refused, not_exercised)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the proxy's log: what it contains is in the forecast."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


class Reader(Consumer):
    """A consumer of one partition, into which records arrive at a rate. `waits_ns`: as those of a producer."""

    def __init__(self, *args: Any, cluster: Cluster, rate: float, **options: Any) -> None:
        self.waits_ns: list[tuple[int, int]] = []
        super().__init__(*args, **options)
        [topic] = self.topics
        [self._partition] = cluster.topics[topic]
        self._arriving_bytes = max(100, int(rate / _ARRIVALS_PER_SECOND))
        self.kernel.every(self._arriving_bytes / rate, self._arrive)

    def _arrive(self) -> None:
        if not self.is_stopped:
            records = max(1, self._arriving_bytes // RECORD_BYTES)
            self._partition.append(Batch(self.kernel.now_ns, records), self._arriving_bytes)

    def take(self, place: tuple[str, int], aborted: list[tuple[int, int]], records: bytes) -> None:
        now_ns = self.kernel.now_ns
        self.waits_ns += [(now_ns, now_ns - batch.first) for batch, _, _ in batches_of(records)]
        super().take(place, aborted, records)


class _Watched:
    """A client with its programs, and what was seen of it second by second."""

    def __init__(self, demand: Demand, programs: Sequence[Producer | Reader]) -> None:
        self.demand = demand
        self.name = demand.client_id
        self.programs = programs
        self.rates: list[int] = []
        self.held_ratio = 0.0
        self.limits_ns: LimitTimes = {}
        self._snapshot: LimitTimes | None = None

    @property
    def bytes(self) -> int:
        """Of records that were delivered so far."""
        return sum(
            len(each.acked) * each.shape.batch_bytes if isinstance(each, Producer) else each.bytes
            for each in self.programs
        )

    @property
    def is_delivering(self) -> bool:
        """Records wait for their delivery, or to expire."""
        return any(isinstance(each, Producer) and each.buffered for each in self.programs)

    def sample(self, times: ClientTimes, *, is_last: bool) -> None:
        """After each second."""
        self.rates.append(self.bytes - sum(self.rates))
        self.held_ratio = times.spent_ns[LIMIT] / max(sum(times.spent_ns), 1)
        if times.before and times.before[-1] is not self._snapshot:  # a snapshot begins again at 0
            self._snapshot = times.before[-1]
            self._add(self._snapshot)
        if is_last:
            self._add(times.limits_ns)

    def _add(self, limits_ns: LimitTimes) -> None:
        for key, ns in limits_ns.items():
            self.limits_ns[key] = self.limits_ns.get(key, 0) + ns

    def forecast(self, began_ns: int, seconds: int, finding: Mapping[str, Any]) -> ClientForecast:
        """Once all records are delivered. `finding`: of `/explain`, at the end of the measured seconds."""
        demand = self.demand
        limits = sorted(self.limits_ns.items(), key=lambda each: -each[1])
        waits = [0.0] * seconds
        longest = 0.0
        for at_ns, wait_ns in (each for program in self.programs for each in program.waits_ns):
            second, wait = (at_ns - began_ns) // SECOND, round(wait_ns / SECOND, 3)
            longest = max(longest, wait)
            if second < seconds:
                waits[second] = max(waits[second], wait)
        producers = [each for each in self.programs if isinstance(each, Producer)]
        made = sum(each.made - each.first for each in producers)
        expired = sum(batch.size for each in producers for batch in each.expired.values())
        return ClientForecast(
            self.name,
            "consume" if demand.is_consumer else "produce",
            demand.connections,
            demand.rate,
            round(sum(self.rates) / seconds),
            round(self.held_ratio, 4),
            [{"limit": name, "entity": entity, "seconds": round(ns / SECOND, 3)} for (name, entity), ns in limits],
            longest,
            round(expired / max(made, 1), 4),
            finding.get("verdict", "none"),
            finding.get("headline", "it could not connect"),
            finding.get("sentences", ()),
            self.rates,
            waits,
        )


class _Run:
    """One forecast's world."""

    def __init__(self, quotas_file: Path, demands: Sequence[Demand], seconds: int, seed: int) -> None:
        self.seconds = seconds
        self.kernel = kernel = Kernel(seed)
        self.network = network = Network(kernel)
        network.buffer_bytes = SOCKET_BYTES
        topics = {topic: 1 for demand in demands for topic in _topics_of(demand)}
        self.cluster = Cluster(topics, 1)
        Broker(kernel, network, self.cluster, 0, BROKER).poll_seconds = 0.05
        config = Config(
            bootstrap_servers=(BROKER,),
            listening=ListeningOptions(address=(HOST, 19092), advertised_host=HOST),
            observability=ObservabilityOptions(metrics_listen=(HOST, ADMIN_PORT)),
            quotas=QuotaOptions(file=quotas_file),
        )
        active_quotas(config)
        self.proxy = ProxyProcess(kernel, network, HOST, config)
        kernel.run(1)
        self.server = self.proxy.server
        self.is_dry_run = self.server.active_config.quotas.dry_run
        if self.is_dry_run:
            self.proxy.send_signal(SIGUSR2)
            kernel.run(1)
        self.began_ns = kernel.now_ns
        self.clients = [_Watched(each, list(self._programs(each, number))) for number, each in enumerate(demands, 1)]

    def _programs(self, demand: Demand, number: int) -> Iterator[Producer | Reader]:
        address = demand.address or f"{CLIENTS}{number}"
        common = self.kernel, self.network, address, demand.client_id, [self.proxy.listens_at]
        rate, size = demand.rate / demand.connections, demand.request_size
        shape = Shape(
            rate, size, max(1, size // RECORD_BYTES), acks=-1, request_bytes=size, version=8, seconds=self.seconds
        )
        for n, topic in enumerate(_topics_of(demand)):
            if demand.is_consumer:
                yield Reader(*common, [topic], cluster=self.cluster, rate=rate, group=demand.client_id)
            else:
                yield Producer(*common, [topic], shape=shape, first=n << 32)

    def measure(self) -> None:
        for second in range(1, self.seconds + 1):
            self.kernel.run(1)
            times = {each.client_id: each.times for each in self.server.metrics.entities}
            for client in self.clients:
                client.sample(times.get(client.name, ClientTimes()), is_last=second == self.seconds)

    def deliver(self) -> None:
        """Wait until the records of these seconds are delivered or have expired."""
        for _ in range(_LAST_SECONDS):
            if not any(each.is_delivering for each in self.clients):
                return
            self.kernel.run(1)

    def end(self) -> None:
        for client in self.clients:
            for each in client.programs:
                each.stop()
        self.proxy.send_signal(SIGTERM)
        self.kernel.run(60, lambda: self.proxy.exit_code is not None)
        self.proxy.close()

    def page(self, path: str) -> Any:
        """A page of the proxy's admin port."""
        return json.loads(http.get(self.kernel, self.network, HOST, ADMIN_PORT, path))

    def shared_limits(self) -> Iterator[LimitForecast]:
        by_name = {each.name: each for each in self.clients}
        sharing: dict[Limit, dict[str, int]] = {}
        for session in self.server.sessions:
            client = by_name.get(session.identity.wire_client_id or "")
            if client is not None:
                for limit in session.limits:
                    if limit.name in _ON_DATA and (limit.name == CONSUMER_BYTE_RATE) == client.demand.is_consumer:
                        sharing.setdefault(limit, {})[client.name] = sum(client.rates)
        for limit, passed in sharing.items():
            total = sum(passed.values())
            used = total / self.seconds / limit.rate / (RECORD_BYTES if limit.name == MESSAGES_IN_RATE else 1)
            if len(passed) > 1:
                shares = {name: round(passed[name] / max(total, 1), 4) for name in by_name if name in passed}
                yield LimitForecast(limit.name, entity_label(limit.entity), limit.rate, round(used, 4), shares)

    def not_exercised(self) -> Iterator[str]:
        active = self.server.active_config
        unmatched = active.unmatched()
        yield from unmatched
        directions = {each.demand.is_consumer for each in self.clients}
        for entry in active.quotas.entries:
            for name in entry.limits:
                is_met = name not in _ON_DATA or (name == CONSUMER_BYTE_RATE) in directions
                if not is_met and str(entry.entity) not in unmatched:
                    yield f"{name} of {entry.entity}"


def _topics_of(demand: Demand) -> list[str]:
    """By connection. A consumer has a topic for each."""
    if not demand.is_consumer:
        return [demand.topic or TOPIC] * demand.connections
    return [f"{demand.client_id}-{n}" for n in range(demand.connections)]
