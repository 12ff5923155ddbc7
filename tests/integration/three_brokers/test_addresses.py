"""Nothing that a client can ask for shows it a broker's own address, and all that shows an address shows the proxy's.

Each test's front ends with the proof that the relay saw none. The control test asks the broker itself the same
questions: there the relay finds addresses, so it would find them here.
"""

import re
import uuid
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from kafka import KafkaAdminClient

from demo.address_scan import ScanningRelay
from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.proxy_process import eventually
from tests.integration.scanned_proxy import BROKER_HOSTS, CLIENT_SIDE, ScannedProxy
from tests.integration.wire import NOT_LEADER, Wire, records, schema

API_VERSIONS, METADATA = 18, 3
ADDRESS = re.compile(rb"127\.0\.0\.[2-4]")
WAIT = timedelta(milliseconds=100)


def proxy_addresses(front: ScannedProxy) -> set[tuple[str, int]]:
    return {(CLIENT_SIDE, port) for port in front.node_ports.values()}


@pytest.mark.timeout(90)
def test_who_is_in_the_cluster(front: ScannedProxy, unique_name: UniqueName) -> None:
    admin = AdminClient({"bootstrap.servers": front.bootstrap_servers})
    cluster = admin.describe_cluster(request_timeout=20).result(30)
    assert {(node.host, node.port) for node in cluster.nodes} == proxy_addresses(front)
    assert (cluster.controller.host, cluster.controller.port) in proxy_addresses(front)
    metadata = admin.list_topics(front.create_topic(unique_name("described")), timeout=20)
    assert {(broker.host, broker.port) for broker in metadata.brokers.values()} == proxy_addresses(front)


@pytest.mark.timeout(90)
def test_settings_of_brokers_and_the_quorum(front: ScannedProxy) -> None:
    admin = AdminClient({"bootstrap.servers": front.bootstrap_servers})
    for node in front.node_ports:
        (answer,) = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, str(node))]).values()
        configs = answer.result(30)
        assert configs["num.io.threads"].value == "4"
        assert configs["advertised.listeners"].value is None
        assert not [name for name, entry in configs.items() if ADDRESS.search(str(entry.value).encode())]
    with closing(KafkaAdminClient(bootstrap_servers=front.bootstrap_servers)) as quorum:
        assert quorum.describe_metadata_quorum()


@pytest.mark.timeout(90)
def test_the_scan_finds_what_the_broker_itself_says(kafka_cluster: KafkaCluster) -> None:
    """The control: the same questions without the proxy."""
    broker = kafka_cluster.node_addresses[1]
    with ScanningRelay(BROKER_HOSTS) as relay:
        host, port = relay.listen((CLIENT_SIDE, 0), broker)
        with Wire(f"{host}:{port}") as wire:
            asked = schema("metadata", 12).MetadataRequest(include_topic_authorized_operations=False, topics=())
            _, answer = wire.ask_entity(asked)
        assert ADDRESS.search(answer)
        assert relay.sightings > 0


def spread_topic(front: ScannedProxy, name: str) -> tuple[uuid.UUID, int, int]:
    """A topic of one replica: its id, its leader, and a broker that has nothing of it."""
    admin = AdminClient({"bootstrap.servers": front.bootstrap_servers})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)

    def described() -> tuple[uuid.UUID, int] | None:
        module = schema("metadata", 12)
        with Wire(front.bootstrap_servers) as wire:
            topics = (module.MetadataRequestTopic(topic_id=None, name=name),)
            asked = module.MetadataRequest(include_topic_authorized_operations=False, topics=topics)
            metadata, _ = wire.ask_entity(asked)
        (topic,) = metadata.topics
        return (topic.topic_id, topic.partitions[0].leader_id) if topic.partitions else None

    found = eventually(described, 30, f"{name} has a leader")
    assert found is not None
    topic_id, leader = found
    stranger = next(node for node in front.node_ports if node != leader)
    return topic_id, leader, stranger


def produce_request(name: str, _topic_id: uuid.UUID) -> Any:
    module = schema("produce", 12)
    data = module.PartitionProduceData(index=0, records=records(b"misdirected"))
    topic = module.TopicProduceData(name=name, partition_data=(data,))
    return module.ProduceRequest(acks=-1, timeout=timedelta(seconds=10), topic_data=(topic,))


def fetch_request(_name: str, topic_id: uuid.UUID) -> Any:
    module = schema("fetch", 17)
    asked = module.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topics = (module.FetchTopic(topic_id=topic_id, partitions=(asked,)),)
    return module.FetchRequest(max_wait=WAIT, min_bytes=1, topics=topics, forgotten_topics_data=())


def share_fetch_request(_name: str, topic_id: uuid.UUID) -> Any:
    module = schema("share_fetch", 1)
    asked = module.FetchPartition(partition_index=0, acknowledgement_batches=())
    member = {"group_id": "strangers", "member_id": str(uuid.uuid4()), "share_session_epoch": 0}
    topics = (module.FetchTopic(topic_id=topic_id, partitions=(asked,)),)
    most = {"max_wait": WAIT, "min_bytes": 1, "max_records": 10, "batch_size": 10}
    return module.ShareFetchRequest(**member, **most, topics=topics, forgotten_topics_data=())


ASK: dict[str, tuple[Callable[[str, uuid.UUID], Any], Callable[[Any], int]]] = {
    "produce": (produce_request, lambda answer: answer.responses[0].partition_responses[0].error_code),
    "fetch": (fetch_request, lambda answer: answer.responses[0].partitions[0].error_code),
    "share-fetch": (share_fetch_request, lambda answer: answer.responses[0].partitions[0].error_code),
}


@pytest.mark.parametrize("api", list(ASK))
@pytest.mark.timeout(90)
def test_a_broker_that_is_not_the_leader_does_not_say_where_the_leader_is(
    front_of_three: ScannedProxy, unique_name: UniqueName, api: str
) -> None:
    """The leader's address (NodeEndpoints) is hidden; that this is not the leader is still said."""
    name = unique_name("spread")
    topic_id, leader, stranger = spread_topic(front_of_three, name)
    make, error = ASK[api]
    host, port = front_of_three.cluster.node_addresses[stranger]

    def asked_directly() -> bytes | None:
        with Wire(f"{host}:{port}") as direct:
            answer, raw = direct.ask_entity(make(name, topic_id))
        return raw if error(answer) == NOT_LEADER else None

    raw = eventually(asked_directly, 30, f"broker {stranger} knows {name}")
    assert raw is not None
    assert ADDRESS.search(raw), "the broker itself names the leader's address"
    with Wire(f"{CLIENT_SIDE}:{front_of_three.node_ports[stranger]}") as through:
        answer, raw = through.ask_entity(make(name, topic_id))
    assert error(answer) == NOT_LEADER
    assert not ADDRESS.search(raw)
    assert leader != stranger
