"""Limits of topics where requests name them by id (Produce 13), and where nobody has told the proxy the name."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.topics import create_topics
from tests.integration.wire import Wire, records, schema

UNKNOWN_TOPIC_ID = 100


@pytest.mark.timeout(60)
def test_an_unknown_id_is_requested(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    """A client that never asks for metadata here: it is told to, and the proxy asks meanwhile."""
    topic = unique_name("unheard-of")
    create_topics(kafka_cluster, topic)
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    identity = admin.describe_topics(TopicCollection([topic]))[topic].result(30).topic_id
    topic_id = ((identity.get_most_significant_bits() % 2**64) << 64) | identity.get_least_significant_bits() % 2**64
    kafka = schema("produce", 13)
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", f"topic={topic},bytes_in_rate=1000") as proxy:
        with Wire(proxy.bootstrap_servers, unique_name("wire")) as wire:
            request = _produce(kafka, topic_id, records(bytes(2000)))

            answers: list[tuple[int, bool]] = []

            def told_to_wait() -> bool:
                answer, _ = wire.ask_entity(request)
                (partition,) = answer.responses[0].partition_responses
                answers.append((partition.error_code, answer.throttle_time.total_seconds() > 0))
                return answers[-1][1]

            eventually(told_to_wait, 20, "the proxy knows the name")
            assert answers[0] == (UNKNOWN_TOPIC_ID, False)
            assert {error for error, _ in answers} == {UNKNOWN_TOPIC_ID, 0}
            assert answers == sorted(answers, key=lambda each: each[0] == 0), "it is known from then on"
        assert proxy.wait_for_event("throttled", 5)["entity"] == f"topic:{topic}"
        assert proxy.metric("requests_total", api="Metadata") == 0, "no client has told it"
        assert proxy.metric("requests_total", api="Produce", version="13") > 1


def _produce(kafka: Any, topic_id: int, batch: bytes) -> Any:
    partition = kafka.PartitionProduceData(index=0, records=batch)
    return kafka.ProduceRequest(
        transactional_id=None,
        acks=1,
        timeout=timedelta(seconds=30),
        topic_data=(kafka.TopicProduceData(topic_id=UUID(int=topic_id), partition_data=(partition,)),),
    )
