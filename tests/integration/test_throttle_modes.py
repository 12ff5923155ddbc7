"""Each throttle mode with real clients."""

import time
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer

from deploy.local.cluster import KafkaCluster
from tests.integration.proxy_process import ProxyProcess

pytestmark = pytest.mark.alone

LIMIT = 100_000
#: Ten requests of 20 kB leave a second of debt after the burst.
VALUE = bytes(20_000)


def quota(client_id: str, mode: str) -> str:
    return f"client-id={client_id},producer_byte_rate={LIMIT},burst_seconds=0.1,mode={mode}"


@pytest.mark.parametrize("mode", ["notify", "delay", "pause"])
@pytest.mark.timeout(120)
async def test_a_request_that_leaves_debt(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str], mode: str
) -> None:
    """aiokafka sends the next request after the response to the one before: late with `delay`, else at once."""
    client_id = unique_name(mode)
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota(client_id, mode)) as proxy:
        producer = AIOKafkaProducer(
            bootstrap_servers=proxy.bootstrap_servers, client_id=client_id, max_request_size=2_000_000
        )
        await producer.start()
        try:
            await producer.send_and_wait(client_id, b"the topic exists")
            begun = time.monotonic()
            await producer.send_and_wait(client_id, 5 * VALUE)
            first_seconds = time.monotonic() - begun
            await producer.send_and_wait(client_id, b"next")
            second_seconds = time.monotonic() - begun
        finally:
            await producer.stop()
        assert (first_seconds > 0.7) == (mode == "delay"), first_seconds
        assert second_seconds > 0.7, "in each mode the limit holds"
        counted = {each: proxy.metric("throttled_total", client_id=client_id, mode=each) for each in (mode, "pause")}
        assert counted[mode] >= 1
        assert (counted["pause"] > 0) == (mode != "delay"), "what was served by a delay does not hold"


@pytest.mark.parametrize("mode", ["auto", "notify", "delay", "pause"])
@pytest.mark.timeout(120)
def test_the_limit_holds_in_each_mode(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str], mode: str
) -> None:
    """librdkafka, which sends many requests without waiting for their responses."""
    client_id = unique_name(mode)
    with ProxyProcess(
        kafka_cluster.bootstrap_servers, "--throttle-mode", mode, "--quota", quota(client_id, mode)
    ) as proxy:
        settings = {"bootstrap.servers": proxy.bootstrap_servers, "client.id": client_id}
        producer = Producer({**settings, "batch.size": 2 * len(VALUE)})
        producer.produce(client_id, b"the topic exists")
        assert producer.flush(30) == 0
        begun = time.monotonic()
        for _ in range(20):
            producer.produce(client_id, VALUE)
            producer.poll(0)
        assert producer.flush(30) == 0
        took_seconds = time.monotonic() - begun
        least_seconds = (20 * len(VALUE) - 0.1 * LIMIT) / LIMIT - 1.5  # one request, which may have many records
        assert least_seconds < took_seconds < 10
