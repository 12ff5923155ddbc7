"""`producer_ids_rate` with real idempotent producers: the third new id waits, and the two that are known go on."""

import time
from contextlib import closing

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.librdkafka import produce
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.topics import create_topics

LIMIT = "producer_ids_rate"
WINDOW_SECONDS = 6


@pytest.mark.claim("limits", "producer_ids_rate")
@pytest.mark.timeout(120)
def test_a_third_producer_waits_but_no_other(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    """Two of librdkafka, and one of kafka-python: two new ids may come in six seconds. One without id costs nothing."""
    topic = unique_name("ids")
    create_topics(kafka_cluster, topic)
    flags = (
        *("--principal", "alice", "--quota", f"user=<default>,{LIMIT}=2"),
        *("--producer-id-quota-window-size-seconds", str(WINDOW_SECONDS)),
        *("--producer-id-quota-window-count", "4"),
    )
    with ProxyProcess(kafka_cluster.bootstrap_servers, *flags) as proxy:

        def is_held() -> bool:
            """Nobody else is."""
            waiting = [(each["limit"], each["entity"]) for each in proxy.throttles() if each["mode"] == "pause"]
            return waiting == [(LIMIT, "user:alice")]

        settings = {"bootstrap.servers": proxy.bootstrap_servers}
        known = [Producer({**settings, "enable.idempotence": idempotent}) for idempotent in (False, True, True)]
        began = time.monotonic()
        for each in known:
            produce(each, topic, [b"new"])
        with closing(KafkaProducer(bootstrap_servers=proxy.bootstrap_servers)) as third:
            sent = third.send(topic, b"new, and too many")
            eventually(is_held, 30, "the third producer is held")
            for each in known:
                produce(each, topic, [b"known"] * 5)
            sent.get(40)
        assert time.monotonic() - began > WINDOW_SECONDS / 2
        assert proxy.wait_for_event("throttled", 5)["limit"] == LIMIT
        assert proxy.metric("throttled_total", limit=LIMIT) > 0
