"""Requests that are charged together: the same charges, decisions, metrics and bytes as one by one."""

import uuid
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.topics import TopicPartitions
from proxy.config.config import EnforcementOptions, UsageOptions
from proxy.enforcement.throttle_actions import ThrottleActions
from proxy.sessions.slices import SLICE_NS
from proxy.streams.batch_plan import MAX_PLANS
from quotas.algorithms.algorithm import ALGORITHMS
from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec
from tests.proxy import frames
from tests.proxy.frames import batch, heartbeat, produce_records
from tests.proxy.streams.pair import Pair, World, pass_holds
from tests.quotas.cost import calls_during

KNOWN_ID, UNKNOWN_ID = uuid.UUID(int=0x70), uuid.UUID(int=0x71)
#: Limits of each kind, by what they count; {} is the rate.
LIMITS = {
    "bytes": [
        "client-id=etl,producer_byte_rate={}",
        "total,producer_byte_rate={}",
        "client-id=etl,producer_byte_rate={},request_cost=300",
        "resource-group=costly,client-id=*,producer_byte_rate={},request_cost=16KB",
        "topic=rows,bytes_in_rate={}",
        "topic=<default>,bytes_in_rate={}",
        "total,bytes_in_rate={}",
        "resource-group=both,client-id=etl,topic=rows,bytes_in_rate={}",
    ],
    "messages": [
        "client-id=etl,request_rate={}",
        "total,request_rate={}",
        "topic=rows,messages_in_rate={}",
        "resource-group=clients,client-id=*,messages_in_rate={}",
    ],
    "producer ids": ["user=ANONYMOUS,producer_ids_rate={}"],
    "threshold": ["total,total.bytes.in.per.sec.threshold={}"],
}
RATES = {
    "bytes": [300, 9_000, 10**5, 10**9, 10**9],
    "messages": [2, 300, 10**6, 10**6],
    "producer ids": [1, 3],
    "threshold": [300, 10**9],
}
QUOTAS = st.lists(
    st.sampled_from(sorted(LIMITS)).flatmap(
        lambda unit: st.builds(
            lambda spec, rate, algorithm: spec.format(rate) + (algorithm if unit in ("bytes", "messages") else ""),
            st.sampled_from(LIMITS[unit]),
            st.sampled_from(RATES[unit]),
            st.sampled_from([f",algorithm={name}" for name in ALGORITHMS] + [",burst_seconds=0.1"]),
        )
    ),
    max_size=6,
)


@dataclass(frozen=True)
class Sent:
    """A Produce request: a topic with partitions of one batch each. `odd`: what makes it another."""

    topics: tuple[tuple[str | uuid.UUID, tuple[int, ...]], ...]
    version: int
    producer_id: int = -1
    messages: int = 1
    codec: int = 0
    acks: int = 1
    client_id: str = "etl"
    odd: str = ""

    def frame(self, number: int) -> bytes:
        def records(size: int) -> bytes | None:
            made = batch(self.messages, 61 + size, codec=self.codec, producer_id=self.producer_id)
            if self.odd == "two batches":
                return made + made
            if self.odd == "two producers":
                return made + batch(1, 70, producer_id=7)
            if self.odd == "no batch":  # magic 1
                return made[:16] + b"\x01" + made[17:]
            return None if self.odd == "no records" else made

        topics = {
            (topic if self.version >= 13 or isinstance(topic, str) else "rows"): [records(size) for size in sizes]
            for topic, sizes in self.topics
        }
        if self.version >= 13:
            topics = {(KNOWN_ID if isinstance(topic, str) else topic): made for topic, made in topics.items()}
        return produce_records(number, topics, self.version, self.acks, self.client_id)


ONE_PARTITION = st.tuples(
    st.tuples(st.sampled_from(["rows", "cols", UNKNOWN_ID]), st.tuples(st.sampled_from([0, 30, 66, 400, 16_400])))
)
SEVERAL = st.lists(
    st.tuples(st.sampled_from(["rows", "cols"]), st.lists(st.integers(0, 90), min_size=1, max_size=3).map(tuple)),
    min_size=1,
    max_size=2,
    unique_by=lambda drawn: drawn[0],
).map(tuple)
#: Longer than one read near a limit.
LONG = st.just((("cols", (66_000, 10)), ("rows", (500, 70))))
SENT = st.builds(
    Sent,
    topics=st.sampled_from([ONE_PARTITION] * 9 + [SEVERAL] * 9 + [LONG]).flatmap(lambda drawn: drawn),
    version=st.sampled_from([3, 8, 9, 12, 13]),
    producer_id=st.sampled_from([-1, 7, 7, 8]),
    messages=st.sampled_from([1, 5, 40, -1]),
    codec=st.sampled_from([0, 4]),
    acks=st.sampled_from([1, 1, -1, 0]),
    client_id=st.sampled_from(["etl", "etl", "web"]),
    odd=st.sampled_from([""] * 12 + ["two batches", "two producers", "no batch", "no records"]),
).filter(lambda sent: sent.acks != 0 or UNKNOWN_ID not in dict(sent.topics))  # its connection would be closed
#: The same request several times, as producers send them; or a heartbeat. An item is the number of messages and the
#: producer id of one, where they are others.
REPEATED = st.tuples(
    SENT | st.none(), st.lists(st.sampled_from([None] * 6 + [(3, 7), (3, 8), (3, -1), (90, 7)]), min_size=1, max_size=6)
)


@dataclass(frozen=True)
class Part:
    """What one connection sends at one time, and what happens then."""

    connection: int
    requests: list[tuple[Sent | None, list[tuple[int, int] | None]]]
    cuts: list[int]
    seconds: float
    then: str

    def data(self, first: int) -> bytes:
        sent = [(each, other) for each, others in self.requests for other in others]
        return b"".join(
            heartbeat(first + number)
            if each is None
            else (each if other is None else replace(each, messages=other[0], producer_id=other[1])).frame(
                first + number
            )
            for number, (each, other) in enumerate(sent)
        )


PARTS = st.lists(
    st.builds(
        Part,
        connection=st.integers(0, 1),
        requests=st.lists(REPEATED, min_size=1, max_size=4),
        cuts=st.lists(st.integers(1, 3_000), max_size=4),
        seconds=st.sampled_from([0, 0.001, 0.3, 1, 7, 4_000]),
        then=st.sampled_from(["", "", "holds pass", "limits change", "an hour passes", "a topic is learnt"]),
    ),
    min_size=1,
    max_size=6,
)


class Half:
    """One of two proxies that receive the same. `together`: whether it charges requests together."""

    def __init__(self, quotas: list[QuotaEntry], *, together: bool, dry_run: bool, by_topic: bool = False) -> None:
        self.quotas = quotas
        self.together = together
        self.world = World(
            quotas, enforcement=EnforcementOptions(dry_run=dry_run), usage=UsageOptions(by_topic=by_topic)
        )
        self.world.context.topics.learn([TopicPartitions("rows", KNOWN_ID.bytes, 3)])
        self.pairs = [Pair(self.world), Pair(self.world)]
        if not together:
            for pair in self.pairs:
                pair.request_stream._batches._most = 0

    def receive(self, part: Part, data: bytes) -> None:
        pair = self.pairs[part.connection]
        pair.cuts = part.cuts
        pair.client_sends(data)

    def go_on(self, part: Part) -> None:
        world = self.world
        world.clock.pass_seconds(part.seconds)
        if part.then == "holds pass":
            pass_holds(world)
        elif part.then == "limits change":
            world.registry.replace([*self.quotas, parse_spec("topic=cols,bytes_in_rate=5000")], world.clock())
        elif part.then == "an hour passes":
            world.registry.expire(world.clock())
        elif part.then == "a topic is learnt":
            world.context.topics.learn([TopicPartitions("cols", UNKNOWN_ID.bytes, 3)])

    def state(self) -> dict[str, Any]:
        """All that is to be the same."""
        world = self.world
        now_ns = world.clock.now_ns
        later: list[object] = []
        for seconds in (0, 0.7, 2, 6, 30):
            world.clock.now_ns = now_ns + int(seconds * 1e9)
            later.append(world.levels())
        world.clock.now_ns = now_ns
        return {
            "now": now_ns,
            "levels": later,
            "counts": world.counts(),
            "topics": world.topics(),
            "bytes": [bytes(pair.to_broker) for pair in self.pairs],
            "in flight": [[number for number, _ in pair.response_stream.in_flight] for pair in self.pairs],
            "holds": [hold_of(pair) for pair in self.pairs],
            "notices": [pair.connection.identity.notice.until_ns for pair in self.pairs],
            "unanswered": [pair.connection.sent_unanswered for pair in self.pairs],
        }


def hold_of(pair: Pair) -> tuple[object, ...]:
    """Where the held request waits, since when, and with how much."""
    if pair.held is None or pair.held.hold is None:
        return ()
    limit, *rest = pair.held.hold
    return repr(limit), pair.held.size, *rest


RUN = Sent((("rows", (400,)),), 12, producer_id=7)
COLS = replace(RUN, topics=(("cols", (400,)),))
LATE = replace(RUN, topics=(("cols", (66_000, 10)), ("rows", (20_000, 70))))
EMPTY = replace(RUN, topics=(("rows", (0,)),), version=3)
ONE: list[tuple[int, int] | None] = [None]
SIX = ONE * 6


@pytest.mark.pure  # it replaces a method
@settings(max_examples=150)
@given(QUOTAS, PARTS, st.booleans(), st.booleans())
@example(
    ["client-id=etl,producer_byte_rate=9000,burst_seconds=0.1"],
    [Part(0, [(EMPTY, [None] * 5)], [], 0, ""), Part(0, [(replace(EMPTY, version=9), [None] * 4)], [], 0, "")],
    False,
    False,
)
@example(
    ["client-id=etl,producer_byte_rate=2000", "topic=rows,messages_in_rate=30,algorithm=sampled-window"],
    [Part(0, [(RUN, SIX)], [700], 1, ""), Part(1, [(RUN, SIX)], [], 0.3, "holds pass")],
    False,
    True,
)
@example(
    ["user=ANONYMOUS,producer_ids_rate=1"],
    [Part(0, [(None, ONE), (replace(RUN, version=3), ONE), (replace(RUN, version=3, acks=0), ONE)], [], 0, "")],
    False,
    True,
)
@example(
    ["topic=rows,bytes_in_rate=1GB", "topic=cols,messages_in_rate=1000000,algorithm=ewma"],
    [Part(0, [(COLS, SIX)], [], 0, "limits change"), Part(0, [(COLS, SIX)], [], 0, "")],
    False,
    True,
)
@example(
    ["topic=rows,bytes_in_rate=9000"], [Part(0, [(COLS, SIX), (LATE, ONE), (COLS, SIX)], [70_000], 0, "")], False, True
)
@example(
    ["user=ANONYMOUS,producer_ids_rate=3"],
    [Part(0, [(RUN, SIX)], [], 4_000, ""), Part(0, [(RUN, SIX), (RUN, [(1, 8), (1, 9), (1, 10)])], [], 0, "")],
    False,
    True,
)
@example(
    ["total,total.bytes.in.per.sec.threshold=300"],
    [Part(0, [(RUN, SIX)], [], 7, ""), Part(0, [(RUN, SIX)], [], 7, "holds pass")],
    False,
    True,
)
@example(
    ["user=ANONYMOUS,producer_ids_rate=1"],
    [
        Part(0, [(RUN, ONE)], [], 0, ""),
        Part(0, [(RUN, ONE), (replace(RUN, producer_id=8), ONE), (RUN, ONE)], [], 0, ""),
    ],
    False,
    True,
)
@example(
    ["topic=rows,bytes_in_rate=1GB,messages_in_rate=1000000000"],
    [Part(0, [(replace(RUN, messages=40), SIX)], [700, 1_000, 1_100], 0, ""), Part(0, [(RUN, SIX)], [1_500], 0, "")],
    False,
    False,
)
@example(
    ["topic=rows,bytes_in_rate=2000,burst_seconds=0.9", "client-id=etl,producer_byte_rate=3000"],
    [Part(0, [(RUN, SIX)], [700, 1_000, 1_100], 3, "holds pass"), Part(0, [(RUN, SIX)], [900, 1_500], 9, "")],
    False,
    False,
)
@example([], [Part(0, [(RUN, SIX), (COLS, [None, (90, 7)]), (LATE, ONE)], [700], 1, "")], False, True)
def test_together_as_one_by_one(quotas: list[str], parts: list[Part], dry_run: bool, by_topic: bool) -> None:
    """With the same time at each read. Time passes, and the state is compared, at boundaries of frames.

    Without throttle times before there is debt: a batch has one, by what is left after it, not one for each request.
    """
    entries = [parse_spec(spec) for spec in quotas]
    together, alone = (Half(entries, together=each, dry_run=dry_run, by_topic=by_topic) for each in (True, False))
    first = 0
    with patch.object(ThrottleActions, "soft", lambda *_: None):
        for part in parts:
            data = part.data(first)
            first += 1_000
            for half in (together, alone):
                half.receive(part, data)
            assert together.state() == alone.state()
            for half in (together, alone):
                half.go_on(part)
            assert together.state() == alone.state()


def outcome(half: Half, data: bytes) -> tuple[object, ...]:
    """What a new connection that sends this comes to."""
    pair = half.pairs[0] = Pair(half.world)
    if not half.together:
        pair.request_stream._batches._most = 0
    error = None
    try:
        pair.client_sends(data)
    except ProtocolError as raised:
        error = str(raised)
    in_flight = [number for number, _ in pair.response_stream.in_flight]
    return error, in_flight, error or bytes(pair.to_broker), half.world.levels(), half.world.counts()


@pytest.mark.parametrize("version", [8, 12, 13])
@pytest.mark.parametrize("sizes", [(0,), (66,), (90, 30)])
def test_any_other_byte(version: int, sizes: tuple[int, ...]) -> None:
    """In the last of three requests: what is charged together is well-formed, and read as one by one."""
    sent = replace(RUN, topics=(("rows", sizes),), version=version)
    entries = [parse_spec("topic=<default>,bytes_in_rate=1GB,messages_in_rate=1000000000")]
    together, alone = (Half(entries, together=each, dry_run=False) for each in (True, False))
    before, last = sent.frame(1) + sent.frame(2), sent.frame(3)
    payload = range(len(last) - sizes[-1] - 3 + 8, len(last) - 3)
    for at in sorted({*range(4, len(last))} - {*payload}):
        for value in {0, 1, 0x7F, 0x80, 0xFF, last[at] ^ 1} - {last[at]}:
            data = before + last[:at] + bytes([value]) + last[at + 1 :]
            assert outcome(together, data) == outcome(alone, data), (at, value)


# ---- what passes together
IDS = "user=ANONYMOUS,producer_ids_rate=3"
TOPIC = "topic=rows,bytes_in_rate=1GB,messages_in_rate=1000000"
CLIENT = "client-id=etl,producer_byte_rate=1GB,request_rate=1000000"


def pair_with(*specs: str, **options: Any) -> Pair:
    """A connection with these limits, which has sent one request."""
    world = World([parse_spec(spec) for spec in specs], **options)
    world.context.topics.learn([TopicPartitions("rows", KNOWN_ID.bytes, 3)])
    pair = Pair(world)
    pair.client_sends(RUN.frame(0))
    return pair


@pytest.mark.parametrize(
    ("version", "partitions"), [(3, 1), (8, 1), (9, 1), (9, 3), (12, 1), (12, 3), (13, 1), (13, 3)]
)
@pytest.mark.parametrize(
    ("specs", "by_topic"), [((TOPIC, IDS, CLIENT), False), ((TOPIC,), True), ((CLIENT,), True), ((), True)]
)
def test_a_full_read_is_charged_at_once(specs: tuple[str, ...], by_topic: bool, version: int, partitions: int) -> None:
    sent = replace(RUN, version=version, topics=(("rows", (400,) * partitions),))
    pair = pair_with(*specs, usage=UsageOptions(by_topic=by_topic))
    for number in range(1, 8):  # each time twice as many: the first one had a new producer id, and passed alone
        pair.client_sends(sent.frame(number))
    pair.world.work.step_ns = SLICE_NS  # each step is forwarded on its own
    pair.broker.sends.clear()
    pair.client_sends(*(sent.frame(number) for number in range(8, 48)))
    assert len(pair.broker.sends) == 1
    if CLIENT in specs:
        assert pair.world.levels()["client-id:etl", "request_rate"] == (0, 1_000_000 - 48)


@pytest.mark.parametrize("size", [16_400, 1_000_000])
@pytest.mark.parametrize("version", [8, 12])
def test_a_request_that_does_not_arrive_whole_is_charged_as_it_arrives(size: int, version: int) -> None:
    """Bytes as they pass; messages in proportion, as soon as the header of their batch has come."""
    sent = replace(RUN, version=version, topics=(("rows", (size,)),), messages=100)
    pair = pair_with(TOPIC, "client-id=etl,producer_byte_rate=1GB")
    pair.client_sends(sent.frame(1))
    frame = sent.frame(2)
    batch_at = len(frame) - size - 61 - (3 if version >= 9 else 0)
    before, passed = pair.world.passed(), len(pair.to_broker)
    at = 0
    for end in (batch_at + 60, batch_at + 61, batch_at + 61 + size // 2, len(frame) - 10, len(frame)):
        pair.client_sends(frame[at:end])
        at = end
        forwarded = len(pair.to_broker) - passed
        assert forwarded + len(pair.requests.backlog.kept) == end
        after = pair.world.passed()
        records = max(0, min(forwarded - batch_at, size + 61))
        assert {key: after[key] - before[key] for key in after} == {
            ("client-id:etl", "producer_byte_rate"): forwarded - 4,
            ("topic:rows", "bytes_in_rate"): records,
            ("topic:rows", "messages_in_rate"): -(-100 * records // (size + 61)),
        }
    assert pair.to_broker.endswith(frame)


def test_tags_that_have_come_are_looked_at() -> None:
    """A request with tags is in no batch, also where its last byte has not come."""
    pair = pair_with(TOPIC)
    pair.client_sends(RUN.frame(1))
    frame = frames.frame(bytes(bytearray(RUN.frame(2)[4:-3] + b"\x01\x05\x00\x00\x00")))
    pair.client_sends(frame[:-1])
    assert len(pair.to_broker) < 3 * len(RUN.frame(0)) + len(frame)
    pair.client_sends(frame[-1:])
    assert pair.sent()[-1] == frame
    assert pair.world.passed()["topic:rows", "bytes_in_rate"] == 3 * 461


@pytest.mark.parametrize("spec", [TOPIC, "client-id=etl,producer_byte_rate=1GB"])
def test_requests_that_do_not_fit_are_not_read_again_and_again(spec: str) -> None:
    """In a dry run each of them passes alone."""
    pair = pair_with(spec, "client-id=etl,request_rate=0.01", enforcement=EnforcementOptions(dry_run=True))
    pair.client_sends(*(replace(RUN, acks=0).frame(number) for number in range(3)))
    calls = [
        calls_during(lambda many=many: pair.client_sends(many))  # type: ignore[misc]
        for many in (b"".join(replace(RUN, acks=0).frame(number) for number in range(count)) for count in (100, 400))
    ]
    assert calls[1] < 5 * calls[0]
    assert pair.request_stream._batches._most == 1


def test_batches_of_clients_that_cannot_be_refused_pass_together() -> None:
    pair = pair_with("topic=rows,bytes_in_rate=1GB,action=reject")
    pair.client_sends(RUN.frame(1), RUN.frame(2))
    plans = pair.request_stream._batches._plans
    assert plans is not None
    assert plans.known


def test_half_as_many_are_tried_where_there_was_no_room() -> None:
    """For 100 requests."""
    pair = pair_with("client-id=etl,request_rate=100")
    one = heartbeat(1)
    pair.client_sends(one)
    stream, end = pair.request_stream, 200 * len(one)
    assert stream.kind is not None
    stream.buf[:end] = one * 200
    now_ns = pair.world.clock()
    passed = [stream._batches.pass_together(stream, stream.kind, 0, end, 1_000, now_ns) // len(one) for _ in range(4)]
    assert passed == [0, 0, 50, 0]


def test_plans_are_few_and_short() -> None:
    pair = pair_with("topic=<default>,bytes_in_rate=1GB")
    for number in range(1, 30):
        pair.client_sends(produce_records(number, {f"topic-{number % 7}": [batch(1, 100)]}, 12))
    for length in (240, 249, 250, 1_100):
        for number in (1, 2):
            pair.client_sends(produce_records(number, {"x" * length: [batch(1, 100)]}, 8))
    plans = pair.request_stream._batches._plans
    assert plans is not None
    assert len(plans.known) == MAX_PLANS
    assert [len(plan.prefix) > 240 for plan in plans.known] == [True] * 2 + [False] * (MAX_PLANS - 2)


def test_alternating_client_ids_keep_their_plans() -> None:
    pair = pair_with("topic=<default>,bytes_in_rate=1GB")
    sent = [replace(RUN, client_id=name) for name in ("etl", "web")]
    pair.client_sends(*(sent[number % 2].frame(number) for number in range(6)))
    plans = pair.request_stream._batches._plans
    assert plans is not None
    before = list(plans.known)
    assert len(before) == 2
    pair.client_sends(*(sent[number % 2].frame(number) for number in range(6)))
    assert set(plans.known) == set(before)
