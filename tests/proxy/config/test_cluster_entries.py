"""What of the cluster's own client quotas is enforced here, and what is only named."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.client_quotas import ClientQuota
from proxy.config import host_names
from proxy.config.cluster_entries import BURST_SECONDS, SPARE_SECONDS, cluster_entries, share_below_brokers
from proxy.config.config import QuotaOptions
from quotas.algorithms.sampled_window import SampledWindow
from quotas.algorithms.token_bucket import TokenBucket
from quotas.entity import DEFAULT, AnyEntity, Entity, EntityKind, Named
from quotas.entry import QuotaEntry
from quotas.limit_options import LimitOptions
from quotas.rates import LONG_MAX

DEFAULTS = QuotaOptions()
RATES = {"producer_byte_rate": 5e6, "consumer_byte_rate": 7e6, "controller_mutation_rate": 0.5}


@pytest.mark.parametrize(
    ("names", "entity"),
    [
        ({"user": "alice", "client-id": "etl"}, Entity("alice", "etl")),
        ({"user": "alice", "client-id": None}, Entity("alice", DEFAULT)),
        ({"user": "alice"}, Entity("alice")),
        ({"client-id": "etl", "user": None}, Entity(DEFAULT, "etl")),
        ({"user": None, "client-id": None}, Entity(DEFAULT, DEFAULT)),
        ({"user": None}, Entity(DEFAULT)),
        ({"client-id": "etl"}, Entity(None, "etl")),
        ({"client-id": None}, Entity(None, DEFAULT)),
        ({"user": "<default>"}, Entity("<default>")),
        ({"user": "CN=etl,O=acme"}, Entity("CN=etl,O=acme")),
    ],
)
def test_each_entity_of_a_client(names: dict[str, str | None], entity: AnyEntity) -> None:
    """By three brokers: all figures are multiplied but that of the controller, of which there is one."""
    for brokers in (1, 3):
        found = cluster_entries([ClientQuota(names, RATES)], brokers, DEFAULTS)
        [entry] = found.entries
        assert entry.entity == entity
        limits = dict(entry.limits)
        assert limits.pop("controller_mutation_rate") == pytest.approx(0.5)
        assert limits == {"producer_byte_rate": 4_750_000 * brokers, "consumer_byte_rate": 6_650_000 * brokers}
        assert not found.left_out


@pytest.mark.parametrize(
    ("name", "canonical"),
    [("10.0.0.7", "10.0.0.7"), ("::ffff:10.0.0.7", "10.0.0.7"), (None, DEFAULT), ("h", "9.9.9.9")],
)
def test_an_address(name: str | None, canonical: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_names, "addresses_of", lambda host: {"h": ["9.9.9.9"]}.get(host, []))
    [entry] = cluster_entries([ClientQuota({"ip": name}, {"connection_creation_rate": 20.0})], 3, DEFAULTS).entries
    assert entry == QuotaEntry(Named(EntityKind.IP, canonical), {"connection_creation_rate": 60})  # type: ignore[arg-type]


def test_what_is_left_out_is_counted_and_the_rest_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_names, "addresses_of", lambda _: [])
    etl, other = {"client-id": "etl"}, {"client-id": "other"}
    found = cluster_entries(
        [
            ClientQuota(etl, {"producer_byte_rate": 5000.0, "request_percentage": 50.0}),
            ClientQuota(other, {"request_percentage": 200.0}),
            ClientQuota({"user": "a"}, {"producer_byte_rate": 0.0, "consumer_byte_rate": 1.0}),
            ClientQuota({"user": "b"}, {"producer_byte_rate": math.nan, "consumer_byte_rate": 1.5}),
            ClientQuota({"user": "c"}, {"connection_creation_rate": 1.0, "request_rate": 1.0}),
            ClientQuota({"ip": "10.0.0.7"}, {"producer_byte_rate": 1.0}),
            ClientQuota({"ip": "no-such-host"}, {"connection_creation_rate": 1.0}),
            ClientQuota({"ip": "10.0.0.7", "user": "a"}, {"connection_creation_rate": 1.0}),
            ClientQuota({"group": "g"}, {"producer_byte_rate": 1.0}),
            ClientQuota({"user": "a", "group": "g"}, {"producer_byte_rate": 1.0}),
            ClientQuota({"user": ""}, {"producer_byte_rate": 1.0}),
            ClientQuota({}, {"producer_byte_rate": 1.0}),
        ],
        1,
        DEFAULTS,
    )
    assert found.entries == (
        QuotaEntry(Entity(None, "etl"), {"producer_byte_rate": 4750}, LimitOptions(burst_seconds=BURST_SECONDS)),
        QuotaEntry(Entity("a"), {"consumer_byte_rate": 1}, LimitOptions(burst_seconds=BURST_SECONDS)),
    )
    assert found.left_out == {
        "request_percentage": 2,
        "producer_byte_rate (Quota producer_byte_rate must be greater than 0)": 1,
        "producer_byte_rate (expected a finite number, not nan)": 1,
        "consumer_byte_rate (consumer_byte_rate cannot be a fractional value.)": 1,
        "connection_creation_rate": 1,
        "request_rate": 1,
        "producer_byte_rate": 1,
        "no-such-host is not a valid IP or resolvable host.": 1,
        "entities of ip and user": 1,
        "entities of group": 1,
        "entities of group and user": 1,
        "Empty user not supported": 1,
        "entities of no type": 1,
    }


@pytest.mark.claim("kafka-quotas", "a quota so large that it means unlimited still replaces that of <default>")
@pytest.mark.parametrize("value", [float(LONG_MAX), 1e19, math.inf])
def test_a_quota_that_lifts_that_of_the_default(value: float) -> None:
    """Brokers accept the largest long for each quota, and whatever is above it for controller_mutation_rate."""
    quotas = {"producer_byte_rate": float(LONG_MAX), "controller_mutation_rate": value}
    found = cluster_entries([ClientQuota({"user": "a"}, quotas)], 1, DEFAULTS)
    assert found.entries[0].limits == {
        "producer_byte_rate": LONG_MAX * 95 // 100,
        "controller_mutation_rate": LONG_MAX,
    }
    assert not found.left_out


def test_a_product_that_is_too_large_is_the_largest_rate() -> None:
    [entry] = cluster_entries([ClientQuota({"user": "a"}, {"producer_byte_rate": 9e18})], 3, DEFAULTS).entries
    assert entry.limits == {"producer_byte_rate": LONG_MAX * 95 // 100}


# ---- what the brokers measure of it
QUOTA = 2_000_000
NS = 1_000_000_000


def most_told_ms(
    num: int, window_seconds: int, rate: Fraction, burst_seconds: Fraction, sizes: list[int], late_ms: list[int]
) -> int:
    """The longest throttle time of a broker with these windows for a client that always has a request for the proxy's
    bucket. Requests have these sizes, one after the other, reach the broker that late, and the client is idle once.
    """
    bucket = TokenBucket(rate, int(burst_seconds * NS))
    broker = SampledWindow(QUOTA, samples=num, window_ns=window_seconds * NS, first_window=False)
    now_ns, longest_ns, number = NS, 0, 0
    end_ns = 3 * num * window_seconds * NS
    is_idle = True
    while now_ns < end_ns:
        if is_idle and now_ns > end_ns // 3:
            now_ns, is_idle = now_ns + num * window_seconds * NS // 2, False
        size = sizes[number % len(sizes)]
        debt_ns = bucket.record(size, now_ns)
        longest_ns = max(longest_ns, broker.record(size, now_ns + late_ms[number % len(late_ms)] * 1_000_000))
        number += 1
        now_ns += debt_ns or 1
    return longest_ns // 1_000_000


@pytest.mark.parametrize(("num", "window_seconds"), [(11, 1), (3, 5), (6, 2), (5, 1), (31, 1)])
@given(
    sizes=st.lists(st.integers(10_000, 600_000), min_size=1, max_size=5),
    late_ms=st.lists(st.integers(0, 100), min_size=1, max_size=5),
)
def test_brokers_do_not_throttle_it(num: int, window_seconds: int, sizes: list[int], late_ms: list[int]) -> None:
    """Requests of up to 0.3 s of the figure that reach the broker up to 0.1 s late, for windows of 4 s and more."""
    share = share_below_brokers(QuotaOptions(window_num=num, window_size_seconds=window_seconds))
    assert share == max(Fraction(4, 5), 1 - SPARE_SECONDS / ((num - 1) * window_seconds))
    assert most_told_ms(num, window_seconds, QUOTA * share, BURST_SECONDS, sizes, late_ms) == 0


def test_without_both_they_do() -> None:
    """At the figure itself, or with a burst of a second; so the test above can fail."""
    share = share_below_brokers(DEFAULTS)
    assert share == Fraction(95, 100)
    assert most_told_ms(11, 1, Fraction(QUOTA), Fraction(1), [100_000], [0]) > 500
    assert most_told_ms(11, 1, Fraction(QUOTA), BURST_SECONDS, [100_000], [0]) > 0
    assert most_told_ms(11, 1, QUOTA * share, Fraction(1), [100_000], [0]) > 0


@pytest.mark.parametrize("algorithm", ["sampled-window", "ewma"])
def test_other_algorithms_have_no_burst(algorithm: str) -> None:
    quotas = [ClientQuota({"user": "a"}, {"producer_byte_rate": 100.0})]
    [entry] = cluster_entries(quotas, 1, QuotaOptions(algorithm=algorithm)).entries
    assert entry == QuotaEntry(Entity("a"), {"producer_byte_rate": 95})
