"""The consumer's limit holds in every second, measured between the proxy and the client."""

import subprocess
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer

from bench.greedy_consumers import LIBRARIES, command
from deploy.local.artifacts import PROJECT
from deploy.local.cluster import KafkaCluster
from deploy.local.evenness import measure
from deploy.local.tap import Tap
from tests.integration.proxy_process import eventually
from tests.integration.scanned_proxy import RelayedProxy
from tests.integration.test_produce_quota import span, uneven

pytestmark = pytest.mark.alone

LIMIT = 2_000_000
SECONDS = 10
RECORD_BYTES = 10_000
BATCH_BYTES = 40_000  # 2 % of the limit: a broker's answer is made of whole batches


@pytest.mark.timeout(200)
def test_three_libraries_at_once_each_at_their_limit(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    client_ids = {unique_name(library): library for library in LIBRARIES}
    quota = f"client-id=<default>,consumer_byte_rate={LIMIT}"
    with Tap() as tap, RelayedProxy(kafka_cluster, "--quota", quota, relay_port=_relay(tap)) as front:
        topic = front.create_topic(unique_name("fetched"), 1)
        _fill(kafka_cluster, topic, LIMIT * (SECONDS + 5))
        with ExitStack() as stack:
            for client_id, library in client_ids.items():
                argv = command(library, front.bootstrap_servers, client_id, topic)
                process = stack.enter_context(
                    subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=PROJECT)
                )
                stack.callback(process.kill)

            def enough() -> bool:
                return all(span(tap.sizes("fetch", each)) >= SECONDS * 10**9 for each in client_ids)

            eventually(enough, SECONDS + 60, f"all have read for {SECONDS} s")
            runs = {library: measure(tap.sizes("fetch", client_id), LIMIT) for client_id, library in client_ids.items()}
        for client_id in client_ids:
            assert front.proxy.metric("throttled_total", client_id=client_id, limit="consumer_byte_rate") > 0
    assert uneven(runs) == {}


def _relay(tap: Tap) -> Callable[[tuple[str, int], tuple[str, int]], object]:
    return lambda listen, target: tap.relay(target, listen)


def _fill(cluster: KafkaCluster, topic: str, size: int) -> None:
    """Straight into the broker: the producer is not what is measured."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "batch.size": BATCH_BYTES, "linger.ms": 50, "acks": 1}
    )
    value = bytes(RECORD_BYTES)
    for _ in range(size // RECORD_BYTES):
        producer.produce(topic, value, on_delivery=_delivered)
        producer.poll(0)
    assert producer.flush(60) == 0


def _delivered(error: object, _message: object) -> None:
    assert error is None, error
