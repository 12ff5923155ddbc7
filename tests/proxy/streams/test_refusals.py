"""`action=reject`: a request of which every topic is over its limit is answered with errors, any other is held.

A batch has 101 bytes, and the limit no burst: a batch that passes leaves a debt of 0.101 s.
"""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from protocol.api_versions import ClientSoftware
from protocol.apis import PRODUCE
from protocol.messages import decode
from protocol.topics import TopicPartitions
from proxy.config.config import EnforcementOptions, UsageOptions
from proxy.enforcement.habits import habits_of
from proxy.streams.handlers.reject import refusals
from proxy.streams.handlers.reject.refusals import MAX_REFUSED_NS, OutOfOrder
from quotas.parsing.parse import parse_spec
from tests.protocol.kafka_messages import idempotent
from tests.proxy.conversation import without_burst
from tests.proxy.frames import Topic, api_versions, produce_records, produced, refused
from tests.proxy.streams.pair import Pair, World, pass_holds, release_due

NOISY, QUIET = "noisy", "quiet"
SPEC = "topic=noisy,bytes_in_rate=1000,action=reject"
RECORDS_OF_A_BATCH = 4
SIZE = 101
BATCHES = 8
START = 2**31 - 5 * RECORDS_OF_A_BATCH
"""The sequences wrap around after five batches."""
CUTS = [(), (1,), (50, 3)]


def batch_of(number: int) -> bytes:
    return idempotent((START + number * RECORDS_OF_A_BATCH) % 2**31)


def topics_of(frame: bytes, version: int) -> dict[str, bytes]:
    """The records of a request for one partition of each topic."""
    body = 14 + len("etl") + (version >= 9)
    message: Any = decode(load_request_schema(PRODUCE, version), frame, body)
    return {topic.name: bytes(topic.partition_data[0].records) for topic in message.topic_data}


Errors = list[tuple[Any, int, int, str | None]]
"""Topic, partition, error code and message."""


def errors_of(frame: bytes, version: int = 9) -> tuple[Errors, int]:
    """Those of the partitions in a response, and its throttle time in ms."""
    message: Any = decode(load_response_schema(PRODUCE, version), frame, 8 + (version >= 9))
    return [
        (
            getattr(topic, "name", None) or topic.topic_id,
            each.index,
            each.error_code.value,
            getattr(each, "error_message", None),
        )
        for topic in message.responses
        for each in topic.partition_responses
    ], round(message.throttle_time.total_seconds() * 1000)


def world_of(spec: str = SPEC, **options: Any) -> World:
    return World(quotas=[without_burst(spec)], **options)


def pair_of(world: World, cuts: tuple[int, ...] = (), error: int = 89) -> Pair:
    """A client that sends refused batches again, whose first batch has brought the noisy topic into debt."""
    pair = Pair(world, cuts=cuts)
    pair.connection.identity.refusal_error = error
    first = produce_records(1, {NOISY: [idempotent(0)]})
    pair.exchange(first, produced(1))
    assert (pair.sent(), pair.received()) == ([first], [produced(1)]), "no throttle time"
    pair.to_broker.clear()
    pair.to_client.clear()
    return pair


def message_of(wait_ms: int) -> str:
    return f"bytes_in_rate=1000 of topic:noisy is exceeded: retry in {wait_ms} ms"


# ---- requests and responses
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("version", [3, 7, 8, 9, 12])
def test_a_request_over_its_limit_is_answered_in_order(version: int, cuts: tuple[int, ...]) -> None:
    pair = pair_of(world := world_of(usage=UsageOptions(file=Path("unused"))), cuts)
    before = produce_records(2, {QUIET: [idempotent(0)]}, version)
    after = produce_records(4, {QUIET: [idempotent(4)]}, version)
    pair.client_sends(before, produce_records(3, {NOISY: [idempotent(4), idempotent(0)]}, version), after)
    assert (pair.sent(), pair.received()) == ([before, after], [])
    pair.broker_sends(produced(2, version))
    [first, second] = pair.received()
    message = message_of(SIZE) if version >= 8 else None
    assert first == produced(2, version)
    assert errors_of(second, version) == ([(NOISY, 0, 89, message), (NOISY, 1, 89, message)], 0)
    pair.broker_sends(produced(4, version))
    assert pair.received()[2:] == [produced(4, version)]
    assert world.throttled() == {("etl", "bytes_in_rate", "reject"): 2}
    tallies = world.metrics.entities.throttle_tallies
    assert tallies is not None
    [tally] = tallies
    assert (tally.entity, tally.refused_bytes, tally.delayed_bytes) == ("topic:noisy", 2 * SIZE, 0)
    assert (world.memory.used, pair.response_stream.answers.owed_bytes) == (0, 0)


@pytest.mark.parametrize("cuts", [(), (70_000, 10)])
def test_a_long_request_is_discarded_as_it_arrives(cuts: tuple[int, ...]) -> None:
    """Nothing of it is kept, however long it is and whenever it ends."""
    pair = pair_of(world_of(), cuts)
    over = produce_records(2, {NOISY: [idempotent(4, payload=bytes(900_000)), idempotent(0, payload=bytes(90_000))]})
    pair.client_sends(over[:500_000])
    assert (pair.sent(), pair.received(), pair.requests.backlog.kept) == ([], [], b"")
    pair.client_sends(over[500_000:])
    assert [each[:3] for each in errors_of(pair.received()[0])[0]] == [(NOISY, 0, 89), (NOISY, 1, 89)]
    assert pair.sent() == []


@pytest.mark.parametrize("error", [89, 0])
def test_unknown_ids_are_refused_until_they_are_known_and_keep_their_order(error: int) -> None:
    """Also where the client's software is not known to retry: brokers answer so, too."""
    pair = Pair(world := world_of())
    pair.connection.identity.refusal_error = error
    first, second = UUID(int=1), UUID(int=2)
    topics: dict[Topic, list[bytes | None]] = {first: [idempotent(0)], second: [idempotent(40)]}
    pair.client_sends(produce_records(3, topics, 13), produce_records(4, {first: [idempotent(4)]}, 13))
    assert pair.sent() == []
    assert [each[2] for response in pair.received() for each in errors_of(response, 13)[0]] == [100, 100, 100]
    world.context.topics.learn([TopicPartitions(str(each), each.bytes, 2) for each in (first, second)])
    later = produce_records(5, {first: [idempotent(4)]}, 13)
    other, back = (produce_records(6, {second: [idempotent(40)]}, 13), produce_records(7, {first: [idempotent(0)]}, 13))
    pair.client_sends(later, other, back, later)
    assert pair.sent() == [other, back, later], "each topic in its order"
    [(_, _, code, _)], _ = errors_of(pair.received()[2], 13)
    assert code == (error or 100)


# ---- order
def test_a_new_connection_begins_anew() -> None:
    """Clients send in order on it; and producer ids can be guessed: one client does not stop another."""
    first = pair_of(world := world_of())
    first.client_sends(produce_records(2, {NOISY: [idempotent(4)]}))
    world.clock.pass_seconds(10)
    second = Pair(world)
    second.connection.identity.refusal_error = 89
    sent = produce_records(1, {NOISY: [idempotent(8)]})
    second.client_sends(sent)
    assert second.sent() == [sent]


def test_a_batch_that_must_wait_and_is_found_late_closes_the_connection() -> None:
    """The broker drops the incomplete request, and the producer begins again with the refused batch."""
    pair = pair_of(world := world_of())
    pair.client_sends(produce_records(2, {NOISY: [idempotent(4)]}))
    world.clock.pass_seconds(10)
    topics: dict[Topic, list[bytes | None]] = {QUIET: [idempotent(0, payload=bytes(100_000))], NOISY: [idempotent(8)]}
    with pytest.raises(OutOfOrder):
        pair.client_sends(produce_records(3, topics))
    assert len(pair.to_broker) < 200_000


def test_a_batch_that_was_refused_for_long_is_held() -> None:
    pair = pair_of(world := world_of())
    again = produce_records(2, {NOISY: [idempotent(4)]})
    pair.client_sends(again)
    world.clock.now_ns += MAX_REFUSED_NS
    other = Pair(world)
    other.client_sends(produce_records(1, {NOISY: [idempotent(0, payload=bytes(1_000))]}, client_id="other"))
    pair.client_sends(again)
    assert pair.held is not None
    pass_holds(world)
    assert pair.sent() == [again]


def test_a_change_of_the_limits_keeps_the_order() -> None:
    pair = pair_of(world := world_of())
    pair.client_sends(produce_records(2, {NOISY: [idempotent(4)]}))
    world.registry.replace([], world.clock())
    pair.client_sends(produce_records(3, {NOISY: [idempotent(8)]}))
    assert (pair.sent(), len(pair.received())) == ([], 2), "no limit is left, but the order is kept"
    back = produce_records(4, {NOISY: [idempotent(4)]})
    pair.client_sends(back)
    assert pair.sent() == [back]


@pytest.mark.pure
def test_where_no_more_sequences_can_be_kept_a_request_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it has a batch that must wait as well, the connection is closed."""
    monkeypatch.setattr(refusals, "MAX_PARTITIONS", 3)
    pair = pair_of(world_of())
    pair.client_sends(produce_records(2, {NOISY: [idempotent(4), idempotent(0)]}))
    with pytest.raises(OutOfOrder):
        pair.client_sends(produce_records(3, {NOISY: [idempotent(8), idempotent(0), idempotent(0), idempotent(0)]}))
    pair = pair_of(world_of())
    pair.client_sends(produce_records(2, {NOISY: [idempotent(4), idempotent(0)]}))
    assert len(pair.received()) == 1
    pair.client_sends(produce_records(3, {NOISY: [idempotent(4), idempotent(0)]}))
    assert (pair.held is not None, len(pair.received())) == (True, 1)


# ---- who is refused
@pytest.mark.parametrize(
    ("error", "sent"),
    [
        pytest.param(0, produce_records(2, {NOISY: [idempotent(4)]}), id="unknown software"),
        pytest.param(89, produce_records(2, {NOISY: [idempotent(-1, producer_id=-1)]}), id="not idempotent"),
        pytest.param(89, produce_records(2, {NOISY: [idempotent(4, attributes=16)]}), id="a transaction"),
        pytest.param(89, produce_records(2, {NOISY: [idempotent(4)]}, acks=0), id="acks=0"),
        pytest.param(89, produce_records(2, {NOISY: [idempotent(4), None]}), id="a partition without records"),
    ],
)
def test_everything_else_is_held(error: int, sent: bytes) -> None:
    pair = pair_of(world := world_of())
    pair.connection.identity.refusal_error = error
    pair.client_sends(sent)
    assert (pair.held is not None, pair.received()) == (True, [])
    pass_holds(world)
    assert pair.sent() == [sent]


@pytest.mark.parametrize(
    ("name", "version", "error"),
    [
        ("apache-kafka-java", "4.1.0", 89),
        ("apache-kafka-java", "2.7.0", 89),
        ("apache-kafka-java", "2.6.3", 19),
        ("apache-kafka-java", "unknown", 19),
        ("librdkafka", "2.12.1", 19),
        ("confluent-kafka-python", "2.12.1-rdkafka-2.12.1", 19),
        ("kgo", "v1.18.0", 19),
        ("sarama", "1.0", 0),
        ("", "", 0),
    ],
)
def test_the_error_of_each_client(name: str, version: str, error: int) -> None:
    assert habits_of(ClientSoftware(name, version)).refusal_error == error
    pair = Pair(world_of())
    pair.client_sends(api_versions(9, 3, name or "-", version or "-"))
    assert pair.connection.identity.refusal_error == error


def test_a_dry_run_refuses_nothing() -> None:
    pair = pair_of(world_of(enforcement=EnforcementOptions(dry_run=True)))
    sent = produce_records(2, {NOISY: [idempotent(4)]})
    pair.client_sends(sent)
    assert pair.sent() == [sent]


def test_thresholds_count_a_refused_sequence_once() -> None:
    entries = [parse_spec("total,total.bytes.in.per.sec.threshold=1000,total.messages.in.per.sec.threshold=1000000")]
    pair = Pair(world := World(quotas=entries))
    pair.connection.identity.refusal_error = 89
    pair.exchange(produce_records(1, {NOISY: [idempotent(0, payload=bytes(100_000))]}), produced(1))
    world.clock.pass_seconds(6)
    for number in (2, 3):
        pair.client_sends(produce_records(number, {NOISY: [idempotent(4)]}))
    assert len(pair.received()) == 3
    world.clock.pass_seconds(5)
    [throttled] = [
        rate
        for unit, outcome, rate in world.registry.produced(world.clock())
        if (unit, outcome) == ("bytes", "throttled")
    ]
    assert throttled == pytest.approx(SIZE / 5), "both are one"


# ---- properties
def release_all_due(world: World) -> None:
    """Let the held frames pass that are due."""
    while release_due(world):
        pass


@settings(max_examples=40)
@given(
    version=st.integers(3, 12),
    cuts=st.lists(st.integers(20, 400), max_size=6),
    window=st.integers(1, 5),
    with_quiet=st.lists(st.booleans(), min_size=1, max_size=8),
    passing_ms=st.lists(st.integers(40, 300), min_size=1, max_size=8),
)
def test_batches_arrive_once_and_in_order(
    version: int, cuts: list[int], window: int, with_quiet: list[bool], passing_ms: list[int]
) -> None:
    world = World(quotas=[without_burst(f"topic={NOISY},bytes_in_rate=1000,action=reject")])
    pair = Pair(world, cuts=cuts or [10_000])
    pair.connection.identity.refusal_error = 19
    unsent, again, in_flight = list(range(BATCHES)), list[int](), dict[int, int]()
    arrived: list[bytes] = []
    quiet_passed = quiet_arrived = seen = answered = 0
    for step in range(2_000):
        if not (unsent or again or in_flight):
            break
        while len(in_flight) < window and (again or unsent):
            number = again.pop(0) if again else unsent.pop(0)
            topics = {NOISY: [batch_of(number)]}
            if with_quiet[step % len(with_quiet)]:
                topics[QUIET] = [idempotent(0, producer_id=8)]
            correlation = step * 10 + len(in_flight)
            in_flight[correlation] = number
            pair.client_sends(produce_records(correlation, topics, version))  # type: ignore[arg-type]
        for frame in pair.sent()[seen:]:
            seen += 1
            topics_here = topics_of(frame, version)
            arrived += [topics_here[NOISY]] if NOISY in topics_here else []
            quiet_arrived += QUIET in topics_here
            correlation = int.from_bytes(frame[8:12])
            pair.broker_sends(refused(correlation, {name: [ErrorCode.none] for name in topics_here}, version))
        for frame in pair.received()[answered:]:
            answered += 1
            number = in_flight.pop(int.from_bytes(frame[4:8]))
            errors = {topic: error for topic, _, error, _ in errors_of(frame, version)[0]}
            assert len({bool(error) for error in errors.values()}) == 1, "refused as a whole, or not at all"
            quiet_passed += errors.get(QUIET) == 0
            if errors[NOISY]:
                again = sorted([*again, number])
        world.clock.pass_seconds(passing_ms[step % len(passing_ms)] / 1000 + 0.001)
        release_all_due(world)
    assert arrived == [batch_of(number) for number in range(BATCHES)]
    assert quiet_arrived == quiet_passed
    assert not world.memory.used


@given(
    sent=st.lists(
        st.tuples(
            st.integers(0, 1),  # the connection
            st.integers(0, 20),  # the batch
            st.integers(1, 3),  # its epoch
            st.integers(0, 300),  # ms until it is sent
        ),
        min_size=1,
        max_size=40,
    )
)
def test_the_limit_holds_for_any_sequences_and_epochs(sent: list[tuple[int, int, int, int]]) -> None:
    """Also for a client that makes them up."""
    rate = 1_000
    world = World(quotas=[without_burst(f"topic={NOISY},bytes_in_rate={rate},action=reject")])
    pairs = [Pair(world), Pair(world)]
    for pair in pairs:
        pair.connection.identity.refusal_error = 19
    began_ns = world.clock()
    for correlation, (which, number, epoch, passing_ms) in enumerate(sent):
        world.clock.pass_seconds(passing_ms / 1000)
        release_all_due(world)
        batch = idempotent(number * RECORDS_OF_A_BATCH, epoch=epoch)
        pairs[which].client_sends(produce_records(correlation, {NOISY: [batch]}))
        passed = sum(len(topics_of(frame, 9)[NOISY]) for pair in pairs for frame in pair.sent())
        assert passed <= rate * (world.clock() - began_ns) / 1e9 + len(batch) + 1
