"""Limits of topics: what a Produce request is charged to which topic, and who is held for it.

A limit of 1 per second that holds nothing turns what it has counted into seconds of debt, to be read off.
"""

import pytest

from protocol.errors import ProtocolError
from proxy.streams.memory import HEAD_READ_SIZE, READ_SIZE
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import lines_of, without_burst
from tests.proxy.frames import batch, produce, produce_records
from tests.proxy.streams.pair import Pair, World
from tests.proxy.streams.waiting import CUTS, holder, wait

FAST = without_burst("topic=rows,bytes_in_rate=1MB")
ROWS = ("topic:rows", "bytes_in_rate")


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("version", [2, 3, 8, 9, 12])
def test_a_request_that_finds_its_topic_in_debt_waits(cuts: list[int], version: int) -> None:
    world = World([FAST])
    pair = Pair(world, cuts=cuts)
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


@pytest.mark.parametrize("cuts", CUTS)
def test_a_request_for_several_topics_waits_for_each_and_is_charged_to_each(cuts: list[int]) -> None:
    slow = without_burst("topic=c,bytes_in_rate=1")
    world = World([*(without_burst(f"topic={name},bytes_in_rate=1MB") for name in ("a", "b")), slow])
    pair = Pair(world, cuts=cuts)
    pair.client_sends(produce_records(1, {"b": [batch(1, 3_000)]}))
    both = produce_records(2, {"a": [batch(1, 100)], "free": [batch(1, 90)], "b": [batch(1, 200)], "c": [batch(1, 80)]})
    pair.client_sends(both)
    assert holder(pair) == ("topic:b", "bytes_in_rate")
    assert world.debts() == {("topic:a", "bytes_in_rate"): 0.0001, ("topic:b", "bytes_in_rate"): 0.003}, "it passed a"
    wait(world, 0.003)
    assert pair.sent()[1:] == [both]
    assert world.debts() == {("topic:b", "bytes_in_rate"): 0.0002, ("topic:c", "bytes_in_rate"): 80}
    passed = {str(limit.entity): limit.algorithm.passed for limit in world.registry.limits_in_use()}
    assert passed == {"topic:a": 100, "topic:b": 3_200, "topic:c": 80}


def test_the_log_contains_the_topics_of_a_held_request(caplog: pytest.LogCaptureFixture) -> None:
    world = World([without_burst(f"topic={name},bytes_in_rate=1") for name in ("a", "b", "c")])
    pair = Pair(world)
    pair.client_sends(produce_records(1, {"a": [batch(1, 100)], "c": [batch(1, 200)]}))
    wait(world, 10)  # after which the log contains the same limit again
    caplog.clear()
    pair.client_sends(produce_records(2, {name: [batch(1, 80)] for name in ("a", "b", "c", "free")}))
    [(name, fields)] = lines_of(caplog.records)
    assert (name, fields["limit"], fields["entity"], fields["mode"]) == (
        "throttled",
        "bytes_in_rate",
        "topic:a",
        "pause",
    )
    assert (fields["topics"], fields["debt_seconds"]) == ("a", 90), "c is not asked yet"


@pytest.mark.parametrize(
    ("limit", "want"),
    [
        ("topic=rows,bytes_in_rate=1GB", READ_SIZE),
        ("topic=other,bytes_in_rate=1", READ_SIZE),
        ("total=true,total.bytes.in.per.sec.threshold=1GB", READ_SIZE),
        ("topic=rows,bytes_in_rate=500000", HEAD_READ_SIZE),
        ("topic=rows,messages_in_rate=5000", HEAD_READ_SIZE),
        ("total=true,total.bytes.in.per.sec.threshold=1000", HEAD_READ_SIZE),
    ],
)
def test_only_near_its_limits_a_connection_reads_frame_by_frame(limit: str, want: int) -> None:
    """A read full of such requests, of about 1000 bytes and with 10 messages each, would fit into the first ones."""
    pair = Pair(World([parse_spec(limit)]))
    pair.client_sends(produce_records(1, {"rows": [batch(10, 950)]}))
    assert pair.request_stream.want == want


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
