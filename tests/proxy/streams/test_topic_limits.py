"""Limits of topics: what a Produce request is charged to which topic, and who is held for it.

A limit of 1 per second that holds nothing turns what it has counted into seconds of debt, to be read off.
"""

from collections.abc import Sequence

import pytest

from protocol.errors import ProtocolError
from proxy.streams.memory import HEAD_READ_SIZE, READ_SIZE
from quotas.algorithms.token_bucket import AMPLE
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import lines_of, without_burst
from tests.proxy.frames import TOPIC_ID, Topic, batch, heartbeat, produce, produce_records
from tests.proxy.streams.pair import Pair, World
from tests.proxy.streams.waiting import CUTS, holder, wait

FAST = without_burst("topic=rows,bytes_in_rate=1MB")
ROWS = ("topic:rows", "bytes_in_rate")


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("version", [2, 3, 8, 9, 12])
def test_a_request_that_finds_its_topic_in_debt_waits(cuts: list[int], version: int) -> None:
    pair = Pair(world := World([FAST]), cuts=cuts)
    first = produce_records(1, {"rows": [batch(2, 100), batch(3, 4_900)]}, version)
    pair.client_sends(first)
    assert pair.to_broker == first
    assert world.debts() == {ROWS: 0.005}, "records, without what surrounds them"
    second = produce_records(2, {"rows": [batch(1, 200)]}, version)
    pair.client_sends(second)
    wait(world, 0.004_999)
    assert holder(pair) == ROWS
    wait(world, 0.000_001)
    assert pair.sent() == [first, second]
    assert world.debts() == {ROWS: 0.0002}


def test_a_request_for_several_topics_waits_for_each_and_is_charged_to_each() -> None:
    slow = without_burst("topic=c,bytes_in_rate=1")
    world = World([*(without_burst(f"topic={name},bytes_in_rate=1MB") for name in ("a", "b")), slow])
    pair = Pair(world)
    pair.client_sends(produce_records(1, {"b": [batch(1, 3_000)]}))
    both = produce_records(2, {"a": [batch(1, 100)], "free": [batch(1, 90)], "b": [batch(1, 200)], "c": [batch(1, 80)]})
    pair.client_sends(both)
    assert holder(pair) == ("topic:b", "bytes_in_rate")
    assert world.debts() == {("topic:a", "bytes_in_rate"): 0.0001, ("topic:b", "bytes_in_rate"): 0.003}, "it passed a"
    wait(world, 0.003)
    assert pair.sent()[1:] == [both]
    assert world.debts() == {("topic:b", "bytes_in_rate"): 0.0002, ("topic:c", "bytes_in_rate"): 80}
    assert [units for _, units in sorted(world.passed().items())] == [100, 3_200, 80]


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("size", [500, 100_000])
def test_few_messages_of_many_bytes_are_queued_as_what_they_are(size: int, version: int) -> None:
    """Close to a limit no more than the head of a request is read."""
    pair = Pair(world := World([without_burst("topic=rows,messages_in_rate=100")]))
    pair.client_sends(produce_records(1, {"rows": [batch(5, 500)]}, version))
    pair.client_sends(produce_records(2, {"rows": [batch(3, size)]}, version))
    assert holder(pair) == ("topic:rows", "messages_in_rate")
    assert [limit.waiters.queued for limit in world.queues] == [3]


@pytest.mark.parametrize(
    ("limits", "topics", "named"),
    [
        (["topic=a,bytes_in_rate=1", "topic=c,bytes_in_rate=1"], "abc", "a"),  # c is not asked yet
        (["topic=c,bytes_in_rate=1"], "abc", "c"),
        (["total,bytes_in_rate=1"], "abc", "a,b,c"),
        (["total,bytes_in_rate=1"], [TOPIC_ID], None),
        (["resource-group=g,topic=b,topic=c,bytes_in_rate=1"], "abc", "b,c"),
        (["topic=a,bytes_in_rate=1", "client-id=etl,producer_byte_rate=1"], "abc", None),
        (["topic=a,bytes_in_rate=1", "client-id=etl,request_rate=0.01"], "abc", None),
    ],
)
def test_the_log_contains_the_topics_of_a_held_request(
    limits: list[str], topics: Sequence[Topic], named: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """None where the limit counts the request itself, which would be held without these topics as well, and where it
    needs no names and an id has none.
    """
    world = World([without_burst(limit) for limit in limits])
    records: dict[Topic, list[bytes | None]] = {topic: [batch(1, 100)] for topic in topics}
    version = 13 if TOPIC_ID in records else 9
    Pair(world).client_sends(produce_records(1, records, version))
    wait(world, 10)  # after which the log contains the same limit again
    caplog.clear()
    pair = Pair(world)
    pair.client_sends(produce_records(2, records, version))
    assert pair.is_held
    [(event, fields)] = lines_of(caplog.records)
    assert (event, fields["mode"], fields.get("topics")) == ("throttled", "pause", named)


@pytest.mark.parametrize(
    ("limit", "is_near"),
    [
        (None, False),
        ("topic=rows,bytes_in_rate=1GB", False),
        ("topic=other,bytes_in_rate=1", False),
        ("total=true,total.bytes.in.per.sec.threshold=1GB", False),
        ("client-id=etl,consumer_byte_rate=1", False),
        ("client-id=etl,producer_byte_rate=100MB", False),
        ("client-id=etl,request_rate=100000000", False),
        ("topic=rows,bytes_in_rate=500000", True),
        ("topic=rows,messages_in_rate=5000", True),
        ("total=true,total.bytes.in.per.sec.threshold=1000", True),
        ("client-id=etl,producer_byte_rate=1000", True),
        ("client-id=etl,request_rate=100", True),
    ],
)
def test_only_near_its_limits_a_connection_reads_frame_by_frame(limit: str | None, is_near: bool) -> None:
    """A read full of such requests, of about 1000 bytes and with 10 messages each, would fit into the first ones."""
    pair = Pair(World([parse_spec(limit)] if limit else []))
    pair.client_sends(heartbeat(1), produce_records(2, {"rows": [batch(10, 950)]}))
    assert pair.request_stream.want == (HEAD_READ_SIZE if is_near else READ_SIZE)
    assert (pair.request_stream.room < READ_SIZE) is is_near
    assert AMPLE >= 8 * READ_SIZE, "what a bucket counts is enough, with 8 messages in each byte"


@pytest.mark.parametrize(
    ("limit", "is_parsed"),
    [
        ("client-id=etl,producer_byte_rate=1GB,request_rate=1000", False),
        ("user=somebody,producer_ids_rate=1", False),
        ("ip=<default>,connections=100,connection_creation_rate=100", False),
        ("topic=other,bytes_in_rate=1GB", True),
        ("user=ANONYMOUS,producer_ids_rate=1", True),
        ("total=true,total.bytes.in.per.sec.threshold=1GB", True),
    ],
)
def test_requests_are_not_parsed_without_a_limit_that_needs_it(limit: str, is_parsed: bool) -> None:
    """The body of this request is noise: parsed, it is an error."""
    pair = Pair(World([parse_spec(limit)]))
    if is_parsed:
        with pytest.raises(ProtocolError):
            pair.client_sends(produce(1))
    else:
        pair.client_sends(produce(1))
    assert pair.to_broker == (b"" if is_parsed else produce(1))
