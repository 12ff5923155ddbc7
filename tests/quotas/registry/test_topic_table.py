"""What holds for the records of each topic, and how long a topic is remembered."""

import pytest

from quotas.admission.limit import Limit
from quotas.admission.topic_thresholds import TopicThreshold
from quotas.entity import DEFAULT, TOTAL, EntityKind, Named
from quotas.entry import QuotaEntry
from quotas.limit_kinds import (
    BYTES_IN_RATE,
    BYTES_THRESHOLD,
    MESSAGES_IN_RATE,
    MESSAGES_THRESHOLD,
    TOTAL_BYTES_THRESHOLD,
    TOTAL_MESSAGES_THRESHOLD,
)
from quotas.limit_options import LimitOptions
from quotas.registry.idle import IDLE_NS
from quotas.registry.registry import Registry
from quotas.resource_groups import ResourceGroup

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
ORDERS, ANY_TOPIC = Named(EntityKind.TOPIC, "orders"), Named(EntityKind.TOPIC, DEFAULT)
TOTAL_OF_100 = QuotaEntry(TOTAL, {TOTAL_BYTES_THRESHOLD: 100})


def entities(limits: tuple[Limit, ...]) -> list[str]:
    return [f"{limit.name} {limit.entity}" for limit in limits]


def threshold(registry: Registry, topic: str, now_ns: int = 0, *, exists: bool = True) -> Limit:
    (limit,) = registry.topic(topic, now_ns, exists=exists).bytes_in
    assert limit.name == BYTES_THRESHOLD
    return limit


def accept(limit: Limit, amount: int, now_ns: int) -> None:
    """A response accepts records."""
    assert isinstance(limit.algorithm, TopicThreshold)
    limit.algorithm.record_accepted(amount, now_ns)


def test_a_threshold_has_the_mode_of_its_entry() -> None:
    own = QuotaEntry(ORDERS, {BYTES_THRESHOLD: 50}, LimitOptions(mode="delay"))
    registry = Registry([QuotaEntry(TOTAL, {TOTAL_BYTES_THRESHOLD: 100}, LimitOptions(mode="pause")), own])
    assert (threshold(registry, "orders").options.mode, threshold(registry, "clicks").options.mode) == (
        "delay",
        "pause",
    )
    registry.replace([TOTAL_OF_100, QuotaEntry(ORDERS, {BYTES_THRESHOLD: 50}, LimitOptions(mode="notify"))], 0)
    assert (threshold(registry, "orders").options.mode, threshold(registry, "clicks").options.mode) == ("notify", None)


def test_a_topic_draws_on_its_own_limits_its_groups_and_the_total() -> None:
    group = Named(EntityKind.RESOURCE_GROUP, "web")
    registry = Registry(
        [
            QuotaEntry(TOTAL, {BYTES_IN_RATE: 1000, MESSAGES_IN_RATE: 9, TOTAL_MESSAGES_THRESHOLD: 5}),
            QuotaEntry(group, {BYTES_IN_RATE: 500}, group=ResourceGroup("web", topics=("ord*",))),
            QuotaEntry(ANY_TOPIC, {BYTES_IN_RATE: 100}),
        ]
    )
    orders, clicks = registry.topic("orders", 0), registry.topic("clicks", 0)
    names = [f"{BYTES_IN_RATE} {entity}" for entity in ("topic:orders", "resource-group:web", "total")]
    assert entities(orders.bytes_in) == names
    assert entities(orders.messages_in) == [f"{MESSAGES_IN_RATE} total", f"{MESSAGES_THRESHOLD} topic:orders"]
    assert entities(clicks.bytes_in) == [f"{BYTES_IN_RATE} topic:clicks", names[2]]
    assert orders.bytes_in[-1] is clicks.bytes_in[-1]  # the total's bucket is one
    nobody = registry.topics.unknown_topic()
    assert (nobody.name, nobody.bytes_in, nobody.messages_in) == ("", orders.bytes_in[-1:], orders.messages_in[:1])
    assert registry.learns_topics


def test_a_name_takes_no_share_before_it_exists() -> None:
    registry = Registry([TOTAL_OF_100])
    orders, invented = threshold(registry, "orders"), threshold(registry, "invented", exists=False)
    assert (orders.rate, invented.rate) == (100, 100)
    registry.topics.confirm("never used")
    assert orders.rate == 100
    registry.topics.confirm("invented")
    assert (orders.rate, invented.rate) == (50, 50)
    assert threshold(registry, "invented", exists=False).rate == 50


def test_a_topic_with_a_share_of_zero_waits_for_the_total_alone() -> None:
    registry = Registry([TOTAL_OF_100, QuotaEntry(ORDERS, {BYTES_THRESHOLD: 100})])
    limit = threshold(registry, "none")
    assert (limit.rate, limit.expected_time_of(1000)) == (0, 0)
    registry.replace([TOTAL_OF_100, QuotaEntry(ORDERS, {BYTES_THRESHOLD: 50})], 0)
    assert (limit.rate, limit.expected_time_of(1000)) == (50, 20 * SECOND)


def test_without_a_total_there_are_no_thresholds_and_what_was_in_use_goes() -> None:
    registry = Registry([TOTAL_OF_100])
    limit = threshold(registry, "orders")
    assert list(registry.limits_in_use()) == [limit]
    registry.replace([], 0)
    assert list(registry.limits_in_use()) == []
    assert registry.topic("orders", 0).bytes_in == ()
    assert list(registry.produced(0)) == []
    registry.replace([QuotaEntry(TOTAL, {TOTAL_BYTES_THRESHOLD: 50})], 0)
    assert threshold(registry, "orders").algorithm is limit.algorithm  # what was observed stays observed


# ---- what the broker's response says


def test_records_count_as_the_response_says() -> None:
    registry = Registry([QuotaEntry(TOTAL, {TOTAL_BYTES_THRESHOLD: 100, TOTAL_MESSAGES_THRESHOLD: 10})])
    registry.topic("orders", 0)
    registry.topics.accepted("orders", 100, 10, 0)
    registry.topics.refused("orders", 400, 40, 0)
    assert list(registry.produced(6 * SECOND)) == [
        ("bytes", "accepted", 20),
        ("bytes", "erroneous", 80),
        ("bytes", "throttled", 0),
        ("messages", "accepted", 2),
        ("messages", "erroneous", 8),
        ("messages", "throttled", 0),
    ]


def test_a_response_for_a_topic_without_a_threshold_counts_nothing_and_makes_no_topic_known() -> None:
    registry = Registry([TOTAL_OF_100])
    registry.topics.accepted("orders", 400, 40, 0)
    registry.topics.refused("orders", 400, 40, 0)
    thresholds = registry.topics.thresholds[BYTES_THRESHOLD]
    assert (len(thresholds._known), thresholds.accepted.count, thresholds.erroneous.count) == (0, 0, 0)


# ---- forgetting


def test_a_topic_without_records_for_an_hour_has_no_share() -> None:
    registry = Registry([TOTAL_OF_100])
    gone, used = threshold(registry, "gone"), threshold(registry, "used")
    for limit in (gone, used):
        accept(limit, 1, 0)
    registry.expire(0)
    assert used.rate == 50
    accept(threshold(registry, "used", 30 * MINUTE), 1, 30 * MINUTE)
    registry.expire(IDLE_NS + MINUTE)
    assert len(registry.topics.thresholds[BYTES_THRESHOLD]._known) == 1
    assert used.rate == 100
    assert [limit.entity for limit in registry.limits_in_use()] == [used.entity]
    assert threshold(registry, "gone", IDLE_NS + MINUTE) is not gone
    assert used.rate == 50


def test_ten_thousand_names_leave_nothing_behind() -> None:
    registry = Registry([TOTAL_OF_100, QuotaEntry(ANY_TOPIC, {BYTES_IN_RATE: 100})])
    for number in range(10_000):
        for limit in registry.topic(f"topic-{number}", 0).bytes_in:
            limit.algorithm.record(1, 0)
    registry.expire(0)
    assert registry.expire(IDLE_NS + 2 * MINUTE) == 20_000
    assert list(registry.limits_in_use()) == []
    assert len(registry.topics.thresholds[BYTES_THRESHOLD]._known) == 0
    assert registry.topics._topics == {}


@pytest.mark.pure
def test_names_without_end_count_for_the_total_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quotas.registry.topic_table.MAX_TOPICS", 2)
    entries = [
        QuotaEntry(TOTAL, {BYTES_IN_RATE: 1000}),
        QuotaEntry(Named(EntityKind.TOPIC, DEFAULT), {BYTES_IN_RATE: 10}),
        QuotaEntry(Named(EntityKind.TOPIC, "orders"), {BYTES_IN_RATE: 20}),
    ]
    registry = Registry(entries)
    assert [len(registry.topic(name, 0).bytes_in) for name in ("a", "b", "c", "d", "orders", "a")] == [2, 2, 1, 1, 2, 2]
    assert [limit.entity for limit in registry.topic("c", 0).bytes_in] == [TOTAL]
    assert len(registry.topic("c", 0, exists=True).bytes_in) == 2, "a real topic has its limits all the same"
