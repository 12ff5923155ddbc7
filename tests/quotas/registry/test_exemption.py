"""Exempt clients: never held, and what they send is still counted by the total."""

from __future__ import annotations

from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.admission.client_limits import TopicCharges
from quotas.admission.limit import Limit
from quotas.admission.limit_set import admit_all, spend_all
from quotas.algorithms.algorithm import ALGORITHMS, SAMPLED_WINDOW, TOKEN_BUCKET, Algorithm
from quotas.algorithms.ewma import TICK_NS, Ewma
from quotas.algorithms.never_in_debt import LONGEST_DEBT_NS, NeverInDebt
from quotas.algorithms.sampled_window import SampledWindow
from quotas.entity import TOTAL, Kind, Named
from quotas.exemption import Exemption
from quotas.limit_kinds import BYTES_IN_RATE, BYTES_THRESHOLD, CONNECTIONS, CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from quotas.parsing.parse import parse_spec
from quotas.registry.registry import Registry
from tests.quotas.cost import calls_during
from tests.quotas.serving import SECOND, Serving, Session

RATE = 1_000_000


def registry_of(*specs: str) -> Registry:
    return Registry([parse_spec(spec) for spec in specs])


def total_of(registry: Registry, name: str = PRODUCER_BYTE_RATE) -> Limit:
    [limit] = [each for each in registry.limits_in_use() if each.name == name and each.entity == TOTAL]
    return limit


def charges_of(registry: Registry, client_id: str, topic: str = "orders") -> TopicCharges:
    return TopicCharges(registry.resolve("u", client_id), registry.topic(topic, 0))


@pytest.mark.parametrize(
    ("lifting", "others"),
    [
        ("client-id=free,producer_byte_rate=unlimited", "client-id=<default>,producer_byte_rate=5"),
        ("user=u,producer_byte_rate=unlimited", "user=<default>,producer_byte_rate=5"),
        ("user=u,client-id=free,producer_byte_rate=unlimited", "user=u,producer_byte_rate=5"),
    ],
)
def test_an_entry_lifts_a_limit_of_a_client_and_leaves_the_total(lifting: str, others: str) -> None:
    registry = registry_of(lifting, others, "total,producer_byte_rate=50")
    assert [limit.entity for limit in registry.resolve("u", "free").produce.limits] == [TOTAL]
    assert len(registry.resolve("v", "other").produce.limits) == (1 if "user=u," in others else 2)


def test_an_entry_lifts_a_limit_of_an_address_and_of_a_topic() -> None:
    registry = registry_of(
        "ip=10.0.0.1,connections=unlimited",
        "ip=<default>,connections=5",
        "topic=audit,bytes_in_rate=unlimited",
        "topic=<default>,bytes_in_rate=5",
    )
    assert registry.configured_value(CONNECTIONS, Kind.IP, "10.0.0.1") is None
    assert registry.configured_value(CONNECTIONS, Kind.IP, "10.0.0.2") is not None
    assert registry.topic("audit", 0).bytes_in == ()
    assert len(registry.topic("orders", 0).bytes_in) == 1


def test_a_bucket_ends_when_its_limit_is_lifted() -> None:
    registry = registry_of("client-id=<default>,producer_byte_rate=5")
    [limit] = registry.resolve("u", "c").produce.limits
    entries = ["client-id=<default>,producer_byte_rate=5", "client-id=c,producer_byte_rate=unlimited"]
    registry.replace([parse_spec(spec) for spec in entries], 0)
    assert not registry.is_in_use(limit)
    assert registry.resolve("u", "c").produce.limits == ()


def test_a_topic_and_a_group_do_not_count_exempt_clients() -> None:
    registry = registry_of(
        "topic=orders,bytes_in_rate=5,exempt-client-id=free-*",
        "resource-group=g,client-id=*,topic=orders,producer_byte_rate=6,bytes_in_rate=7,exempt-client-id=free-1",
        "total,bytes_in_rate=8",
    )
    assert [str(each.entity) for each in charges_of(registry, "c").bytes_in] == [
        "topic:orders",
        "resource-group:g",
        "total",
    ]
    assert [str(each.entity) for each in charges_of(registry, "free-1").bytes_in] == ["total"]
    assert [str(each.entity) for each in charges_of(registry, "free-2").bytes_in] == ["resource-group:g", "total"]
    assert registry.resolve("u", "free-1").produce.limits == ()
    assert len(registry.resolve("u", "free-2").produce.limits) == 1


def test_a_total_charges_exempt_clients_and_holds_the_others() -> None:
    registry = registry_of("total,producer_byte_rate=10,request_rate=1,exempt-user=boss")
    boss, other = registry.resolve("boss", "c"), registry.resolve("u", "c")
    for _ in range(3):
        assert boss.spend(8, 1, 0) > 1 << 40
    limit = total_of(registry)
    assert limit.debt_ns(0) == 14 * SECOND // 10
    assert not other.produce.admit(1, 0).admitted
    limit.enqueue("waits", 1)
    assert boss.produce.admit(1, 0).wait_ns == 0, "it passes those that wait"
    assert boss.mutations.limits == ()


def test_an_exempt_fetch_reserves_nothing_of_the_total() -> None:
    registry = registry_of("total,consumer_byte_rate=10,exempt-client-id=free", "client-id=free,consumer_byte_rate=20")
    fetch = registry.resolve("u", "free").fetch
    [own] = fetch.limits
    assert fetch.admit(15, 0).admitted
    total = total_of(registry, CONSUMER_BYTE_RATE)
    assert total.algorithm.headroom(0) == 10
    fetch.refund(10, 0, 0)
    assert fetch.settle(9, 5, 0).admitted
    assert (own.algorithm.headroom(0), total.algorithm.headroom(0)) == (11, 1)


@pytest.mark.parametrize(
    "key",
    [
        ("topic=orders,bytes.in.per.sec.threshold=10,exempt-user=u", "total,total.bytes.in.per.sec.threshold=20"),
        ("topic=orders,bytes.in.per.sec.threshold=10", "total,total.bytes.in.per.sec.threshold=20,exempt-user=u"),
    ],
)
def test_thresholds_measure_exempt_clients_and_do_not_hold_them(key: tuple[str, ...]) -> None:
    registry = registry_of(*key)
    amounts: dict[Limit, int] = {}
    charges_of(registry, "c").add_to(amounts, 100_000, 1)
    assert spend_all(list(amounts.items()), 100_000, 0) >= 0
    now_ns = 6 * SECOND
    assert registry.thresholds[BYTES_THRESHOLD].accepted.one_minute_rate(now_ns) > 20
    assert admit_all(amounts, now_ns).admitted
    others = TopicCharges(registry.resolve("v", "c"), registry.topic("orders", now_ns))
    others.add_to(amounts := {}, 1, 1)
    assert not admit_all(amounts, now_ns).admitted


@pytest.mark.pure  # counts calls of Python functions
def test_a_look_up_costs_the_same_with_any_number_of_patterns() -> None:
    exempt = Exemption(("boss",), tuple(f"c{number}{'*' * (number % 2)}" for number in range(200)))
    covered = {"c7": True, "c8": True, "c70": True, "c80": True, "c86": True, "c860": False, "d": False}
    assert {name: exempt.covers("u", name) for name in covered} == covered
    assert exempt.covers("boss", "d")
    assert calls_during(lambda: exempt.covers("u", "d")) < 10


def test_an_exemption_ends_with_its_entry() -> None:
    registry = registry_of("total,producer_byte_rate=10,exempt-user=u")
    assert registry.resolve("u", "c").produce.limits != (total_of(registry),)
    registry.replace([parse_spec("total,producer_byte_rate=10")], 0)
    assert registry.resolve("u", "c").produce.limits == (total_of(registry),)
    registry.replace([parse_spec("total,producer_byte_rate=10,exempt-user=*")], 0)
    assert registry.resolve("u", "c").produce.limits != (total_of(registry),)
    assert registry.is_in_use(total_of(registry))


LARGEST = RATE // 4
sizes = st.integers(1, LARGEST)


def registry_with(algorithm: str) -> Registry:
    return registry_of(f"total,producer_byte_rate={RATE},exempt-client-id=free,algorithm={algorithm}")


def serve(algorithm: str, others: list[tuple[bool, int]], sent: list[tuple[int, int]]) -> tuple[Serving, Limit]:
    """Clients with frames of one size, at once or with pauses, beside an exempt one: sizes and pauses before them."""
    registry = registry_with(algorithm)
    serving = Serving()
    serving.join(
        Session(f"c{number}", registry.resolve("u", f"c{number}").produce, repeat(size), SECOND // 50 if slow else 1000)
        for number, (slow, size) in enumerate(others)
    )
    exempt = registry.resolve("u", "free").produce
    at_ns = 0
    for size, pause_ns in sent:
        at_ns += pause_ns
        serving.join([Session("free", exempt, iter([size]))], at_ns)
    serving.run(at_ns + SECOND // 10)
    return serving, total_of(registry)


some_others = st.lists(st.tuples(st.booleans(), st.integers(RATE // 100, LARGEST)), min_size=1, max_size=4)


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, SAMPLED_WINDOW])
@given(others=some_others, sent=st.lists(st.tuples(sizes, st.integers(SECOND // 4, SECOND)), max_size=20))
def test_a_total_is_conserved_with_exempt_clients_that_leave_some_of_it(
    algorithm: str, others: list[tuple[bool, int]], sent: list[tuple[int, int]]
) -> None:
    serving, _ = serve(algorithm, others, sent)
    passed = 0
    for each in serving.passed:
        allowed = RATE + RATE * each.at_ns // SECOND  # its burst, and what it has earned
        assert passed <= allowed or each.session.name == "free", "others pass only while all together are in budget"
        passed += each.size
        assert passed <= allowed + 2 * LARGEST, "a frame of them, and an exempt one"


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, SAMPLED_WINDOW])
@given(
    others=some_others,
    sent=st.lists(st.tuples(st.integers(1, 10 * RATE), st.integers(0, SECOND)), min_size=1, max_size=20),
)
def test_an_exempt_client_is_never_held_and_others_soon_recover(
    algorithm: str, others: list[tuple[bool, int]], sent: list[tuple[int, int]]
) -> None:
    serving, limit = serve(algorithm, others, sent)
    assert [each.size for each in serving.passed if each.session.name == "free"] == [size for size, _ in sent]
    largest = max(LARGEST, *(size for size, _ in sent))
    # Sampled windows count in milliseconds.
    assert limit.debt_ns(serving.now_ns) <= LONGEST_DEBT_NS + largest * SECOND // RATE + SECOND // 1000


def last_debt(limit: Algorithm, now_ns: int) -> int:
    """Nanoseconds until others pass for good, if nothing more is sent: a debt may begin or get longer by itself."""
    later = range(now_ns, now_ns + 40 * SECOND, SECOND // 4)
    return max([at_ns - now_ns for at_ns in later if limit.debt_ns(at_ns)], default=0)


#: Numbers of frames, their size, the pause between them and the one before them.
floods = st.lists(
    st.tuples(
        st.integers(1, 80),
        st.integers(1, RATE),
        st.integers(0, SECOND // 10),
        st.integers(0, 30).map(lambda seconds: seconds * SECOND // 3),
    ),
    min_size=1,
    max_size=5,
)
Floods = list[tuple[int, int, int, int]]


def flood(exempt: NeverInDebt, now_ns: int, sent: Floods) -> int:
    """Charge the frames, from then on. Returns the time of the last one."""
    for number, size, between_ns, before_ns in sent:
        now_ns += before_ns
        for _ in range(number):
            now_ns += between_ns
            exempt.record(size, now_ns)
    return now_ns


@pytest.mark.parametrize("first_window", [True, False])
@given(phase_ns=st.integers(0, 20 * SECOND), sent=floods)
def test_sampled_windows_hold_others_at_most_until_they_expire(
    *, first_window: bool, phase_ns: int, sent: Floods
) -> None:
    counted = SampledWindow(RATE, samples=11, window_ns=SECOND, first_window=first_window)
    counted.record(1, 0)
    now_ns = flood(NeverInDebt(counted), phase_ns, sent)
    assert last_debt(counted, now_ns) <= 11 * SECOND


@given(phase_ns=st.integers(0, 20 * SECOND), sent=floods)
def test_an_ewma_without_charges_of_others_is_out_of_debt_within_four_ticks(phase_ns: int, sent: Floods) -> None:
    counted = Ewma(RATE)
    counted.record(1, 0)
    now_ns = flood(NeverInDebt(counted), phase_ns, sent)
    assert last_debt(counted, now_ns) <= 4 * TICK_NS


@given(
    others=st.lists(st.tuples(st.integers(0, 20 * RATE), st.integers(0, 10 * SECOND)), max_size=10),
    sent=st.lists(st.tuples(st.integers(1, RATE // 5), st.integers(SECOND // 4, 5 * SECOND)), max_size=60),
)
def test_an_ewma_is_charged_for_exempt_clients_below_its_rate_also_in_debt(
    others: list[tuple[int, int]], sent: list[tuple[int, int]]
) -> None:
    counted, charged = Ewma(RATE), Ewma(RATE)
    exempt = NeverInDebt(counted)
    events: list[tuple[int, int, bool]] = []
    for amounts, is_exempt in ((others, False), (sent, True)):
        at_ns = 0
        for amount, pause_ns in amounts:
            at_ns += pause_ns
            events.append((at_ns, amount, is_exempt))
    for at_ns, amount, is_exempt in sorted(events):
        (exempt if is_exempt else counted).record(amount, at_ns)
        charged.record(amount, at_ns)
        assert (counted.debt_ns(at_ns), counted.headroom(at_ns)) == (charged.debt_ns(at_ns), charged.headroom(at_ns))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(frames=st.lists(st.tuples(st.integers(1, 2 * RATE), st.integers(0, SECOND), st.booleans()), max_size=20))
def test_refunds_never_exceed_what_was_charged(algorithm: str, frames: list[tuple[int, int, bool]]) -> None:
    """What was not charged is no credit."""
    registry = registry_with(algorithm)
    produce = registry.resolve("u", "free").produce
    limit = total_of(registry)
    now_ns = 0
    for size, pause_ns, is_refunded in frames:
        now_ns += pause_ns
        before_ns, room = limit.algorithm.wait_ns(RATE, now_ns), limit.algorithm.headroom(now_ns)
        produce.charge(size, now_ns)
        if is_refunded:
            produce.refund(size, now_ns, now_ns)
        assert limit.algorithm.wait_ns(RATE, now_ns) >= before_ns
        assert limit.algorithm.headroom(now_ns) <= room


def test_the_other_scopes_of_a_threshold_are_not_exempt() -> None:
    registry = registry_of("topic=orders,bytes_in_rate=5,exempt-user=u", "topic=<default>,bytes_in_rate=6")
    [limit] = charges_of(registry, "c", "audit").bytes_in
    assert (limit.name, limit.entity) == (BYTES_IN_RATE, Named(Kind.TOPIC, "audit"))
