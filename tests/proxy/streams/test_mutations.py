"""`controller_mutation_rate`: which requests pass, what the broker gets, and what the client receives (KIP-599).

The limit has no burst unless a test says otherwise: what passes leaves a debt of its own partitions, 100 ms for each.
"""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.apis import APIS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from protocol.errors import MalformedFrame
from protocol.topic_mutations import MAX_ITEMS
from protocol.topics import Topic, TopicPartitions
from proxy.config.config import EnforcementOptions
from proxy.streams.handlers.forward import MAX_KEPT, MAX_PARTIAL
from proxy.streams.handlers.mutations import MutationRequestTooLarge
from proxy.streams.memory import HEAD_READ_SIZE, Holding
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import lines_of, without_burst
from tests.proxy.frames import heartbeat, heartbeat_answer, noise, produce, request
from tests.proxy.mutation_frames import PASSED, REFUSED, Told, create, created, deletion, done, mutation, told
from tests.proxy.streams.pair import Pair, World

SPEC = "client-id=etl,controller_mutation_rate=10"
QUOTA = without_burst(SPEC)
MS_OF_ONE = 100
OWED = ("client-id:etl", "controller_mutation_rate")
STRICT = [(CREATE_TOPICS, 6), (CREATE_TOPICS, 7), (DELETE_TOPICS, 5), (DELETE_TOPICS, 6), (CREATE_PARTITIONS, 3)]
PERMISSIVE = [(CREATE_TOPICS, each) for each in (2, 3, 4, 5)]
PERMISSIVE += [(DELETE_TOPICS, each) for each in (1, 2, 3, 4)] + [(CREATE_PARTITIONS, each) for each in (0, 1, 2)]
WITHOUT_THROTTLE_TIME = [(CREATE_TOPICS, 1), (DELETE_TOPICS, 0)]
"""Besides CreateTopics 0, which has no `validate_only`: tests/protocol has it."""
#: No topic is known to the proxy, so CreatePartitions and DeleteTopics count each of them once.
TOPICS = {"a": 3, "b": 4, "c": 5}
COUNTED = {CREATE_TOPICS: 12, CREATE_PARTITIONS: 3, DELETE_TOPICS: 3}


def in_debt(world: World, partitions: int = 3, *, cuts: list[int] | None = None) -> Pair:
    """A client after one request that left a debt of 100 ms for each of its partitions."""
    pair = Pair(world, cuts=cuts or [])
    pair.exchange(create(100, {"first": partitions}), created(100, ["first"]))
    assert bytes(pair.to_client) == created(100, ["first"]), "as in Kafka, what passes has no wait"
    pair.to_client.clear()
    pair.to_broker.clear()
    return pair


# ---- strict versions
@pytest.mark.parametrize("cuts", [[1_000_000], [1]])
@pytest.mark.parametrize(("api", "version"), STRICT)
def test_a_request_that_finds_debt_is_answered_in_its_turn(api: int, version: int, cuts: list[int]) -> None:
    world = World([QUOTA])
    pair = in_debt(world, cuts=cuts)
    pair.client_sends(heartbeat(6), mutation(api, version, 7, TOPICS), heartbeat(8))
    assert pair.sent() == [heartbeat(6), heartbeat(8)]
    pair.broker_sends(heartbeat_answer(6), heartbeat_answer(8))
    first, own, last = pair.received()
    assert (first, last) == (heartbeat_answer(6), heartbeat_answer(8))
    assert told(api, version, own) == Told(7, 300, dict.fromkeys(TOPICS, REFUSED))
    assert world.debts()[OWED] == 0.3, "what is refused is not charged"
    assert not pair.response_stream.in_flight
    assert pair.response_stream.answers.owed_bytes == world.memory.buffered_bytes == 0


def test_topics_are_counted_and_refused_by_id() -> None:
    world = World([QUOTA])
    ids = {name: bytes([number]) * 16 for number, name in enumerate("abc", 1)}
    world.context.topics.learn(TopicPartitions(name, ids[name], 5) for name in "abc")
    pair = Pair(world)
    topics: list[Topic] = [ids["a"], "b", b"\x07" * 16]
    pair.client_sends(deletion(6, 1, topics), deletion(6, 2, topics))
    assert pair.sent() == [deletion(6, 1, topics)]
    assert world.debts()[OWED] == 1.1
    pair.broker_sends(done(DELETE_TOPICS, 6, 1, topics))
    assert told(DELETE_TOPICS, 6, pair.received()[1]) == Told(2, 1_100, dict.fromkeys(topics, REFUSED))


# ---- permissive versions
def test_these_are_all_versions() -> None:
    listed = {(key, version) for key in COUNTED for version in range(APIS[key].max_version + 1)}
    assert listed == {*STRICT, *PERMISSIVE, *WITHOUT_THROTTLE_TIME, (CREATE_TOPICS, 0)}


# ---- throttle times and counts
@pytest.mark.parametrize("version", [4, 7])
def test_the_wait_is_that_of_the_request_rate_if_longer_and_capped(version: int) -> None:
    for request_rate, most_ms, expected_ms in ((1_000, 5_000, 300), (1, 5_000, 1_000), (1, 700, 700)):
        rate = without_burst(f"client-id=etl,controller_mutation_rate=10,request_rate={request_rate}")
        pair = Pair(World([rate], enforcement=EnforcementOptions(max_throttle_ms=most_ms)))
        pair.exchange(mutation(CREATE_TOPICS, version, 1, {"a": 3}), done(CREATE_TOPICS, version, 1, ["a"]))
        pair.client_sends(mutation(CREATE_TOPICS, version, 2, {"b": 0}))
        if version < 6:
            pair.broker_sends(done(CREATE_TOPICS, version, 2, ["b"]))
            expected_ms = min(most_ms, max(expected_ms, 400))
        assert told(CREATE_TOPICS, version, pair.received()[1]).throttle_ms == expected_ms


def test_refusals_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = World([QUOTA, parse_spec("total,request_rate=1000")])
    pair = in_debt(world)
    pair.client_sends(create(2, {"b": 1, "c": 1}))
    assert world.levels()["total", "request_rate"] == (0, 998), "refused or not, each is a request"
    assert world.throttled() == {("etl", "controller_mutation_rate", "reject"): 1}
    [line] = [fields for name, fields in lines_of(caplog.records) if name == "throttled"]
    assert line == line | {
        "client_id": "etl",
        "limit": "controller_mutation_rate",
        "entity": "client-id:etl",
        "limit_value": 10,
        "throttle_ms": 300,
        "mode": "reject",
    }
    assert world.counts()["requests"] == {("CreateTopics", "7"): 2}


def test_limits_that_change_while_the_broker_answers() -> None:
    pair = Pair(world := World())
    pair.client_sends(create(1, {"a": 3}))
    world.registry.replace([QUOTA], world.clock())
    pair.client_sends(mutation(CREATE_TOPICS, 4, 2, {"b": 3}), create(3, {"c": 1}))
    world.registry.replace([], world.clock())
    pair.client_sends(create(4, {"c": 1}))
    pair.broker_sends(created(1, "a"), done(CREATE_TOPICS, 4, 2, ["b"]), created(4, "c"))
    first, second, third, fourth = pair.received()
    assert (first, fourth) == (created(1, "a"), created(4, "c"))
    assert told(CREATE_TOPICS, 4, second).throttle_ms == 300
    assert told(CREATE_TOPICS, 7, third) == Told(3, 300, {"c": REFUSED})


# ---- bounds
def test_without_a_limit_bytes_pass_as_they_come() -> None:
    for quotas in ([], [without_burst("client-id=other,controller_mutation_rate=1")]):
        pair = Pair(World(quotas))
        sent = request(CREATE_TOPICS, 7, 1, noise(2 * MAX_KEPT))
        pair.client_sends(sent[:-1])
        assert bytes(pair.to_broker) == sent[:-1]


def test_close_to_a_limit_of_bytes_a_request_is_read_to_its_end() -> None:
    """Not in pieces of the few bytes that are read there otherwise, so as to keep little where a frame is held."""
    pair = Pair(World([QUOTA, without_burst("total,producer_byte_rate=1000000")]))
    pair.client_sends(produce(1, 500))
    assert pair.request_stream.want == HEAD_READ_SIZE
    sent = create(2, dict.fromkeys((f"{number:0>200}" for number in range(100)), 1))
    pair.client_sends(sent[:100])
    assert pair.request_stream.want == len(sent) - 100


def named(length: int) -> bytes:
    """A CreateTopics request of so many bytes."""
    return create(1, {"x" * (length - len(create(1, {"x" * 200: 1})) + 4 + 200): 1})


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(("longest", "is_short"), [(MAX_KEPT - 1_000, False), (MAX_PARTIAL, True)])
def test_a_longer_request_closes_its_connection(longest: int, is_short: bool, dry_run: bool) -> None:
    """At once. It passes in a dry run; and if it has arrived whole, incomplete ones do not use up its memory."""
    world = World([QUOTA], enforcement=EnforcementOptions(dry_run=dry_run))
    if is_short:
        world.memory.update(Holding(), world.memory.limit // 2 - 100_000, 0, 0)
    pair = Pair(world)
    pair.client_sends(named(longest)[:-1])
    assert not pair.to_broker
    pair.client_sends(named(longest)[-1:])
    assert pair.sent() == [named(longest)]
    pair = Pair(world)
    longer = named(longest + 1) if is_short else request(CREATE_TOPICS, 7, 1, noise(MAX_KEPT))
    if dry_run:
        pair.client_sends(longer[:-1])
        assert bytes(pair.to_broker) == longer[:-1]
        return
    with pytest.raises(MutationRequestTooLarge, match=f"^CreateTopics request of {len(longer) - 4} bytes: where"):
        pair.client_sends(longer[:100])
    assert not pair.to_broker
    if is_short:
        world.clock.pass_seconds(1)
        pair = Pair(world)
        pair.client_sends(longer)
        assert pair.sent() == [longer]


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_request_with_too_many_topics_closes_its_connection(dry_run: bool) -> None:
    pair = Pair(World([QUOTA], enforcement=EnforcementOptions(dry_run=dry_run)))
    sent = deletion(4, 1, [str(number) for number in range(MAX_ITEMS + 1)])
    if dry_run:
        pair.client_sends(sent)
        assert pair.sent() == [sent]
        return
    with pytest.raises(MutationRequestTooLarge, match="ask for fewer topics at once"):
        pair.client_sends(sent)
    assert not pair.to_broker


@pytest.mark.parametrize(("api", "version"), [(CREATE_TOPICS, 7), (DELETE_TOPICS, 1), (CREATE_PARTITIONS, 3)])
def test_what_cannot_be_read_closes_its_connection(api: int, version: int) -> None:
    pair = Pair(World([QUOTA]))
    with pytest.raises(MalformedFrame):
        pair.client_sends(request(api, version, 2, b"\x7f\xff\xff\xff\x10"))
    assert not pair.to_broker
    pair = Pair(World([QUOTA]))
    pair.client_sends(mutation(CREATE_TOPICS, 4, 1, {"a": 3}))
    with pytest.raises(MalformedFrame):
        pair.broker_sends(struct.pack(">iih", 6, 1, 0))


# ---- any mix of them

#: Milliseconds that pass before, API, version, and partitions of each topic.
asked = st.tuples(
    st.sampled_from([0, 1, 99, 100, 250, 700, 2_000]),
    st.sampled_from([*STRICT, *PERMISSIVE]),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
)


@given(st.lists(asked, min_size=1, max_size=12), st.lists(st.integers(1, 60), max_size=40))
def test_any_requests_against_a_model(steps: list[tuple[int, tuple[int, int], list[int]]], cuts: list[int]) -> None:
    """The model is one number: milliseconds of debt, where a full bucket of one second is -1000."""
    world = World([parse_spec(SPEC)], enforcement=EnforcementOptions(max_throttle_ms=10**6))
    pair = Pair(world, cuts=cuts)
    debt_ms = -1_000
    for correlation, (pause_ms, (api, version), partitions) in enumerate(steps):
        world.clock.pass_seconds(pause_ms / 1_000)
        debt_ms = max(-1_000, debt_ms - pause_ms)
        topics = {f"t{number}": count for number, count in enumerate(partitions)}
        sent = mutation(api, version, correlation, topics)
        is_strict = (api, version) in STRICT
        passes = debt_ms <= 0 or not is_strict
        pair.client_sends(sent)
        if passes:
            debt_ms += MS_OF_ONE * (sum(partitions) if api == CREATE_TOPICS else len(partitions))
            assert pair.sent()[-1] == sent
            pair.broker_sends(done(api, version, correlation, topics))
        wait_ms = 0 if passes and is_strict else max(0, debt_ms)
        results = dict.fromkeys(topics, PASSED if passes else REFUSED)
        assert told(api, version, pair.received()[-1]) == Told(correlation, wait_ms, results)
    assert not pair.response_stream.in_flight
