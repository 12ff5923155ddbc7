"""A model broker: answers one request of a connection after the other, at its own pace, with a quota of its own."""

from collections.abc import Callable, Sequence
from functools import partial
from struct import unpack_from
from typing import Any, NamedTuple

from simulation import kafka
from simulation.cluster import Cluster, batches_of
from simulation.kafka import NONE, NOT_COORDINATOR, NOT_LEADER, UNKNOWN_TOPIC
from simulation.kernel import MS, SECOND, Kernel, nothing
from simulation.network import Address, Network, SimSocket
from simulation.stream import Stream

Values = tuple[Any, ...]
Answer = Values | None | Callable[[], Values | None]
"""The values of a response, None for no response, or what returns the values once they are ready."""


class Request(NamedTuple):
    connection: "Connection"
    api: int
    version: int
    correlation: int
    client_id: str
    size: int
    values: Values


class Connection(Stream):
    """A connection to a broker, which reads from it while none of its requests is being answered."""

    def __init__(self, broker: "Broker", sock: SimSocket) -> None:
        super().__init__(sock)
        self.broker = broker
        self.muted_ns = 0
        self.host = sock.peer.host if sock.peer is not None else ""

    def on_frame(self, frame: bytes) -> None:
        broker = self.broker
        api, version, correlation, size = unpack_from(">hhih", frame)
        head = 10 + max(0, size)
        client_id, body = frame[10:head].decode(), frame[head:]
        self.is_reading = False
        low, high, _ = kafka.VERSIONS.get(api, (0, -1, 0))
        if low <= version <= high:
            # A header with tagged fields has none here: one byte.
            values = kafka.request(api, version).decode(body[kafka.has_tags(api, version) :])
            request = Request(self, api, version, correlation, client_id, len(body), values)
            answer = broker.handlers[api](request)
        elif api == kafka.API_VERSIONS:
            request = Request(self, api, 0, correlation, client_id, len(body), ())
            answer = kafka.UNSUPPORTED_VERSION, [], 0
        else:
            self.close("unsupported", resets=True)  # as Kafka does
            return
        broker.kernel.at(broker.kernel.now_ns + broker.work_ns(len(frame)), partial(self._respond, request, answer))

    def _respond(self, request: Request, answer: Answer) -> None:
        broker, kernel = self.broker, self.broker.kernel
        if self.is_closed:
            return
        if broker.is_frozen:
            broker.frozen.append(partial(self._respond, request, answer))
            return
        if callable(answer):
            values = answer()
            if values is None:
                kernel.after(broker.poll_seconds, partial(self._respond, request, answer))
                return
            answer = values
        if answer is not None:
            body = kafka.response(request.api, request.version).encode(answer)
            tags = bytes(kafka.has_tags(request.api, request.version))
            self._send(request.correlation.to_bytes(4, "big") + tags + body)
        if self.muted_ns > kernel.now_ns:
            kernel.at(self.muted_ns, self._next)
        else:
            self._next()

    def _send(self, payload: bytes) -> None:
        broker = self.broker
        if broker.dies_in_response:
            broker.dies_in_response = False
            framed = len(payload).to_bytes(4, "big") + payload
            self.send_raw(framed[: broker.kernel.random.randrange(1, len(framed))])
            broker.stop()
        else:
            self.send(payload)

    def _next(self) -> None:
        if not self.is_closed:
            self.resume()

    def on_end(self, why: str) -> None:
        self.broker.connections.pop(self, None)


class Broker:
    """A broker of a cluster.

    is_frozen        it accepts and reads, and answers nothing
    slow_factor      its work takes that many times as long
    poll_seconds     how often it looks for records that a fetch waits for
    quota            bytes per second of Produce that it lets each client id have (KIP-219); 0: no limit
    on_append        called with its id, the topic and the size of each batch that it receives
    on_throttle      called with the client id and the correlation id of a request, and with the throttle time in ms
    """

    poll_seconds = 0.25

    def __init__(self, kernel: Kernel, network: Network, cluster: Cluster, number: int, address: Address) -> None:
        self.kernel, self.network, self.cluster = kernel, network, cluster
        self.number = number
        self.connections: dict[Connection, None] = {}
        self.is_up = self.is_frozen = self.dies_in_response = False
        self.frozen: list[Callable[[], None]] = []
        self.slow_factor = 1.0
        self.quota = 0
        self.most_throttle_ms = 0
        self._earned: dict[str, int] = {}
        self.on_append: Callable[[int, str, int], object] = nothing
        self.on_throttle: Callable[[str, int, int], object] = nothing
        self.handlers: dict[int, Callable[[Request], Answer]] = {
            kafka.PRODUCE: self._produce,
            kafka.FETCH: self._fetch,
            kafka.METADATA: self._metadata,
            kafka.FIND_COORDINATOR: self._find_coordinator,
            kafka.HEARTBEAT: lambda request: (0, NONE),
            kafka.API_VERSIONS: lambda request: (NONE, self._offered(), 0),
            kafka.INIT_PRODUCER_ID: self._init_producer,
            kafka.ADD_PARTITIONS: self._add_partitions,
            kafka.END_TXN: self._end_transaction,
            kafka.CLIENT_QUOTAS: lambda request: (0, NONE, None, cluster.described_quotas()),
        }
        self.start(address)

    # ---- its life

    def start(self, address: Address) -> None:
        self.address = self.cluster.addresses[self.number] = address
        self.is_up = True
        self.is_frozen = False
        self._listener = SimSocket(self.network, address[0])
        self._listener.bind(address)
        self._listener.listen()
        self._listener.on_ready = self._accept

    def stop(self) -> None:
        """It dies: connections are reset, and other brokers lead its partitions."""
        if not self.is_up:
            return
        self.is_up = False
        self.kernel.note("broker stops", self.number)
        del self.cluster.addresses[self.number]
        self.cluster.move_leaders(self.number)
        self._listener.close()
        for connection in list(self.connections):
            connection.close("died", resets=True)
        self.frozen.clear()

    def thaw(self) -> None:
        self.is_frozen = False
        waiting, self.frozen = self.frozen, []
        for respond in waiting:
            respond()

    def close_idle(self) -> None:
        """As with connections.max.idle.ms: close the connections that have no request under way."""
        for connection in list(self.connections):
            if connection.is_reading:
                connection.close("idle")

    def _accept(self) -> None:
        while self._listener.backlog:
            self.connections[Connection(self, self._listener.accept()[0])] = None

    def work_ns(self, size: int) -> int:
        return int((self.kernel.random.uniform(0.2, 1.5) * 1e6 + size * 2) * self.slow_factor)

    # ---- what it answers

    def _offered(self) -> list[Values]:
        return [(api, *versions[:2]) for api, versions in kafka.VERSIONS.items() if api in self.handlers]

    def _throttle_ms(self, request: Request) -> int:
        """What it puts a client off by, and for how long it does not read from the connection. Only debt is kept."""
        if not self.quota:
            return 0
        now_ns = self.kernel.now_ns
        since_ns = max(self._earned.get(request.client_id, 0), now_ns - SECOND)
        self._earned[request.client_id] = earned_ns = since_ns + request.size * SECOND // self.quota
        request.connection.muted_ns = max(now_ns, earned_ns)
        throttle_ms = max(0, earned_ns - now_ns) // MS
        self.most_throttle_ms = max(self.most_throttle_ms, throttle_ms)
        self.on_throttle(request.client_id, request.correlation, throttle_ms)
        return throttle_ms

    def _produce(self, request: Request) -> Answer:
        _, acks, _, topics = request.values
        throttle_ms = self._throttle_ms(request)
        results: list[Values] = [
            (name, [(number, *self._append(name, number, records), -1, 0, [], None) for number, records in partitions])
            for name, partitions in topics
        ]
        moved = any(error == NOT_LEADER for _, partitions in results for _, error, *_ in partitions)
        return (results, throttle_ms, self._endpoints() if moved else {}) if acks else None

    def _endpoints(self) -> dict[int, bytes]:
        """Where the brokers are, for clients that find another leader in a response."""
        nodes = [(number, *address, None) for number, address in self.cluster.addresses.items()]
        return {0: kafka.NODE_ENDPOINTS.encode([nodes])[:-1]}

    def _append(self, topic: str, number: int, records: bytes) -> tuple[int, int]:
        """Error code and base offset."""
        partition = self.cluster.partition(topic, number)
        if partition is None:
            return UNKNOWN_TOPIC, -1
        if partition.leader != self.number:
            return NOT_LEADER, -1
        error, offset = NONE, -1
        for batch, _, size in batches_of(records):
            self.on_append(self.number, topic, size)
            error, offset = partition.append(batch, size)
        return error, offset

    def _fetch(self, request: Request) -> Answer:
        _, wait_ms, least, most, isolation, _, _, topics, _, _ = request.values
        until_ns = self.kernel.now_ns + wait_ms * MS
        is_stable = isolation > 0
        return lambda: self._fetched(topics, most, least if self.kernel.now_ns < until_ns else 0, is_stable=is_stable)

    def _fetched(self, topics: Sequence[Any], most: int, least: int, *, is_stable: bool) -> Values | None:
        """None if there is less than `least`, and nothing else to report. `is_stable`: nothing of open transactions."""
        self.cluster.abort_late(self.kernel.now_ns)
        results: list[Values] = []
        total, error = 0, NONE
        for name, wanted in topics:
            made: list[Values] = []
            for number, _, offset, _, _, _ in wanted:
                partition = self.cluster.partition(name, number)
                if partition is None or partition.leader != self.number:
                    error = NOT_LEADER
                    made.append((number, error, -1, -1, 0, [], -1, b""))
                    continue
                end = partition.stable if is_stable else partition.end
                found = partition.read(offset, most - total, end) if total < most else []
                records = b"".join(batch.encode(size, base) for base, batch, size in found)
                total += len(records)
                aborted = partition.aborted(offset, found[-1][0] + 1) if found and is_stable else []
                made.append((number, NONE, partition.end, partition.stable, 0, aborted, -1, records))
            results.append((name, made))
        return None if total < least and error == NONE else (0, NONE, 0, results)

    def _metadata(self, request: Request) -> Answer:
        topics_asked, *_ = request.values
        cluster = self.cluster
        brokers = [(number, host, port, None) for number, (host, port) in sorted(cluster.addresses.items())]
        topics = []
        for name in cluster.topics if topics_asked is None else [name for name, _ in topics_asked]:
            partitions: list[Values] = [
                (NONE, number, each.leader, 0, [each.leader], [each.leader], [])
                for number, each in enumerate(cluster.topics.get(name, []))
            ]
            topics.append((NONE if partitions else UNKNOWN_TOPIC, name, False, partitions, 0))
        return 0, brokers, "cluster", brokers[0][0], topics, 0

    def _find_coordinator(self, request: Request) -> Answer:
        number = self.cluster.coordinator(request.values[0])
        return 0, NONE, None, number, *self.cluster.addresses[number]

    # ---- transactions

    def _init_producer(self, request: Request) -> Answer:
        name, _ = request.values
        if name and self.cluster.coordinator(name) != self.number:
            return 0, NOT_COORDINATOR, -1, -1
        return 0, NONE, *self.cluster.new_producer(name)

    def _add_partitions(self, request: Request) -> Answer:
        name, _, epoch, topics = request.values
        places = [(topic, number) for topic, numbers in topics for number in numbers]
        error = NOT_COORDINATOR
        if self.cluster.coordinator(name) == self.number:
            error = self.cluster.add_places(name, epoch, places, self.kernel.now_ns)
        return 0, [(topic, [(number, error) for number in numbers]) for topic, numbers in topics]

    def _end_transaction(self, request: Request) -> Answer:
        name, _, epoch, commits = request.values
        if self.cluster.coordinator(name) != self.number:
            return 0, NOT_COORDINATOR
        return 0, self.cluster.end_transaction(name, epoch, commits=commits)
