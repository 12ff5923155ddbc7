"""What one Produce request asks of limits that count different things."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from quotas.admission.client_limits import ClientLimits, TopicLimits
from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.demand import Demand
from quotas.admission.limit import Limit, Ticket
from quotas.algorithms.token_bucket import TokenBucket
from quotas.entity import TOTAL, AnyEntity, Entity, Kind, Named
from quotas.entry import QuotaEntry
from quotas.limit_kinds import (
    BYTES_IN_RATE,
    BYTES_THRESHOLD,
    MESSAGES_IN_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_RATE,
    TOTAL_BYTES_THRESHOLD,
)
from quotas.registry.registry import Registry
from quotas.resource_groups import ResourceGroup

SECOND = 1_000_000_000
ETL = Entity(client_id="etl")


@dataclass(frozen=True)
class Records:
    record_bytes: int
    messages: int


def limit_of(entity: AnyEntity, rate: int = 100, name: str = BYTES_IN_RATE) -> Limit:
    return Limit(name, entity, TokenBucket(rate))


def topic_of(name: str, bytes_in: tuple[Limit, ...] = (), messages_in: tuple[Limit, ...] = ()) -> TopicLimits:
    topic = TopicLimits(name)
    topic.bytes_in, topic.messages_in = bytes_in, messages_in
    return topic


NOBODY_IN_PARTICULAR = ClientLimits("alice", "etl")


def test_the_whole_request_and_each_of_its_topics_are_charged_in_their_own_units() -> None:
    size, number = limit_of(ETL, 1000, PRODUCER_BYTE_RATE), limit_of(ETL, 10, REQUEST_RATE)
    a, b = limit_of(Named(Kind.TOPIC, "a")), limit_of(Named(Kind.TOPIC, "b"))
    a_messages, total = limit_of(Named(Kind.TOPIC, "a"), 5, MESSAGES_IN_RATE), limit_of(TOTAL)
    demand = Demand()
    demand.add((size,), 500)
    demand.add((number,), 1)
    demand.add_records(NOBODY_IN_PARTICULAR, topic_of("a", (a, total), (a_messages,)), Records(40, 2))
    demand.add_records(NOBODY_IN_PARTICULAR, topic_of("b", (b, total)), Records(30, 9))
    demand.add_records(NOBODY_IN_PARTICULAR, topic_of("a", (a, total), (a_messages,)), Records(20, 1))
    assert demand.amounts == {size: 500, number: 1, a: 60, total: 90, a_messages: 3, b: 30}
    assert demand.admit(0) is ADMITTED
    left = {limit: limit.algorithm.headroom(0) for limit in demand.amounts}
    assert left == {size: 500, number: 9, a: 40, total: 10, a_messages: 2, b: 70}


def test_one_limit_that_refuses_charges_no_other_and_returns_its_topics() -> None:
    size, total = limit_of(ETL, 1000, PRODUCER_BYTE_RATE), limit_of(TOTAL, 1000)
    a, b, c = (limit_of(Named(Kind.TOPIC, name)) for name in "abc")
    a.algorithm.record(200, 0)
    c.algorithm.record(300, 0)
    demand = Demand()
    demand.add((size,), 500)
    for name, limit in zip("abc", (a, b, c), strict=True):
        demand.add_records(NOBODY_IN_PARTICULAR, topic_of(name, (limit, total)), Records(10, 1))
    refused = demand.admit(0)
    assert refused == Decision(False, 2 * SECOND, c, (a, c), ("a", "c"))
    assert [limit.algorithm.headroom(0) for limit in (size, total, b)] == [1000, 1000, 100]
    assert demand.admit(SECOND) == Decision(False, SECOND, c, (c,), ("c",))
    assert demand.admit(2 * SECOND).admitted


def test_a_limit_of_all_topics_refuses_all() -> None:
    total = limit_of(TOTAL)
    total.algorithm.record(200, 0)
    demand = Demand()
    for name in "ab":
        demand.add_records(NOBODY_IN_PARTICULAR, topic_of(name, (total,)), Records(10, 1))
    assert demand.admit(0).topics == ("a", "b")


def test_where_the_request_as_a_whole_is_refused_no_topic_is() -> None:
    """Leaving out the topic would not help."""
    size, a = limit_of(ETL, name=PRODUCER_BYTE_RATE), limit_of(Named(Kind.TOPIC, "a"))
    for limit in (size, a):
        limit.algorithm.record(200, 0)
    demand = Demand()
    demand.add((size,), 500)
    demand.add_records(NOBODY_IN_PARTICULAR, topic_of("a", (a,)), Records(10, 1))
    assert demand.admit(0) == Decision(False, SECOND, size, (size, a), ())


def test_records_of_an_unknown_topic_draw_on_the_total_and_are_named_by_nobody() -> None:
    total = limit_of(TOTAL)
    demand = Demand()
    demand.add_records(NOBODY_IN_PARTICULAR, topic_of("", (total,)), Records(150, 1))
    assert demand.charge(0) == Decision(True, SECOND // 2, total, (total,))
    assert demand.admit(0) == Decision(False, SECOND // 2, total, (total,))


def test_a_group_that_both_are_in_counts_records_once() -> None:
    """The client's groups count all that it produces, the topic's all that is produced to it."""
    groups = {
        "both": ResourceGroup("both", client_ids=("etl",), topics=("orders",)),
        "clients": ResourceGroup("clients", users=("alice",)),
        "topics": ResourceGroup("topics", topics=("ord*",)),
    }
    registry = Registry(
        QuotaEntry(Named(Kind.RESOURCE_GROUP, name), {BYTES_IN_RATE: 1000, MESSAGES_IN_RATE: 100}, group=group)
        for name, group in groups.items()
    )
    client, topic = registry.resolve("alice", "etl"), registry.topic("orders", 0)
    assert (client.walks, client.decides_each) == (True, True)
    demand = Demand()
    demand.add_records(client, topic, Records(10, 2))
    seen = {(limit.name, str(limit.entity)): amount for limit, amount in demand.amounts.items()}
    assert seen == {
        (name, f"resource-group:{group}"): amount
        for name, amount in ((BYTES_IN_RATE, 10), (MESSAGES_IN_RATE, 2))
        for group in groups
    }
    stranger, elsewhere = registry.resolve("bob", "web"), registry.topic("clicks", 0)
    for client_limits, topic_limits, expected in (
        (client, elsewhere, {"both", "clients"}),
        (stranger, topic, {"both", "topics"}),
        (stranger, elsewhere, set()),
    ):
        demand = Demand()
        demand.add_records(client_limits, topic_limits, Records(10, 2))
        assert {limit.entity.name for limit in demand.amounts if isinstance(limit.entity, Named)} == expected


def test_thresholds_refuse_by_topic_only_what_is_beyond_both() -> None:
    registry = Registry(
        [
            QuotaEntry(TOTAL, {TOTAL_BYTES_THRESHOLD: 100}),
            QuotaEntry(Named(Kind.TOPIC, "vip"), {BYTES_THRESHOLD: 90}),
        ]
    )
    client = registry.resolve("alice", "etl")

    def demand_of(**records: int) -> Demand:
        demand = Demand()
        for name, size in records.items():
            demand.add_records(client, registry.topic(name, 0), Records(size, 1))
        return demand

    assert demand_of(vip=400, cheap=200).admit(0) is ADMITTED
    now_ns = 5 * SECOND  # the meters have ticked: 120/s in all, vip 80 of 90, cheap 40 of 10
    refused = demand_of(vip=1, cheap=1).admit(now_ns)
    assert (refused.admitted, refused.topics) == (False, ("cheap",))
    assert [limit.name for limit in refused.exceeded] == [BYTES_THRESHOLD]
    assert demand_of(vip=1).admit(now_ns) is ADMITTED


def test_a_ticket_is_settled_in_all_units() -> None:
    number, a = limit_of(ETL, 10, REQUEST_RATE), limit_of(Named(Kind.TOPIC, "a"))
    a.algorithm.record(200, 0)
    demand = Demand()
    demand.add((number,), 1)
    demand.add_records(NOBODY_IN_PARTICULAR, topic_of("a", (a,)), Records(10, 1))
    ticket = Ticket()
    ticket.turn = number
    assert demand.admit(0, ticket).topics == ("a",)
    assert ticket.claims == {number: 1}
    ticket.turn = a
    assert demand.admit(SECOND, ticket).admitted
    assert (ticket.claims, number.algorithm.headroom(SECOND)) == ({}, 9)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 50), st.integers(0, 5)), max_size=6),
    st.integers(0, 300),
    st.lists(st.integers(0, 300), min_size=4, max_size=4),
)
def test_all_or_nothing(parts: list[tuple[str, int, int]], size: int, spent: list[int]) -> None:
    """A request is charged exactly when no limit it draws on is in debt; and those it does not draw on never matter."""
    request, total = limit_of(ETL), limit_of(TOTAL)
    topics = {name: limit_of(Named(Kind.TOPIC, name)) for name in "ab"}
    limits = [request, total, *topics.values()]
    for limit, amount in zip(limits, spent, strict=True):
        limit.algorithm.record(amount, 0)
    demand = Demand()
    demand.add((request,), size)
    for name, record_bytes, messages in parts:
        demand.add_records(NOBODY_IN_PARTICULAR, topic_of(name, (topics[name], total)), Records(record_bytes, messages))
    in_debt = [limit for limit in limits if limit in demand.amounts and limit.debt_ns(0)]
    before = [limit.debt_ns(0) for limit in limits], [limit.algorithm.headroom(0) for limit in limits]
    decision = demand.admit(0)
    assert decision.admitted == (not in_debt)
    if in_debt:
        assert list(decision.exceeded) == [limit for limit in demand.amounts if limit in in_debt]
        assert decision.wait_ns == max(limit.debt_ns(0) for limit in in_debt)
        assert ([limit.debt_ns(0) for limit in limits], [limit.algorithm.headroom(0) for limit in limits]) == before
    else:
        for limit, amount, headroom in zip(limits, spent, before[1], strict=True):
            charged = demand.amounts.get(limit, 0)
            assert limit.algorithm.headroom(0) == max(0, headroom - charged)
            assert limit.debt_ns(0) == max(0, amount + charged - 100) * SECOND // 100


def test_a_threshold_counts_a_frame_as_throttled_once_also_when_it_refuses_it_only_later() -> None:
    registry = Registry(
        [
            QuotaEntry(TOTAL, {TOTAL_BYTES_THRESHOLD: 10}),
            QuotaEntry(ETL, {PRODUCER_BYTE_RATE: 10}),
        ]
    )
    client, topic = registry.resolve("alice", "etl"), registry.topic("orders", 0)
    thresholds = registry.thresholds[BYTES_THRESHOLD]
    client.produce.charge(70, 0)  # holds for 6 s; the threshold is above its rate from the tick at 5 s on
    topic.bytes_in[0].algorithm.record(1000, 0)
    demand, ticket = Demand(), Ticket()
    demand.add(client.produce.limits, 40)
    demand.add_records(client, topic, Records(30, 1))
    refused = demand.admit(SECOND)
    assert refused.exceeded == client.produce.limits
    demand.count_throttled(refused, ticket, SECOND)
    assert thresholds.throttled.count == 0
    for second in (6, 7, 8):
        refused = demand.admit(second * SECOND, ticket)
        assert topic.bytes_in[0] in refused.exceeded
        demand.count_throttled(refused, ticket, second * SECOND)
        assert thresholds.throttled.count == 30
    other = Ticket()
    demand.count_throttled(demand.admit(9 * SECOND), other, 9 * SECOND)
    assert thresholds.throttled.count == 60
