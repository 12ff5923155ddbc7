"""What of the cluster's own client quotas is enforced here, and what is only named."""

import math

import pytest

from protocol.client_quotas import ClientQuota
from proxy.config import host_names
from proxy.config.cluster_entries import cluster_entries
from quotas.entity import DEFAULT, AnyEntity, Entity, Kind, Named
from quotas.entry import QuotaEntry
from quotas.rates import LONG_MAX

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
        found = cluster_entries([ClientQuota(names, RATES)], brokers)
        [entry] = found.entries
        assert entry.entity == entity
        limits = dict(entry.limits)
        assert limits.pop("controller_mutation_rate") == pytest.approx(0.5)
        assert limits == {"producer_byte_rate": 5_000_000 * brokers, "consumer_byte_rate": 7_000_000 * brokers}
        assert not found.left_out


@pytest.mark.parametrize(
    ("name", "canonical"),
    [("10.0.0.7", "10.0.0.7"), ("::ffff:10.0.0.7", "10.0.0.7"), (None, DEFAULT), ("h", "9.9.9.9")],
)
def test_an_address(name: str | None, canonical: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_names, "addresses_of", lambda host: {"h": ["9.9.9.9"]}.get(host, []))
    [entry] = cluster_entries([ClientQuota({"ip": name}, {"connection_creation_rate": 20.0})], 3).entries
    assert entry == QuotaEntry(Named(Kind.IP, canonical), {"connection_creation_rate": 60})  # type: ignore[arg-type]


def test_what_is_left_out_is_counted_and_the_rest_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_names, "addresses_of", lambda _: [])
    etl, other = {"client-id": "etl"}, {"client-id": "other"}
    found = cluster_entries(
        [
            ClientQuota(etl, {"producer_byte_rate": 5.0, "request_percentage": 50.0}),
            ClientQuota(other, {"request_percentage": 200.0}),
            ClientQuota({"user": "a"}, {"producer_byte_rate": 0.0, "consumer_byte_rate": 1.0}),
            ClientQuota({"user": "b"}, {"producer_byte_rate": math.nan, "consumer_byte_rate": math.inf}),
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
    )
    assert found.entries == (
        QuotaEntry(Entity(None, "etl"), {"producer_byte_rate": 5}),
        QuotaEntry(Entity("a"), {"consumer_byte_rate": 1}),
    )
    assert found.left_out == {
        "request_percentage": 2,
        "producer_byte_rate (Quota producer_byte_rate must be greater than 0)": 1,
        "producer_byte_rate (expected a finite number, not nan)": 1,
        "consumer_byte_rate (expected a finite number, not inf)": 1,
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


def test_a_product_that_is_too_large_is_the_largest_rate() -> None:
    [entry] = cluster_entries([ClientQuota({"user": "a"}, {"producer_byte_rate": 9e18})], 3).entries
    assert entry.limits == {"producer_byte_rate": LONG_MAX}
