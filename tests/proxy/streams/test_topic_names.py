"""Topic names come from clients: long ones are not kept, and invented ones take nothing from topics that exist."""

import gc
import tracemalloc

import pytest
from kio.schema.errors import ErrorCode

from protocol.topics import LONGEST_NAME, TopicPartitions
from proxy.config.config import UsageOptions
from proxy.observability.topic_traffic import OTHER_TOPICS
from quotas.limit_kinds import BYTES_THRESHOLD
from quotas.parsing.parse import parse_spec
from tests.proxy.frames import Topic, batch, produce_records, refused
from tests.proxy.streams.pair import Pair, World

TOTAL = "total=true,total.bytes.in.per.sec.threshold=50MB"
ANY_TOPIC = "topic=<default>,bytes_in_rate=1GB"
LONG = "x" * (LONGEST_NAME + 1)


def shares(world: World, topic: str = "orders") -> float:
    return float(world.registry.topics.thresholds[BYTES_THRESHOLD].threshold_of(topic))


# ---- names that are too long
@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("spec", [ANY_TOPIC, ANY_TOPIC + ",action=reject"])
def test_a_name_that_no_broker_accepts_counts_for_the_total_alone(version: int, spec: str) -> None:
    pair = Pair(world := World([parse_spec(spec), parse_spec("total=true,bytes_in_rate=1GB")]))
    topics: dict[Topic, list[bytes | None]] = {
        LONG: [batch(1, 700)],
        LONG + "y": [batch(1, 70)],
        "x" * LONGEST_NAME: [batch(1, 70, producer_id=7)],
    }
    sent = produce_records(1, topics, version)
    pair.client_sends(sent)
    assert pair.to_broker == sent
    assert sorted(str(limit.entity) for limit in world.registry.limits_in_use()) == ["topic:" + "x" * 249, "total"]
    (total,) = (limit for limit in world.registry.limits_in_use() if str(limit.entity) == "total")
    assert total.algorithm.headroom(world.clock()) == 10**9 - sum(len(each) for (each,) in topics.values() if each)


def test_usage_by_topic_keeps_no_such_name() -> None:
    world = World(usage=UsageOptions(by_topic=True))
    Pair(world).client_sends(produce_records(1, {LONG: [batch(1, 70)], "rows": [batch(1, 70)]}, 9))
    assert {topic for _, topic in world.topics()} == {OTHER_TOPICS, "rows"}


def test_long_names_leave_nothing_behind() -> None:
    """Hundreds of names of 32 KB at the end of long requests, on one connection."""
    pair = Pair(World([parse_spec(ANY_TOPIC), parse_spec(TOTAL)]))
    sent = produce_records(1, {f"{index:05d}" + LONG * 128: [batch(1, 70)] for index in range(300)}, 9)
    assert len(sent) > 9_000_000
    tracemalloc.start()
    try:
        pair.client_sends(sent)
        pair.to_broker.clear()
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


# ---- names without a topic
def test_a_topic_with_accepted_records_has_a_share() -> None:
    """One partition is enough; errors are no proof."""
    pair = Pair(world := World([parse_spec(TOTAL)]))
    pair.client_sends(produce_records(1, {name: [batch(1, 70)] * 2 for name in ("orders", "clicks", "none")}))
    assert shares(world) == 50e6
    error = ErrorCode.unknown_topic_or_partition
    answered: dict[Topic, list[ErrorCode]] = {
        "orders": [ErrorCode.none] * 2,
        "clicks": [error, ErrorCode.none],
        "none": [error, error],
    }
    pair.broker_sends(refused(1, answered))
    assert shares(world) == 25e6


def test_a_topic_of_a_metadata_response_has_a_share() -> None:
    """Also without responses to its requests."""
    world = World([parse_spec(TOTAL)])
    world.context.topics.learn([TopicPartitions(name, None, 3) for name in ("orders", "clicks", "not used")])
    for number, name in enumerate(("orders", "clicks", "invented")):
        Pair(world).client_sends(produce_records(number, {name: [batch(1, 70)]}, acks=0))
    assert shares(world) == 25e6
