"""Exempt clients: neither charged nor held by a limit of others."""

import pytest

from quotas.admission.client_limits import TopicCharges
from quotas.admission.limit_set import NO_LIMITS
from quotas.entity import TOTAL, EntityKind
from quotas.exemption import Exemption
from quotas.limit_kinds import BYTES_THRESHOLD, CONNECTIONS
from quotas.parsing.parse import parse_spec
from quotas.registry.registry import Registry
from tests.quotas.cost import calls_during


def registry_of(*specs: str) -> Registry:
    return Registry([parse_spec(spec) for spec in specs])


def charges_of(registry: Registry, client_id: str, topic: str = "orders") -> TopicCharges:
    return TopicCharges(registry.resolve("u", client_id), registry.topic(topic, 0))


def test_an_entry_lifts_a_limit_of_an_address_and_of_a_topic() -> None:
    registry = registry_of(
        "ip=10.0.0.1,connections=unlimited",
        "ip=<default>,connections=5",
        "topic=audit,bytes_in_rate=unlimited",
        "topic=<default>,bytes_in_rate=5",
    )
    assert registry.configured_value(CONNECTIONS, EntityKind.IP, "10.0.0.1") is None
    assert registry.configured_value(CONNECTIONS, EntityKind.IP, "10.0.0.2") is not None
    assert registry.topic("audit", 0).bytes_in == ()
    assert len(registry.topic("orders", 0).bytes_in) == 1


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


def test_a_total_neither_charges_nor_holds_exempt_clients() -> None:
    registry = registry_of("total,producer_byte_rate=10,request_rate=1,exempt-user=boss", "user=boss,request_rate=9")
    boss, other = registry.resolve("boss", "c"), registry.resolve("u", "c")
    assert (boss.produce, [str(limit.entity) for limit in boss.requests.limits]) == (NO_LIMITS, ["user:boss"])
    assert [limit.entity for limit in other.produce.limits] == [TOTAL]


@pytest.mark.parametrize(
    "key",
    [
        ("topic=orders,bytes.in.per.sec.threshold=10,exempt-user=u", "total,total.bytes.in.per.sec.threshold=20"),
        ("topic=orders,bytes.in.per.sec.threshold=10", "total,total.bytes.in.per.sec.threshold=20,exempt-user=u"),
    ],
)
def test_thresholds_do_not_hold_exempt_clients(key: tuple[str, ...]) -> None:
    registry = registry_of(*key)
    assert charges_of(registry, "c").bytes_in == ()
    others = TopicCharges(registry.resolve("v", "c"), registry.topic("orders", 0))
    assert [limit.name for limit in others.bytes_in] == [BYTES_THRESHOLD]


@pytest.mark.pure  # counts calls of Python functions
def test_a_look_up_costs_the_same_with_any_number_of_patterns() -> None:
    exempt = Exemption(("boss",), tuple(f"c{number}{'*' * (number % 2)}" for number in range(200)))
    covered = {"c7": True, "c8": True, "c70": True, "c80": True, "c86": True, "c860": False, "d": False}
    assert {name: exempt.covers("u", name) for name in covered} == covered
    assert exempt.covers("boss", "d")
    assert calls_during(lambda: exempt.covers("u", "d")) < 10
