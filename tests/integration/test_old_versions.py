"""Protocol versions that Kafka 4 no longer speaks, against the last broker that does."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from deploy.local.cluster import KafkaCluster
from protocol.apis import APIS, DESCRIBE_CONFIGS
from tests.conftest import UniqueName
from tests.integration.librdkafka import produce, read
from tests.integration.records import all_of, missing, values
from tests.integration.scanned_proxy import ScannedProxy
from tests.integration.wire import Wire, minima

#: The large one of `values` leaves a debt of a second.
LIMIT = 600_000


@pytest.fixture(scope="module")
def old_front() -> Iterator[ScannedProxy]:
    """Kafka 3.9.1 behind a proxy that holds every client both ways."""
    quota = f"client-id=<default>,producer_byte_rate={LIMIT},consumer_byte_rate={LIMIT},burst_seconds=0.05"
    with KafkaCluster(1, version="3.9.1") as cluster, ScannedProxy(cluster, "--quota", quota) as front:
        yield front
        assert front.relay.sightings == 0


@pytest.mark.parametrize("fallback", ["0.9.0.1", pytest.param("0.10.2.0", marks=pytest.mark.nightly), "0.11.0.0"])
@pytest.mark.timeout(120)
def test_librdkafka_that_expects_an_old_broker(old_front: ScannedProxy, unique_name: UniqueName, fallback: str) -> None:
    """Without ApiVersions it speaks what a broker of that age spoke: Produce v1 and Fetch v1 for 0.9."""
    client_id = unique_name("old")
    old = {"client.id": client_id, "api.version.request": fallback != "0.9.0.1", "broker.version.fallback": fallback}
    topic, expected = old_front.create_topic(unique_name("old")), {each: values(each) for each in ("first", "second")}
    producer = Producer({"bootstrap.servers": old_front.bootstrap_servers, "message.max.bytes": 1_000_000, **old})
    for each in expected.values():
        produce(producer, topic, each)
    count = len(list(all_of(expected)))
    assert missing(expected, read(old_front, topic, unique_name("group"), count, **old)) == {}
    for limit in ("producer_byte_rate", "consumer_byte_rate"):
        assert old_front.proxy.metric("throttled_total", client_id=client_id, limit=limit) > 0
    version = {"0.9.0.1": "1"}.get(fallback)
    assert version is None or old_front.proxy.metric("requests_total", api="Produce", version=version) > 0


def test_what_the_broker_offers_begins_where_it_begins(old_front: ScannedProxy) -> None:
    """Also below what the proxy forwards."""
    both = []
    for bootstrap in (old_front.cluster.bootstrap_servers, old_front.bootstrap_servers):
        with Wire(bootstrap) as wire:
            both.append(minima(wire))
    direct, proxied = both
    assert proxied == {key: lowest for key, lowest in direct.items() if key in APIS}
    assert (proxied[DESCRIBE_CONFIGS], APIS[DESCRIBE_CONFIGS].min_version) == (0, 1)
