"""What limits promise, whatever clients, brokers and operators do: frames of any size in any pieces, stalls, hang-ups,
changed rates and limits, dry runs.

- In any time T a token bucket charges at most its burst, what it earns, and one largest frame.
- The last limit of a frame charges what passes. An earlier one also charges, once, one read of each frame that waits at
  a later limit, or did when its connection ended.
- A frame that takes a limit into debt is not stopped by that debt.
- Every frame whose connection stays passes in the end, and nothing is left: no queue, timer, memory or open fetch.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.apis import FETCH
from proxy.streams.handlers.fetch import FetchRequest
from proxy.streams.handlers.produce import ProduceRequest
from proxy.streams.limited_request import LimitedRequest
from quotas.admission.limit import Limit
from quotas.algorithms.token_bucket import TokenBucket
from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec
from tests.proxy.frames import batch, fetch, fetched, heartbeat, heartbeat_answer, produce_records, produced
from tests.proxy.streams.pair import Pair, World, frames_of, release
from tests.proxy.streams.waiting import decide_again, replace_quotas

SECOND = 1_000_000_000
RATES = (20_000, 150_000, 1_000_000)
#: Each with a rate of bytes or of messages a second, and a burst; one is no token bucket.
OWN = (
    "client-id=<default>,producer_byte_rate={},consumer_byte_rate={}",
    "client-id=etl,producer_byte_rate={},consumer_byte_rate={}",
    "client-id=<default>,producer_byte_rate={},algorithm=sampled-window",
)
TOTAL = (
    "total,producer_byte_rate={},consumer_byte_rate={}",
    "total,bytes_in_rate={},consumer_byte_rate={}",
    "total,producer_byte_rate={},bytes_in_rate={}",
)
SPECS = (
    "user=ANONYMOUS,consumer_byte_rate={}",
    "client-id=web,request_rate=20",
    "resource-group=g,client-id=etl,bytes_in_rate={}",
    "resource-group=h,topic=a,topic=b,messages_in_rate=50",
    "topic=a,bytes_in_rate={}",
    "topic=<default>,bytes_in_rate={},messages_in_rate=70",
)
SIZES = (61, 3_000, 40_000, 600_000)
PIECES = (30, 100, 5_000, 100_000, 2_000_000, 2_000_000)


def quota_of(spec: str, rate: int, burst_seconds: Fraction) -> QuotaEntry:
    entry = parse_spec(spec.replace("{}", str(rate)))
    return entry if "algorithm" in spec else replace(entry, options=replace(entry.options, burst_seconds=burst_seconds))


rates = st.sampled_from(RATES)
bursts = st.sampled_from((Fraction(0), Fraction(1, 10), Fraction(1)))
#: A limit of the client, one of the total, and others.
quotas_drawn = st.builds(
    lambda own, total, others: [own, total, *others],
    st.builds(quota_of, st.sampled_from(OWN), rates, bursts),
    st.builds(quota_of, st.sampled_from(TOTAL), rates, bursts),
    st.lists(st.builds(quota_of, st.sampled_from(SPECS), rates, bursts), max_size=3),
).filter(lambda quotas: len({entry.entity for entry in quotas}) == len(quotas))
sizes = st.sampled_from(SIZES)
topics = st.dictionaries(st.sampled_from("abc"), sizes, min_size=1)
requests = st.one_of(
    st.tuples(topics, st.sampled_from((0, 1, 1))), st.tuples(st.just("fetch"), sizes), st.just(("heartbeat", 0))
)
at = st.integers(0, 3)
events = st.one_of(
    st.tuples(st.just("sends"), at, st.tuples(st.sampled_from(PIECES), requests)),
    st.tuples(st.just("sends"), at, st.tuples(st.sampled_from(PIECES), requests)),
    st.tuples(st.just("is answered"), at, st.sampled_from(PIECES)),
    st.tuples(st.just("is answered"), at, st.sampled_from(PIECES)),
    st.tuples(st.just("time passes"), at, st.sampled_from((1, 30, 400, 3_000, 30_000))),
    st.tuples(st.just("time passes"), at, st.sampled_from((1, 30, 400, 3_000, 30_000))),
    st.tuples(st.just("hangs up"), at, st.none()),
    st.tuples(st.just("rates change"), at, st.sampled_from((Fraction(1, 3), 2, 10))),
    st.tuples(st.just("limits change"), at, st.none()),
    st.tuples(st.just("is decided again"), at, st.none()),
)


# ---- one connection
@dataclass
class Frame:
    """A frame of a stream: where it begins and ends there, and where which records are."""

    start: int
    end: int
    records: dict[str, tuple[int, int]] = field(default_factory=dict)
    is_data: bool = True

    def passed(self, size: int) -> int:
        """Bytes of it that passed, of so many of its stream."""
        return max(0, min(size, self.end) - self.start)


class Peer:
    """A client that sends what it has in pieces, and a broker that answers what has come to it, in pieces."""

    def __init__(self, world: World, client_id: str) -> None:
        self.pair = Pair(world)
        self.client_id = client_id
        self.sent = b""
        self.unsent = b""
        self.requests: list[Frame] = []
        #: Bytes that a fetch brings, in their order.
        self.fetch_sizes: list[int] = []
        self.answers = b""
        self.unanswered = b""
        self.responses: list[Frame] = []
        self.seen = self.number = 0
        self.is_gone = False

    def ask(self, what: Any, size: Any) -> None:
        self.number += 1
        start = len(self.sent) + len(self.unsent)
        if what == "fetch":
            made = fetch(self.number, client_id=self.client_id)
            self.fetch_sizes.append(size)
        elif what == "heartbeat":
            made = heartbeat(self.number, self.client_id)
        else:
            batches = {name: batch(len(name) + 2, length) for name, length in what.items()}
            records = {name: [each] for name, each in batches.items()}
            made = produce_records(self.number, records, acks=size, client_id=self.client_id)
        frame = Frame(start, start + len(made), is_data=isinstance(what, dict))
        if isinstance(what, dict):
            ends = 0
            for name, each in batches.items():
                begins = made.index(each, ends)
                ends = begins + len(each)
                frame.records[name] = start + begins, start + ends
        self.requests.append(frame)
        self.unsent += made

    def send(self, size: int) -> None:
        data, self.unsent = self.unsent[:size], self.unsent[size:]
        self.sent += data
        self.pair.client_sends(data)

    def answer(self, size: int) -> None:
        """The broker answers the requests that have come whole and expect it."""
        for each in whole(self.pair.to_broker)[self.seen :]:
            self.seen += 1
            number, api = int.from_bytes(each[8:12]), int.from_bytes(each[4:6])
            if number not in self.pair.in_flight:
                continue
            if api == FETCH:
                made = fetched(number, size=self.fetch_sizes.pop(0))
            else:
                made = produced(number) if api == 0 else heartbeat_answer(number)
            start = len(self.answers) + len(self.unanswered)
            self.responses.append(Frame(start, start + len(made), is_data=api == FETCH))
            self.unanswered += made
        data, self.unanswered = self.unanswered[:size], self.unanswered[size:]
        self.answers += data
        self.pair.broker_sends(data)

    def hang_up(self) -> None:
        self.is_gone = True
        self.pair.hang_up()

    # ---- what has passed

    @property
    def produced_bytes(self) -> int:
        """Without the length fields."""
        size = len(self.pair.to_broker)
        return sum(max(0, frame.passed(size) - 4) for frame in self.requests if frame.is_data)

    @property
    def fetched_bytes(self) -> int:
        return sum(frame.passed(len(self.pair.to_client)) for frame in self.responses if frame.is_data)

    def record_bytes(self, name: str | None) -> int:
        """Of a topic, or all of them."""
        size = len(self.pair.to_broker)
        found = (span for frame in self.requests for topic, span in frame.records.items() if name in (None, topic))
        return sum(max(0, min(size, end) - begin) for begin, end in found)

    # ---- what waits

    def held(self) -> Iterator[tuple[LimitedRequest, int, bool]]:
        """What waits for a limit, the bytes of the chunk that does, and whether some of the frame has passed."""
        pair = self.pair
        request, response = pair.held, pair.held_response
        if request is not None:
            left = pair.request_stream.remaining
            unread = request.unread if isinstance(request, ProduceRequest) else 0
            yield request, (left or request.size) - unread, left > 0
        if response is not None:
            assert isinstance(response, FetchRequest)
            left = pair.response_stream.remaining
            yield response, (left or response.size) - response.uncharged, left > 0

    def under_way(self) -> Iterator[tuple[int, int]]:
        """The number of each frame that has passed in part, and how many bytes of it have not."""
        requests, responses = self.pair.request_stream, self.pair.response_stream
        for stream in (requests, responses):
            if stream.remaining and isinstance(stream.current, LimitedRequest):
                yield stream.current.number, stream.remaining


def whole(data: bytearray) -> list[bytes]:
    """The frames that have come to their ends."""
    end = 0
    while end + 4 <= len(data) and end + 4 + int.from_bytes(data[end : end + 4]) <= len(data):
        end += 4 + int.from_bytes(data[end : end + 4])
    return frames_of(data[:end])


# ---- the promises
class Meter:
    """What one limit has charged, beyond what it earned. In nanounits."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.charged = limit.algorithm.passed
        self.above: int | Fraction = 0
        self.most_burst = 0
        #: The number of the frame that was charged last; 0: not known.
        self.last = 0

    def earn(self, time_ns: int) -> None:
        self.above = max(0, self.above - self.limit.algorithm.rate * time_ns)

    def charge(self) -> int:
        charged = self.limit.algorithm.passed - self.charged
        self.charged += charged
        self.above += charged * SECOND
        algorithm = self.limit.algorithm
        self.most_burst = max(self.most_burst, int(algorithm.rate * algorithm.burst_ns) + 1)
        return charged


class Traffic:
    """Connections to one proxy, and what is checked after each step."""

    def __init__(self, quotas: Sequence[QuotaEntry], clients: Sequence[str]) -> None:
        self.world = World(quotas)
        self.quotas = list(quotas)
        self.clients = clients
        self.peers = [Peer(self.world, client_id) for client_id in clients]
        self.gone: list[Peer] = []
        self.meters: dict[Limit, Meter] = {}
        #: Of connections that ended while a frame waited: what their earlier limits had charged at most.
        self.lost = 0
        self.counts_exactly = True
        self.largest = 0

    # ---- steps

    def happen(self, what: str, index: int, value: Any) -> None:
        peer = self.peers[index % len(self.peers)]
        match what:
            case "sends":
                size, request = value
                if len(peer.unsent) < size:
                    peer.ask(*request)
                self.step(peer.send, size)
            case "is answered":
                self.step(peer.answer, value)
            case "time passes":
                self.pass_time(self.world.clock() + value * 1_000_000)
            case "hangs up":
                self.lost += sum(read for _, read, _ in peer.held())
                peer.hang_up()
                self.gone.append(peer)
                self.peers[self.peers.index(peer)] = Peer(self.world, peer.client_id)
            case "rates change":
                self.quotas = [
                    replace(entry, limits={name: rate * value for name, rate in entry.limits.items()})
                    for entry in self.quotas
                ]
                self.change()
            case "limits change":
                self.quotas = self.quotas[1:] or [parse_spec("total,producer_byte_rate=100000")]
                self.counts_exactly = False
                self.change()
            case "is decided again":
                decide_again(self.world)
                self.check()

    def change(self) -> None:
        for meter in self.meters.values():
            meter.charge()
        replace_quotas(self.world, self.quotas)
        self.check()

    def step(self, act: Any, *arguments: Any) -> None:
        """One connection does something."""
        held = {request.number for peer in self.peers for request, _, _ in peer.held()}
        under_way = self.under_way()
        act(*arguments)
        self.check(under_way, held)

    def under_way(self) -> dict[int, int]:
        """Bytes that have not passed of the frames that have passed in part, by number."""
        return dict(each for peer in self.peers for each in peer.under_way())

    def pass_time(self, ends_ns: int) -> None:
        """What is held passes in its turn."""
        world = self.world
        while world.clock() < ends_ns:
            time_ns = min([*[limit.debt_ns(world.clock()) for limit in world.queues], ends_ns - world.clock()])
            for meter in self.meters.values():
                meter.earn(time_ns)
            world.clock.now_ns += time_ns
            turns = 0
            while self.release_one():
                turns += 1
                assert turns < 1_000, "none of those that wait gets on"

    def release_one(self) -> bool:
        for limit in self.world.queues:
            if not limit.debt_ns(self.world.clock()):
                held = {request.number for peer in self.peers for request, _, _ in peer.held()}
                self.check(self.under_way(), held - {release(self.world, limit).number})
                return True
        return False

    # ---- checks

    def check(self, under_way: dict[int, int] | None = None, held: set[int] | None = None) -> None:
        """One connection has done something, when these frames had passed in part, and others were held."""
        for limit in self.world.registry.limits_in_use():
            if limit not in self.meters:
                self.meters[limit] = Meter(limit)
        sizes = [frame.end - frame.start for peer in self.peers for frame in [*peer.requests, *peer.responses]]
        self.largest = max([self.largest, *sizes])
        charged = {limit for limit, meter in self.meters.items() if meter.charge()}
        if not self.world.context.actions.enforces:
            return
        if under_way is not None and held is not None:
            self.check_holds(under_way, held, charged)
        for limit, meter in self.meters.items():
            if isinstance(limit.algorithm, TokenBucket):
                assert meter.above <= meter.most_burst + self.largest * SECOND, limit
        if self.counts_exactly:
            for limit in self.world.registry.limits_in_use():
                self.check_sum(limit)

    def check_holds(self, under_way: dict[int, int], held: set[int], charged: set[Limit]) -> None:
        """A frame that has begun to pass is not stopped by its own debt."""
        for peer in self.peers:
            for request, _, _ in peer.held():
                limit, number = request.limit, request.number
                assert limit is not None
                if number in under_way and number not in held and limit.debt_ns(self.world.clock()):
                    assert limit not in charged, limit
                    assert self.meters[limit].last != number, limit
        # Where one frame has gone on, and no other has begun, that one was charged.
        now = self.under_way()
        moved = [number for number, left in under_way.items() if now.get(number) != left]
        is_alone = len(moved) == 1 and now.keys() == under_way.keys()
        for limit in charged:
            self.meters[limit].last = moved[0] if is_alone else 0

    def check_sum(self, limit: Limit) -> None:
        passed = self.passed(limit)
        if passed is None:
            return
        extra = limit.algorithm.passed - passed
        waiting = sum(
            read for peer in self.peers for request, read, _ in peer.held() if limit not in dict(request.charges)
        )
        assert 0 <= extra <= waiting + self.lost, limit
        if self.is_last(limit):
            assert extra == 0, limit

    def is_last(self, limit: Limit) -> bool:
        """Whether frames pass no other limit after it."""
        if str(limit.entity) != "total":
            return False
        names = {each.name for each in self.world.registry.limits_in_use() if str(each.entity) == "total"}
        return limit.name != "producer_byte_rate" or "bytes_in_rate" not in names

    def passed(self, limit: Limit) -> int | None:
        """What has passed of what this limit counts; None: it counts no bytes."""
        kind, _, name = str(limit.entity).partition(":")
        peers = [*self.peers, *self.gone]
        if kind == "client-id":
            peers = [peer for peer in peers if peer.client_id == name]
        if kind == "resource-group":
            peers = [peer for peer in peers if peer.client_id == "etl"]
        if limit.name == "producer_byte_rate":
            return sum(peer.produced_bytes for peer in peers)
        if limit.name == "consumer_byte_rate":
            return sum(peer.fetched_bytes for peer in peers)
        if limit.name == "bytes_in_rate":
            return sum(peer.record_bytes(name if kind == "topic" else None) for peer in peers)
        return None

    # ---- the end

    def finish(self) -> None:
        """All that was begun is sent and answered: all of it passes."""
        for _ in range(10_000):
            for peer in self.peers:
                self.step(peer.send, sys.maxsize)
                self.step(peer.answer, sys.maxsize)
            if not self.world.queues:
                break
            due_ns = min(limit.debt_ns(self.world.clock()) for limit in self.world.queues)
            self.pass_time(self.world.clock() + max(1, due_ns))
        else:
            raise AssertionError("what is held never passes")
        for peer in self.peers:
            assert len(peer.pair.to_broker) == len(peer.sent)
            assert [each[8:12] for each in peer.pair.sent()] == [each[8:12] for each in frames_of(peer.sent)]
            assert (len(peer.pair.to_client), peer.pair.in_flight) == (len(peer.answers), [])
            assert peer.pair.request_stream.current is None
            peer.pair.hang_up()
        world = self.world
        wakeups = world.shared.wakeups
        assert (world.queues, wakeups._timers, wakeups._owners, world.loop.pending) == ([], {}, {}, [])
        assert world.memory.buffered_bytes == world.memory.used == 0
        assert all(world.registry.resolve("ANONYMOUS", client_id).fetches == 0 for client_id in ("etl", "web"))


clients_drawn = st.sampled_from((("etl",), ("etl", "web"), ("etl", "etl", "web"), ("etl", "web", "etl", "web")))
drawn = st.lists(events, min_size=10, max_size=40)


@settings(max_examples=150)
@given(quotas_drawn, clients_drawn, drawn)
def test_promises_are_kept(quotas: list[QuotaEntry], clients: list[str], happening: list[tuple[str, int, Any]]) -> None:
    traffic = Traffic(quotas, clients)
    for what, index, value in happening:
        traffic.happen(what, index, value)
    traffic.finish()


@settings(max_examples=50)
@given(quotas_drawn, clients_drawn, drawn, drawn)
def test_they_do_so_after_a_dry_run(
    quotas: list[QuotaEntry],
    clients: list[str],
    rehearsed: list[tuple[str, int, Any]],
    happening: list[tuple[str, int, Any]],
) -> None:
    """Which holds nothing, and whose debts are forgotten, as `--dry-run` and the admin port do."""
    traffic = Traffic(quotas, clients)
    traffic.counts_exactly = False
    actions, registry = traffic.world.context.actions, traffic.world.registry
    actions.change("auto", enforces=False)
    for what, index, value in rehearsed:
        traffic.happen(what, index, value)
        assert not any(list(peer.held()) for peer in traffic.peers)
    actions.change("auto", enforces=True)
    registry.forget_debts(traffic.world.clock(), sys.maxsize)
    traffic.meters.clear()
    decide_again(traffic.world)
    for what, index, value in happening:
        traffic.happen(what, index, value)
    actions.change("auto", enforces=False)
    decide_again(traffic.world)
    assert not any(list(peer.held()) for peer in traffic.peers)
    traffic.finish()
