"""A connection pair without sockets: bytes go in on both sides, and the test sees what each side receives.

    world = World(quotas=[without_burst("client-id=etl produce=1000")])
    pair = Pair(world)
    pair.client_sends(produce(1))
    assert pair.to_broker == produce(1)
    pair.broker_sends(produced(1))
    assert pair.to_client == produced(1)

It is a session over wires in memory (`tests.proxy.wires`). Time passes only when the test says so, and held frames are
released by the functions below. `Pair(cuts=...)` delivers the bytes in pieces of these sizes, again and again;
`Pair(breaks=True)` ends each turn after one step. An error for which the session closes is raised.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from typing import Any, cast

from proxy.background.host import Host
from proxy.config.client_settings import ClientSettings
from proxy.config.config import Config, QuotaOptions
from proxy.config.quota_sources import Quotas
from proxy.process.assemble import assemble
from proxy.sessions.session import Session
from proxy.sessions.shared import ClientAddress
from proxy.sessions.slices import SLICE_NS
from proxy.streams.limited_request import LimitedRequest
from proxy.streams.memory import READ_SIZE
from proxy.streams.request import Request
from quotas.admission.limit import Limit
from quotas.entry import QuotaEntry
from tests.proxy.conversation import Clock, cut
from tests.proxy.frames import api_versions
from tests.proxy.wires import Loop, MemoryWire, WorkClock

_OTHERS_BYTES = bytes(READ_SIZE)


class Network:
    """Connects at once: a session's two sockets are wires in memory."""

    def to_client(self, wire: MemoryWire) -> MemoryWire:
        return wire

    to_broker = to_client

    def connect(self, wires: list[MemoryWire], _: object, connected: Callable[..., None], *_others: object) -> None:
        connected(wires[0], "broker:9092")


class World:
    """What all pairs of one proxy share."""

    def __init__(
        self, quotas: Iterable[QuotaEntry] | QuotaOptions = (), *, late_ns: Sequence[int] = (0,), **options: Any
    ) -> None:
        self.clock = Clock()
        self.loop = Loop(self.clock, late_ns)
        self.work = WorkClock()
        if not isinstance(quotas, QuotaOptions):
            quotas = QuotaOptions(entries=tuple(quotas))
        config = self.config = Config(bootstrap_servers=(("127.0.0.9", 9092),), quotas=quotas, **options)
        active = Quotas({"": quotas.entries}, quotas.share, config.enforcement.dry_run)
        host = Host(clock=self.clock, work_clock=self.work)
        self.shared = assemble(config, active, cast("Any", self.loop), host, lambda: 0, salt=0)
        self.shared.upstream = self.shared.wires = cast("Any", Network())
        self.shared.tls.upstream = ClientSettings()  # tests play the proxy's own login
        self.kinds = self.shared.kinds
        self.context = context = self.shared.context
        self.metrics, self.registry = context.metrics, context.registry
        self.memory, self.report = context.memory, context.actions.report

    @property
    def queues(self) -> list[Limit]:
        """The limits with waiters."""
        return [limit for limit in self.shared.wakeups._timers if limit.waiters.waiting]

    def debts(self) -> dict[tuple[str, str], float]:
        """By entity and limit, in seconds; of limits that owe something."""
        now_ns = self.clock()
        owed = ((limit, limit.debt_ns(now_ns)) for limit in self.registry.limits_in_use())
        return {(str(limit.entity), limit.name): debt_ns / 1e9 for limit, debt_ns in owed if debt_ns}

    def levels(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Debt in ns and headroom of each limit in use, by entity and name."""
        now_ns = self.clock()
        return {
            (str(limit.entity), limit.name): (limit.debt_ns(now_ns), limit.algorithm.headroom(now_ns))
            for limit in self.registry.limits_in_use()
        }

    def passed(self) -> dict[tuple[str, str], int]:
        """What each limit in use was charged in all, by entity and name."""
        return {(str(limit.entity), limit.name): limit.algorithm.passed for limit in self.registry.limits_in_use()}

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
            (entity.client_id, topic): (traffic.produce_bytes, traffic.produce_messages, traffic.fetch_bytes)
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


class Pair:
    """A client, a broker, and the session between them."""

    @staticmethod
    def on_closed(_: Session) -> None:
        """Raise the error for which the session is closed, if there is one."""
        error = sys.exception()
        if error is not None:
            raise error

    def __init__(self, world: World, *, cuts: Sequence[int] = (), breaks: bool = False) -> None:
        self.world = world
        self.cuts = cuts
        if breaks:
            world.work.step_ns = SLICE_NS
            world.loop.before_round = self._use_buffer
        self.client, self.broker = MemoryWire(world.loop), MemoryWire(world.loop)
        self.to_broker, self.to_client = self.broker.taken, self.client.taken
        self.session = Session(world.shared, cast("Any", self.client), ClientAddress("peer", 1, ()), self.on_closed)
        self.session.connect(lambda _: cast("Any", [self.broker]))
        self.connection = self.session.connection
        self.requests, self.responses = self.session.requests, self.session.responses
        self.request_stream, self.response_stream = self.session.request_stream, self.session.response_stream

    def _use_buffer(self) -> None:
        """As others do between two turns."""
        self.world.memory.data[:] = _OTHERS_BYTES

    def client_sends(self, *data: bytes) -> None:
        self._receives(self.client, b"".join(data))

    def broker_sends(self, *data: bytes) -> None:
        self._receives(self.broker, b"".join(data))

    def exchange(self, request: bytes, response: bytes) -> None:
        """The client sends the one, the broker answers with the other."""
        self.client_sends(request)
        self.broker_sends(response)

    def _receives(self, wire: MemoryWire, data: bytes) -> None:
        for piece in cut(data, cycle(self.cuts)):
            wire.receive(piece)
            self.world.loop.run()

    def sent(self) -> list[bytes]:
        """The whole frames that the broker has received."""
        return frames_of(self.to_broker)

    def received(self) -> list[bytes]:
        """The whole frames that the client has received."""
        return frames_of(self.to_client)

    @property
    def held(self) -> Request | None:
        """The request that waits for a limit."""
        return self.request_stream.held

    @property
    def held_response(self) -> LimitedRequest | None:
        """What waits for a limit with its response."""
        return self.response_stream.held

    @property
    def in_flight(self) -> list[int]:
        """The correlation ids of requests in flight."""
        return [correlation_id for correlation_id, _ in self.response_stream.in_flight]

    @property
    def is_held(self) -> bool:
        return self.session.upstream is not None and self.request_stream.held is not None

    def after_step(self) -> None:
        """The session has something to do: see `Connection.needs_session`."""
        self.session.after_step()
        self.world.loop.run()

    def end_delay(self) -> None:
        """The delay of the next response is over."""
        delay = self.response_stream.delay
        assert delay is not None
        self.world.clock.now_ns = max(self.world.clock.now_ns, delay.until_ns)
        self.session.throttling.end_delay()
        self.world.loop.run()

    def hang_up(self) -> None:
        """Both connections are closed."""
        self.session.close()
        self.world.loop.run()


def named(world: World, name: str, version: str) -> Pair:
    """A connection whose client has told this software, and knows what the broker can do."""
    pair = Pair(world)
    pair.client_sends(api_versions(99, 3, name, version))
    pair.connection.is_negotiated = True
    pair.response_stream.in_flight.clear()
    pair.to_broker.clear()
    return pair


def pass_holds(world: World, most: int = 10_000) -> None:
    """Let time pass until nothing is held, as the timers do."""
    for _ in range(most):
        if not world.queues:
            return
        pass_one_hold(world)
    raise AssertionError("what is held never passes")


def pass_one_hold(world: World) -> None:
    """Let time pass until one request, or one response, has its turn."""
    for _ in range(100_000):
        for limit in world.queues:
            if not limit.debt_ns(world.clock()):
                release(world, limit)
                return
        world.clock.now_ns += min(limit.debt_ns(world.clock()) for limit in world.queues)
    raise AssertionError("what is held has no turn")


def run_until(world: World, ends_ns: int) -> None:
    """Let time pass; what is held passes in its turn."""
    while world.clock() < ends_ns:
        due_ns = [limit.debt_ns(world.clock()) for limit in world.queues]
        world.clock.now_ns += min([*due_ns, ends_ns - world.clock()])
        while release_due(world):
            pass


def release_due(world: World) -> bool:
    """Release the first waiter of each limit that is out of debt. Returns whether there was one."""
    due = [limit for limit in world.queues if not limit.debt_ns(world.clock())]
    for limit in due:
        release(world, limit)
    return bool(due)


def release(world: World, limit: Limit) -> LimitedRequest:
    """It is the turn of the first waiter of this limit. Returns it."""
    wakeups = world.shared.wakeups
    request: LimitedRequest = limit.waiters.pop()
    wakeups._release(request, 0)
    if not limit.waiters.waiting:
        wakeups._timers.pop(limit).cancel()
    world.loop.run()
    return request


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
