"""A connection pair without sockets: bytes go in on both sides, and the test sees what each side receives.

    world = World(quotas=[without_burst("client-id=etl produce=1000")])
    pair = Pair(world)
    pair.client_sends(produce(1))
    assert pair.to_broker == produce(1)
    pair.broker_sends(produced(1))
    assert pair.to_client == produced(1)

`Flow` does what `proxy.sessions.pump` does: it reads as much as the stream wants, takes steps, and keeps what a step
leaves. Time passes only when the test says so. `Pair(cuts=...)` delivers the bytes in pieces of these sizes, again and
again; `Pair(breaks=True)` ends each turn after one step.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Sequence
from itertools import cycle
from typing import Any, cast

from proxy.brokers.nodes import Nodes
from proxy.brokers.topics import Topics
from proxy.config.config import Config, QuotaOptions
from proxy.enforcement.data_frame import DataFrame, FrameEvent, Life
from proxy.enforcement.holds import LAPSE_NS, Holds
from proxy.enforcement.identity import Identity
from proxy.enforcement.measures import Measures
from proxy.enforcement.report import Report
from proxy.observability.metrics import Metrics
from proxy.streams.connection import Connection, Stream
from proxy.streams.context import Context
from proxy.streams.handlers.table import handlers_of
from proxy.streams.kinds import Kinds
from proxy.streams.memory import READ_SIZE, MemoryPool
from proxy.streams.request_stream import RequestStream
from proxy.streams.response_stream import ResponseStream
from proxy.streams.steps import DELAY_RESPONSE, DRAINED, FULL, HOLD, NEED, REPLACE, WAIT, YIELD
from quotas.algorithms.algorithm import AlgorithmSettings
from quotas.entry import QuotaEntry
from quotas.registry.registry import Registry
from tests.proxy.conversation import Clock


class NoLoop:
    """The event loop of `Topics`: nothing is ever looked up."""

    def __init__(self) -> None:
        self.asked = 0

    def time(self) -> float:
        return 0.0

    def create_task(self, task: Coroutine[Any, Any, None]) -> None:
        self.asked += 1
        task.close()


async def _ask_nobody(ids: list[bytes]) -> Iterable[Any]:
    return ()


class World:
    """What all pairs of one proxy share."""

    def __init__(
        self,
        quotas: Iterable[QuotaEntry] | QuotaOptions = (),
        *,
        algorithm: str = "token-bucket",
        **options: Any,
    ) -> None:
        self.clock = Clock()
        if not isinstance(quotas, QuotaOptions):
            quotas = QuotaOptions(entries=tuple(quotas))
        self.config = Config(bootstrap_servers=(("127.0.0.9", 9092),), quotas=quotas, **options)
        self.metrics = Metrics(self.config, clock_ns=self.clock)
        self.registry = Registry(
            quotas.entries, settings=AlgorithmSettings(algorithm=algorithm), reads_topics=self.config.usage.by_topic
        )
        self.memory = MemoryPool(self.config.security.max_buffered_bytes)
        self.holds = Holds()
        self.report = Report(self.config.enforcement, self.metrics.entities)
        enforcement = self.config.enforcement
        self.context = Context(
            config=self.config,
            metrics=self.metrics,
            registry=self.registry,
            memory=self.memory,
            nodes=Nodes(self.config.listening, lambda: 0),
            topics=Topics(cast("Any", NoLoop()), _ask_nobody),
            holds=self.holds,
            measures=Measures(self.report, enforcement.throttle_mode, enforces=not enforcement.dry_run),
        )
        self.kinds = Kinds(handlers_of(self.context), self.metrics)

    def debts(self) -> dict[tuple[str, str], float]:
        """By entity and limit, in seconds; of limits that owe something."""
        now_ns = self.clock()
        owed = ((limit, limit.debt_ns(now_ns)) for limit in self.registry.limits_in_use())
        return {(str(limit.entity), limit.name): debt_ns / 1e9 for limit, debt_ns in owed if debt_ns}

    def levels(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Debt in ns and headroom beside what is reserved, of each limit in use, by entity and name."""
        now_ns = self.clock()
        return {
            (str(limit.entity), limit.name): (
                limit.debt_ns(now_ns),
                limit.algorithm.headroom(now_ns) - limit.reserved,
            )
            for limit in self.registry.limits_in_use()
        }

    def reserved(self) -> dict[tuple[str, str], int]:
        """Units of limits that are reserved, by entity and name."""
        in_use = self.registry.limits_in_use()
        return {(str(limit.entity), limit.name): limit.reserved for limit in in_use if limit.reserved}

    def counts(self) -> dict[str, Any]:
        """What metrics have counted."""
        metrics = self.metrics
        return {
            "requests": {key: cell.value for key, cell in metrics.requests.items() if cell.value},
            "entities": sorted(
                (each.user, each.client_id, each.produce_bytes, each.fetch_bytes, each.requests)
                for each in metrics.entities
            ),
            "throttled": self.throttled(),
            "errors": {reason: count for reason, count in metrics.errors.protocol.items() if count},
        }

    def topics(self) -> dict[tuple[str, str], tuple[int, int, int]]:
        """Bytes and messages produced, and bytes fetched, by client id and topic."""
        return {
            (entity.client_id, topic): (
                traffic.produce_bytes,
                traffic.produce_messages,
                traffic.fetch_bytes,
            )
            for entity in self.metrics.entities
            for topic, traffic in (entity.topics or {}).items()
        }

    def throttled(self) -> dict[tuple[str, str, str], int]:
        """Throttled requests by client id, limit and mode."""
        return {
            (entity.client_id, *key): histogram.count
            for entity in self.metrics.entities
            for key, histogram in entity.throttles.items()
        }


class Flow:
    """One direction. `stopped`: the step for which it is not read; 0: it is read."""

    def __init__(self, pair: Pair, stream: Stream, out: bytearray) -> None:
        self.pair = pair
        self.stream = stream
        self.out = out
        self.unread = bytearray()
        self.kept = b""
        self.stopped = 0
        self.steps: list[int] = []
        self.most_kept = 0

    def feed(self, data: bytes) -> None:
        self.unread += data
        self.go_on()

    def go_on(self) -> None:
        """Read while there is something to read and nothing stops it."""
        while self.read_once():
            pass

    def read_once(self) -> bool:
        """Read as much as the stream wants. False: nothing is to be read, or the flow is stopped."""
        if not self.unread or self.stopped:
            return False
        want = self.stream.want
        assert want > 0, "a stream that is read wants bytes"
        size = min(want, READ_SIZE - len(self.kept), len(self.unread))
        data = self.kept + self.unread[:size]
        del self.unread[:size]
        self._run(data)
        return True

    def parse_kept(self) -> None:
        """Take steps again for what has been kept, then read on."""
        self.run_kept()
        self.go_on()

    def run_kept(self) -> None:
        """Take steps again for what has been kept."""
        self.stopped = 0
        if self.kept:
            self._run(self.kept)

    def _run(self, data: bytes) -> None:
        memory = self.pair.world.memory
        memory.data[: len(data)] = data
        self._keep(b"")
        self._take_steps(len(data))
        self.pair.after_step()

    def _take_steps(self, end: int) -> None:
        stream, buf = self.stream, self.pair.world.memory.data
        start = pos = 0
        idle = 0
        while pos < end:
            step = stream.take(pos, end, self.pair.world.clock())
            self.steps.append(step if step < 0 else 1)
            idle = idle + 1 if step == YIELD else 0
            assert idle < 10_000, "a step makes progress"
            if step > pos:
                assert step <= end
                pos = step
            elif step == REPLACE:
                self.out += buf[start:pos] + stream.output
                assert pos <= stream.resume_at <= end
                start = pos = stream.resume_at
            elif step != YIELD:
                assert step in (NEED, HOLD, FULL, WAIT, DRAINED, DELAY_RESPONSE)
                self.out += buf[start:pos]
                start = pos
                self._stop_at(step, pos, end)
                return
            if self.pair.breaks and pos < end:  # the turn is over: what is left is kept, and parsed in the next turn
                self.out += buf[start:pos]
                left = bytes(buf[pos:end])
                buf[:end] = bytes(end)  # others use the buffer meanwhile
                buf[: len(left)] = left
                start = pos = 0
                end = len(left)
        self.out += buf[start:pos]

    def _stop_at(self, step: int, pos: int, end: int) -> None:
        if step == DRAINED:
            self.stopped = DRAINED
            return
        self._keep(bytes(self.pair.world.memory.data[pos:end]))
        if step == NEED:
            return
        self.stopped = step
        if step == HOLD:
            self.pair.on_hold(self)

    def _keep(self, kept: bytes) -> None:
        self.kept = kept
        self.most_kept = max(self.most_kept, len(kept))
        holding = self.stream.holding
        self.pair.world.memory.update(holding, len(kept), 0, holding.reserved)


class Pair:
    """A client, a broker, and the streams between them."""

    def __init__(self, world: World, *, cuts: Sequence[int] = (), breaks: bool = False, peer: str = "peer:1") -> None:
        self.world = world
        self.cuts = cuts
        self.breaks = breaks
        context = world.context
        self.connection = Connection(context, Identity(world.config, world.registry, world.metrics.entities, peer))
        self.request_stream = RequestStream(self.connection, world.kinds)
        self.response_stream = ResponseStream(self.connection)
        self.to_broker = bytearray()
        self.to_client = bytearray()
        self.requests = Flow(self, self.request_stream, self.to_broker)
        self.responses = Flow(self, self.response_stream, self.to_client)

    def client_sends(self, *data: bytes) -> None:
        for piece in self._cut(b"".join(data)):
            self.requests.feed(piece)

    def broker_sends(self, *data: bytes) -> None:
        for piece in self._cut(b"".join(data)):
            self.responses.feed(piece)

    def _cut(self, data: bytes) -> Iterator[bytes]:
        at = 0
        sizes = cycle(self.cuts or [len(data)])
        while at < len(data):
            size = next(sizes)
            yield data[at : at + size]
            at += size

    def sent(self) -> list[bytes]:
        """The whole frames that the broker has received."""
        return frames_of(self.to_broker)

    def received(self) -> list[bytes]:
        """The whole frames that the client has received."""
        return frames_of(self.to_client)

    # ---- what a session does

    @property
    def held(self) -> DataFrame | None:
        return self.connection.held

    @property
    def is_held(self) -> bool:
        return self.held is not None

    def on_hold(self, flow: Flow) -> None:
        frame = self.held
        assert frame is not None
        frame.owner = self
        self.world.holds.add(frame)

    def release(self, frame: DataFrame) -> None:
        """The held frame asks again; it has been taken out of its queue."""
        frame.ticket.at_limit = frame.limit
        self._go_on_after_hold()
        if self.connection.frame is frame and frame.state is Life.RELEASED:
            self.request_stream.put_back(self.world.clock())

    def read_on(self) -> None:
        """All bytes have been fed."""

    def _go_on_after_hold(self) -> None:
        self.requests.parse_kept()

    def after_step(self) -> None:
        connection = self.connection
        responses = self.responses
        if connection.needs_session and not responses.kept and not responses.stream.remaining:
            self.to_client += connection.take_answers(self.world.clock())
        connection.needs_session = connection.owed_bytes > 0 or self.requests.stopped == FULL
        if self.requests.stopped == FULL and connection.has_room_again:
            self.requests.parse_kept()

    def grant(self) -> None:
        """Let responses go on that memory is there for."""
        if self.response_stream.holding in self.world.memory.grant():
            self.responses.parse_kept()

    def end_delay(self) -> None:
        """The delay of the next response is over."""
        delay = self.response_stream.delay
        assert delay is not None
        self.world.clock.now_ns = max(self.world.clock.now_ns, delay.until_ns)
        self.response_stream.delay = None
        self.responses.parse_kept()

    def hang_up(self) -> None:
        """Both connections are closed."""
        now_ns = self.world.clock()
        if self.held is not None:
            self.world.holds.remove(self.held)
        self.request_stream.end(now_ns)
        for flow in (self.requests, self.responses):
            self.world.memory.forget(flow.stream.holding)
        self.connection.cancel_all(now_ns)


def pass_holds(world: World, most: int = 10_000) -> None:
    """Let time pass until nothing is held, as the timers do; reservations lapse meanwhile."""
    for _ in range(most):
        if not world.holds.limits:
            return
        pass_one_hold(world)
    raise AssertionError("what is held never passes")


def pass_one_hold(world: World) -> None:
    """Let time pass until one frame has its turn."""
    for _ in range(100_000):
        for limit in world.holds.limits:
            frame = world.holds.next(limit, world.clock())
            if frame is not None:
                release(frame)
                return
        pass_time(world, min(limit.debt_ns(world.clock()) for limit in world.holds.limits))
    raise AssertionError("what is held has no turn")


def pass_time(world: World, time_ns: int) -> None:
    """Let time pass, at most until reservations lapse: that may change what is due."""
    world.clock.now_ns += min(time_ns, LAPSE_NS // 10) if world.holds._reserving else time_ns
    world.holds.lapse(world.clock())


def lapse(world: World) -> None:
    """A second passes in which nothing arrives."""
    world.clock.now_ns += LAPSE_NS
    world.holds.lapse(world.clock())


def run_until(world: World, ends_ns: int) -> None:
    """Let time pass; held frames pass in their turn."""
    while world.clock() < ends_ns:
        due_ns = [limit.debt_ns(world.clock()) for limit in world.holds.limits]
        pass_time(world, min([*due_ns, ends_ns - world.clock()]))
        while release_due(world):
            pass


def release_due(world: World) -> bool:
    """Release one frame of each limit that is out of debt. Returns whether there was one."""
    frames = [frame for limit in list(world.holds.limits) if (frame := world.holds.next(limit, world.clock()))]
    for frame in frames:
        release(frame)
    return bool(frames)


def release(frame: DataFrame) -> None:
    """It is the turn of this frame, which has been taken out of its queue."""
    frame.on(FrameEvent.RELEASE)
    assert frame.owner is not None
    frame.owner.release(frame)


def frames_of(data: bytes | bytearray) -> list[bytes]:
    """The whole frames in `data`, which ends at the end of one."""
    found = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        assert end <= len(data), "the last frame is not whole"
        found.append(bytes(data[at:end]))
        at = end
    return found


def correlation_ids(frames: Iterable[bytes], *, requests: bool) -> list[int]:
    """Those of requests, or of responses."""
    at = 8 if requests else 4
    return [int.from_bytes(frame[at : at + 4], "big") for frame in frames]
