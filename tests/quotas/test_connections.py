"""New connections: their number, and their rate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.algorithms.algorithm import ALGORITHMS, SAMPLED_WINDOW, TOKEN_BUCKET, AlgorithmSettings
from quotas.connections import ConnectionQuotas, ConnectionVerdict
from quotas.entity import DEFAULT, TOTAL, AnyEntity, EntityKind, Named
from quotas.entry import QuotaEntry
from quotas.limit_kinds import CONNECTION_CREATION_RATE, CONNECTIONS
from quotas.limit_options import LimitOptions
from quotas.registry.registry import Registry

SECOND = 1_000_000_000
MS = 1_000_000
MAX_WAIT_NS = 8 * SECOND
IP, OTHER_IP = "10.0.0.1", "10.0.0.2"
ANY_IP = Named(EntityKind.IP, DEFAULT)
LISTENER = ("bootstrap", "19092")


def quotas_of(
    *limits: tuple[AnyEntity, str, int],
    algorithm: str | None = None,
    max_wait_ns: int = MAX_WAIT_NS,
    share: float = 1,
    first_window: bool = True,
) -> ConnectionQuotas:
    by_entity: dict[AnyEntity, dict[str, int]] = {}
    for entity, name, value in limits:
        by_entity.setdefault(entity, {})[name] = value
    entries = [QuotaEntry(entity, own, LimitOptions(algorithm=algorithm)) for entity, own in by_entity.items()]
    settings = AlgorithmSettings(window_num=2, first_window=first_window)
    return ConnectionQuotas(Registry(entries, settings=settings, share=share), max_wait_ns)


def arrive(
    quotas: ConnectionQuotas, ip: str = IP, listener: tuple[str, ...] = LISTENER, now_ns: int = 0
) -> ConnectionVerdict:
    """The verdict on a new connection. One above `connections` is closed at once."""
    over = quotas.over(ip, listener)
    if over is not None:
        return over
    verdict = quotas.record(ip, listener, now_ns)
    quotas.open(ip, listener, admitted=verdict.admitted)
    return verdict


# ---- connections at a time


@pytest.mark.parametrize(
    ("configured", "entity"),
    [
        (Named(EntityKind.IP, IP), Named(EntityKind.IP, IP)),
        (ANY_IP, Named(EntityKind.IP, IP)),
        (Named(EntityKind.LISTENER, "bootstrap"), Named(EntityKind.LISTENER, "bootstrap")),
        (Named(EntityKind.LISTENER, "19092"), Named(EntityKind.LISTENER, "19092")),
        (TOTAL, TOTAL),
    ],
)
@pytest.mark.parametrize("number", [0, 2])
def test_a_connection_above_the_number_is_refused_at_once(
    configured: AnyEntity, entity: AnyEntity, number: int
) -> None:
    quotas = quotas_of((configured, CONNECTIONS, number))
    assert [arrive(quotas) for _ in range(number)] == [ConnectionVerdict(True)] * number
    refused = ConnectionVerdict(False, 0, CONNECTIONS, entity, number)
    assert arrive(quotas) == arrive(quotas) == refused
    if number:
        quotas.close(IP, LISTENER, admitted=True)
        assert [arrive(quotas), arrive(quotas)] == [ConnectionVerdict(True), refused]


def test_a_number_of_connections_is_not_scaled_by_the_share_and_a_rate_is() -> None:
    quotas = quotas_of((TOTAL, CONNECTIONS, 2), share=0.5)
    assert [arrive(quotas).admitted for _ in range(3)] == [True, True, False]
    quotas = quotas_of((TOTAL, CONNECTION_CREATION_RATE, 4), share=0.5)
    assert [arrive(quotas).limit_value for _ in range(3)] == [0, 0, 2]


def test_a_connection_above_the_number_is_not_recorded_in_rates() -> None:
    quotas = quotas_of((Named(EntityKind.IP, IP), CONNECTIONS, 1), (TOTAL, CONNECTION_CREATION_RATE, 2))
    assert [arrive(quotas).limit_name for _ in range(6)] == [None, *[CONNECTIONS] * 5]
    assert arrive(quotas, OTHER_IP) == ConnectionVerdict(True)


def test_one_that_is_refused_for_its_rate_counts_for_its_address_only() -> None:
    """Otherwise an address over its rate could use up the connections of all others with some that are never served."""
    limits = (
        (Named(EntityKind.IP, IP), CONNECTION_CREATION_RATE, 1),
        (ANY_IP, CONNECTIONS, 30),
        (TOTAL, CONNECTIONS, 20),
    )
    quotas = quotas_of(*limits)
    admitted = [arrive(quotas).admitted for _ in range(30)]
    assert 0 < sum(admitted) < 12
    assert arrive(quotas).entity == Named(EntityKind.IP, IP)
    assert arrive(quotas, OTHER_IP) == ConnectionVerdict(True)


# ---- networks

NETWORK, WIDER = Named(EntityKind.IP, "10.0.0.0/24"), Named(EntityKind.IP, "10.0.0.0/8")


@pytest.mark.parametrize(
    ("configured", "entity"),
    [
        ([WIDER], WIDER),
        ([WIDER, NETWORK], NETWORK),
        ([WIDER, NETWORK, Named(EntityKind.IP, IP)], Named(EntityKind.IP, IP)),
        ([ANY_IP, WIDER], WIDER),
        ([Named(EntityKind.IP, "::/0"), Named(EntityKind.IP, "10.0.1.0/24"), ANY_IP], Named(EntityKind.IP, IP)),
    ],
)
@pytest.mark.parametrize("limit", [CONNECTIONS, CONNECTION_CREATION_RATE])
def test_an_address_has_the_limit_of_its_own_entry_then_of_the_longest_prefix_then_of_the_default(
    configured: list[AnyEntity], entity: AnyEntity, limit: str
) -> None:
    quotas = quotas_of(*((each, limit, 1) for each in configured), algorithm=TOKEN_BUCKET)
    assert arrive(quotas) == ConnectionVerdict(True)
    assert arrive(quotas).entity == entity


def test_unlimited_lifts_the_limits_of_shorter_prefixes() -> None:
    entries = [QuotaEntry(WIDER, {CONNECTIONS: 1}), QuotaEntry(NETWORK, {}, unlimited=(CONNECTIONS,))]
    quotas = ConnectionQuotas(Registry(entries), MAX_WAIT_NS)
    assert [arrive(quotas, f"10.0.0.{each}") for each in range(5)] == [ConnectionVerdict(True)] * 5
    assert not arrive(quotas, "10.0.1.1").admitted, "the connections of the narrower network are its own, too"


@pytest.mark.parametrize("limit", [CONNECTIONS, CONNECTION_CREATION_RATE])
def test_all_addresses_of_a_network_share_its_limit(limit: str) -> None:
    quotas = quotas_of((WIDER, limit, 3), (ANY_IP, limit, 1), algorithm=TOKEN_BUCKET)
    assert [arrive(quotas, f"10.0.{each}.1").entity for each in range(6)] == [None] * 3 + [WIDER] * 3
    assert [arrive(quotas, f"11.0.{each}.1").entity for each in range(6)] == [None] * 6, "no members"


def test_a_network_that_is_added_has_the_connections_that_are_open() -> None:
    registry = Registry()
    quotas = ConnectionQuotas(registry, MAX_WAIT_NS)
    for each in range(5):
        arrive(quotas, f"10.0.0.{each}")
    registry.replace([QuotaEntry(NETWORK, {CONNECTIONS: 5})], 0)
    assert arrive(quotas).entity == NETWORK
    registry.replace([], 0)
    for each in range(5):
        quotas.close(f"10.0.0.{each}", LISTENER, admitted=True)
    assert quotas._open == {}


@pytest.mark.parametrize("after", [[WIDER], [WIDER, NETWORK, ANY_IP], [ANY_IP], []])
def test_a_rate_of_a_network_ends_with_its_entry(after: list[Named]) -> None:
    """The buckets that no address has any more are dropped, those that stay keep their debt."""
    registry = Registry([QuotaEntry(each, {CONNECTION_CREATION_RATE: 1}) for each in (NETWORK, ANY_IP)])
    quotas = ConnectionQuotas(registry, MAX_WAIT_NS)
    for ip in (IP, OTHER_IP, "11.0.0.1"):
        arrive(quotas, ip)
    assert {limit.entity for limit in registry.limits_in_use()} == {NETWORK, Named(EntityKind.IP, "11.0.0.1")}
    registry.replace([QuotaEntry(each, {CONNECTION_CREATION_RATE: 1}) for each in after], 0)
    kept = {NETWORK: NETWORK in after, Named(EntityKind.IP, "11.0.0.1"): ANY_IP in after}
    assert {limit.entity for limit in registry.limits_in_use()} == {each for each, stays in kept.items() if stays}


def test_a_bucket_of_a_default_ends_when_its_address_is_in_a_network() -> None:
    registry = Registry([QuotaEntry(ANY_IP, {CONNECTION_CREATION_RATE: 1})])
    arrive(ConnectionQuotas(registry, MAX_WAIT_NS))
    registry.replace([QuotaEntry(each, {CONNECTION_CREATION_RATE: 1}) for each in (ANY_IP, WIDER)], 0)
    assert list(registry.limits_in_use()) == []


# ---- connections a second


def test_the_longest_wait_of_address_listener_and_total_counts() -> None:
    listener = Named(EntityKind.LISTENER, "bootstrap")
    limits = [(ANY_IP, 2), (listener, 1), (TOTAL, 4)]
    quotas = quotas_of(*((each, CONNECTION_CREATION_RATE, rate) for each, rate in limits), algorithm=TOKEN_BUCKET)
    assert arrive(quotas) == ConnectionVerdict(True)
    assert arrive(quotas) == ConnectionVerdict(True, SECOND, CONNECTION_CREATION_RATE, listener, 1)
    of_ip = ConnectionVerdict(True, SECOND // 2, CONNECTION_CREATION_RATE, Named(EntityKind.IP, IP), 2)
    assert arrive(quotas, IP, ("9093",)) == of_ip
    assert arrive(quotas, OTHER_IP, ("9093",)) == ConnectionVerdict(True)
    of_total = ConnectionVerdict(True, SECOND // 4, CONNECTION_CREATION_RATE, TOTAL, 4)
    assert arrive(quotas, "10.0.0.3", ("9094",)) == of_total


@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS])
@given(
    gaps_ms=st.lists(st.integers(0, 700), max_size=60), rate=st.integers(1, 4), max_wait_ms=st.sampled_from([100, 2000])
)
def test_refusals_change_nothing_for_others_and_no_wait_is_above_the_maximum(
    algorithm: str | None, gaps_ms: list[int], rate: int, max_wait_ms: int
) -> None:
    limits = [(ANY_IP, CONNECTION_CREATION_RATE, rate), (TOTAL, CONNECTION_CREATION_RATE, 5)]
    one, other = (quotas_of(*limits, algorithm=algorithm, max_wait_ns=max_wait_ms * MS) for _ in range(2))
    now_ns = 0
    for gap_ms in gaps_ms:
        now_ns += gap_ms * MS
        verdict = one.record(IP, LISTENER, now_ns)
        assert verdict.wait_ns <= max_wait_ms * MS
        if verdict.admitted:
            assert verdict == other.record(IP, LISTENER, now_ns)
        else:
            assert verdict == one.record(IP, LISTENER, now_ns)


@pytest.mark.parametrize("algorithm", [None, TOKEN_BUCKET, SAMPLED_WINDOW])
def test_a_rate_below_one_connection_in_the_longest_wait_is_served(algorithm: str | None) -> None:
    """One in ten seconds, and a wait of eight at most."""
    limit = TOTAL, CONNECTION_CREATION_RATE, 1
    quotas = quotas_of(limit, algorithm=algorithm, share=0.1)
    assert sum(arrive(quotas, now_ns=nth * 100 * MS).admitted for nth in range(6000)) in range(50, 63)
    even = quotas_of(limit, algorithm=algorithm, share=0.1)
    assert all(arrive(even, now_ns=nth * 12 * SECOND).admitted for nth in range(50))
