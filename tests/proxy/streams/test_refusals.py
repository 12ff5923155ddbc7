"""`action=reject` with any split of the bytes: a producer that sends again what was refused loses and repeats none."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from protocol.apis import PRODUCE
from protocol.messages import decode
from tests.protocol.kafka_messages import idempotent
from tests.proxy.conversation import without_burst
from tests.proxy.frames import produce_records, refused
from tests.proxy.streams.pair import Pair, World

NOISY, QUIET = "noisy", "quiet"
RECORDS_OF_A_BATCH = 4
BATCHES = 8
START = 2**31 - 5 * RECORDS_OF_A_BATCH
"""The sequences wrap around after five batches."""


def batch_of(number: int) -> bytes:
    return idempotent((START + number * RECORDS_OF_A_BATCH) % 2**31)


def topics_of(frame: bytes, version: int) -> dict[str, bytes]:
    """The records of a request for one partition of each topic."""
    body = 14 + len("etl") + (version >= 9)
    message: Any = decode(load_request_schema(PRODUCE, version), frame, body)
    return {topic.name: bytes(topic.partition_data[0].records) for topic in message.topic_data}


def errors_of(frame: bytes, version: int) -> dict[str, int]:
    message: Any = decode(load_response_schema(PRODUCE, version), frame, 8 + (version >= 9))
    return {topic.name: topic.partition_responses[0].error_code.value for topic in message.responses}


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
    quiet_sent = quiet_arrived = seen = answered = 0
    for step in range(2_000):
        if not (unsent or again or in_flight):
            break
        while len(in_flight) < window and (again or unsent):
            number = again.pop(0) if again else unsent.pop(0)
            topics = {NOISY: [batch_of(number)]}
            if with_quiet[step % len(with_quiet)]:
                topics[QUIET] = [idempotent(0, producer_id=8)]
                quiet_sent += 1
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
            if errors_of(frame, version)[NOISY]:
                again = sorted([*again, number])
        world.clock.pass_seconds(passing_ms[step % len(passing_ms)] / 1000 + 0.001)
    assert arrived == [batch_of(number) for number in range(BATCHES)]
    assert quiet_arrived == quiet_sent
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
        for limit in list(world.holds.limits):
            while (hold := world.holds.next(limit, world.clock())) is not None:
                assert isinstance(hold.waiter, Pair)
                hold.waiter.release(hold)
        batch = idempotent(number * RECORDS_OF_A_BATCH, epoch=epoch)
        pairs[which].client_sends(produce_records(correlation, {NOISY: [batch]}))
        passed = sum(len(topics_of(frame, 9)[NOISY]) for pair in pairs for frame in pair.sent())
        assert passed <= rate * (world.clock() - began_ns) / 1e9 + len(batch) + 1
