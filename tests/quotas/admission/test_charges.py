"""What Produce requests are charged to limits that count different things, one by one and together."""

from hypothesis import given
from hypothesis import strategies as st

from quotas.admission.client_limits import ClientLimits, TopicCharges, TopicLimits
from quotas.admission.frame import decide, in_order, next_number
from quotas.admission.limit import Limit
from quotas.admission.limit_set import limit_set, spend_charges
from quotas.admission.topic_thresholds import count_throttled
from quotas.algorithms.algorithm import ALGORITHMS, AlgorithmSettings
from quotas.algorithms.token_bucket import AMPLE, TokenBucket
from quotas.entity import TOTAL, AnyEntity, Entity, EntityKind, Named
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


def limit_of(entity: AnyEntity, rate: int = 100, name: str = BYTES_IN_RATE) -> Limit:
    return Limit(name, entity, TokenBucket(rate))


def admit(amounts: dict[Limit, int], now_ns: int) -> tuple[Limit | None, int]:
    """A request is charged if no limit stops it: the one that does, and the longest debt that it leaves, in ns."""
    limit = decide(in_order(amounts), next_number(), None, now_ns).limit
    if limit is not None:
        return limit, 0
    return None, max([each.algorithm.record(units, now_ns) for each, units in amounts.items()], default=0)


def charges_of(name: str, bytes_in: tuple[Limit, ...] = (), messages_in: tuple[Limit, ...] = ()) -> TopicCharges:
    topic = TopicLimits(name)
    topic.bytes_in, topic.messages_in = bytes_in, messages_in
    return TopicCharges(ClientLimits(("alice", "etl")), topic)


def test_the_request_and_each_of_its_topics_are_charged_in_their_own_units() -> None:
    client = ClientLimits(("alice", "etl"))
    size, number = limit_of(ETL, 1000, PRODUCER_BYTE_RATE), limit_of(ETL, 10, REQUEST_RATE)
    client.set_produce(limit_set((size,)), limit_set((number,)))
    a, b = limit_of(Named(EntityKind.TOPIC, "a")), limit_of(Named(EntityKind.TOPIC, "b"))
    a_messages, total = limit_of(Named(EntityKind.TOPIC, "a"), 5, MESSAGES_IN_RATE), limit_of(TOTAL)
    amounts = dict(client.charges_of(500, 1))
    assert client.charges_of(20, 0) == [(size, 20)], "more of one that has begun is no other request"
    charges_of("a", (a, total), (a_messages,)).add_to(amounts, 40, 2)
    charges_of("b", (b, total)).add_to(amounts, 30, 9)
    charges_of("a", (a, total), (a_messages,)).add_to(amounts, 20, 1)
    assert amounts == {size: 500, number: 1, a: 60, total: 90, a_messages: 3, b: 30}
    assert spend_charges(list(amounts.items()), 500, 0) == 10 * 500 // 90, (
        "the total is the first that such requests would exceed"
    )
    left = {limit: limit.algorithm.headroom(0) for limit in amounts}
    assert left == {size: 500, number: 9, a: 40, total: 10, a_messages: 2, b: 70}


def test_a_group_that_both_are_in_counts_records_once() -> None:
    """The client's groups count all that it produces, the topic's all that is produced to it."""
    groups = {
        "both": ResourceGroup("both", client_ids=("etl",), topics=("orders",)),
        "clients": ResourceGroup("clients", users=("alice",)),
        "topics": ResourceGroup("topics", topics=("ord*",)),
    }
    registry = Registry(
        QuotaEntry(Named(EntityKind.RESOURCE_GROUP, name), {BYTES_IN_RATE: 1000, MESSAGES_IN_RATE: 100}, group=group)
        for name, group in groups.items()
    )
    client, topic = registry.resolve("alice", "etl"), registry.topic("orders", 0)
    assert client.walks
    amounts: dict[Limit, int] = {}
    TopicCharges(client, topic).add_to(amounts, 10, 2)
    seen = {(limit.name, str(limit.entity)): amount for limit, amount in amounts.items()}
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
        charges = TopicCharges(client_limits, topic_limits)
        limits = charges.bytes_in + charges.messages_in
        assert {limit.entity.name for limit in limits if isinstance(limit.entity, Named)} == expected
        assert charges.has_any_of(set(limits)) is bool(limits)
        assert not charges.has_any_of({limit_of(ETL)})


def test_thresholds_refuse_only_what_is_above_both() -> None:
    registry = Registry(
        [
            QuotaEntry(TOTAL, {TOTAL_BYTES_THRESHOLD: 100}),
            QuotaEntry(Named(EntityKind.TOPIC, "vip"), {BYTES_THRESHOLD: 90}),
        ]
    )
    client = registry.resolve("alice", "etl")

    def amounts_of(**records: int) -> dict[Limit, int]:
        amounts: dict[Limit, int] = {}
        for name, size in records.items():
            TopicCharges(client, registry.topic(name, 0)).add_to(amounts, size, 1)
        return amounts

    assert admit(amounts_of(vip=400, cheap=200), 0) == (None, 0)
    registry.topics.accepted("vip", 400, 1, 0)
    registry.topics.accepted("cheap", 200, 1, 0)
    now_ns = 5 * SECOND  # the meters have ticked: 120/s in all, vip 80 of 90, cheap 40 of 10
    refusing, _ = admit(amounts_of(vip=1, cheap=1), now_ns)
    assert refusing in amounts_of(cheap=1)
    assert admit(amounts_of(vip=1), now_ns) == (None, 0)


MADE = st.tuples(st.sampled_from(ALGORITHMS), st.integers(1, 3_000) | st.just(2 * AMPLE))


@given(
    st.lists(MADE, min_size=1, max_size=5),
    st.lists(
        st.tuples(
            st.integers(0, 3 * SECOND),
            st.lists(st.lists(st.integers(0, 400), min_size=5, max_size=5), min_size=1, max_size=5),
            st.integers(0, 30),
        ),
        max_size=12,
    ),
)
def test_spending_together_is_admitting_one_by_one(
    made: list[tuple[str, int]], runs: list[tuple[int, list[list[int]], int]]
) -> None:
    """Of any algorithms. Where a run does not fit nothing has changed, whatever was asked before the refusing limit."""
    settings = AlgorithmSettings()
    together, one_by_one = (
        [Limit(BYTES_IN_RATE, ETL, settings.make(BYTES_IN_RATE, rate, algorithm, None)) for algorithm, rate in made]
        for _ in range(2)
    )
    now_ns = 0
    for elapsed_ns, requests, waits in runs:
        now_ns += elapsed_ns
        for limits in (together, one_by_one):
            if waits < len(limits):
                limits[waits].enqueue("early", 1)
        sums = {limit: sum(each[at] for each in requests) for at, limit in enumerate(together)}
        size = sum(map(sum, requests)) + 1
        fitting = spend_charges(list(sums.items()), size, now_ns)
        if fitting < 0:
            for each in requests:
                admit(dict(zip(together, each, strict=False)), now_ns)
        outcomes = [admit(dict(zip(one_by_one, each, strict=False)), now_ns) for each in requests]
        if fitting >= 0:
            assert outcomes == [(None, 0)] * len(requests)
            left = {limit: limit.algorithm.headroom(now_ns) for limit in together if sums[limit]}
            fit = [units * size // sums[limit] for limit, units in left.items() if units < AMPLE]
            assert fitting == min([AMPLE, *fit])
        for one, other in zip(together, one_by_one, strict=True):
            for later_ns in (now_ns, now_ns + SECOND // 3, now_ns + 7 * SECOND):
                assert one.debt_ns(later_ns) == other.debt_ns(later_ns)
                assert one.algorithm.headroom(later_ns) == other.algorithm.headroom(later_ns)
            assert one.algorithm.passed == other.algorithm.passed
            one.waiters.discard("early")
            other.waiters.discard("early")


def test_only_thresholds_count_what_they_refuse_or_have_held() -> None:
    registry = Registry([QuotaEntry(TOTAL, {TOTAL_BYTES_THRESHOLD: 10}), QuotaEntry(ETL, {PRODUCER_BYTE_RATE: 10})])
    (own,) = registry.resolve("alice", "etl").produce.limits
    (threshold,) = registry.topic("orders", 0).bytes_in
    for amount in (30, 10):
        count_throttled(threshold, amount, 0)
        count_throttled(own, amount, 0)
    assert registry.topics.thresholds[BYTES_THRESHOLD].throttled.count == 40
