"""`controller_mutation_rate` with real clients: KIP-599 without a broker that knows of any quota.

Each client id has ten tokens, and half a token comes back each second: what a busy machine takes to create a topic does
not change which of them pass.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from uuid import UUID

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient
from kafka.errors import NodeNotReadyError, ThrottlingQuotaExceededError
from py4j.java_gateway import JavaGateway

from deploy.local.artifacts import KAFKA_4_3_1, class_path
from deploy.local.cluster import KafkaCluster
from deploy.local.java import find_java
from tests.integration.java_tools import run_tool
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.wire import Wire, schema

TOKENS = 10
RATE = 0.5
QUOTA = f"client-id=<default>,controller_mutation_rate={RATE},burst_seconds={TOKENS / RATE}"
LIMIT = "controller_mutation_rate"
PASSED, REFUSED = 0, 89
#: Three topics of four partitions overdraw ten tokens by two.
PARTITIONS = 4
WAIT_SECONDS = 2 / RATE
CAP_SECONDS = 5
"""What the proxy tells at most, by default."""
TIMEOUT = timedelta(seconds=30)


@pytest.fixture(scope="module")
def proxy(kafka_cluster: KafkaCluster) -> Iterator[ProxyProcess]:
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", QUOTA) as running:
        yield running


@pytest.fixture
def names(unique_name: Callable[[str], str]) -> list[str]:
    """Of topics of this test, in their order."""
    prefix = unique_name("mutation")
    return [f"{prefix}-{letter}" for letter in "abcde"]


def check_partitions(cluster: KafkaCluster, names: Iterable[str], expected: dict[str, int]) -> None:
    """What the broker itself has of these topics, as soon as it has heard of them from its controller."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})

    def seen() -> dict[str, int]:
        known = admin.list_topics(timeout=30).topics
        return {name: len(known[name].partitions) for name in names if name in known}

    eventually(lambda: len(seen()) == len(expected), 30, "all have become known or forgotten")
    assert seen() == expected


def prepare(cluster: KafkaCluster, topics: dict[str, int]) -> None:
    """Create topics past the proxy."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for created in admin.create_topics([NewTopic(name, count, 1) for name, count in topics.items()]).values():
        created.result(30)
    check_partitions(cluster, topics, topics)


def rejected(proxy: ProxyProcess, client_id: str) -> float:
    return proxy.metric("throttled_total", client_id=client_id, limit=LIMIT, mode="reject")


@contextmanager
def kafka_python(proxy: ProxyProcess, client_id: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=proxy.bootstrap_servers, client_id=client_id)) as admin:
        yield admin


def create(admin: KafkaAdminClient, topics: dict[str, int]) -> dict[str, int]:
    """The error code of each topic. Raises NodeNotReadyError while the client waits as it was told to."""
    wanted = {name: {"num_partitions": count, "replication_factor": 1} for name, count in topics.items()}
    return {topic["name"]: topic["error_code"] for topic in admin.create_topics(wanted, raise_errors=False)["topics"]}


@pytest.mark.timeout(90)
def test_tokens_give_exact_counts_and_the_wait(
    kafka_cluster: KafkaCluster, proxy: ProxyProcess, unique_name: Callable[[str], str], names: list[str]
) -> None:
    kafka = schema("create_topics", 7)
    topics = tuple(
        kafka.CreatableTopic(name=name, num_partitions=PARTITIONS, replication_factor=1, assignments=(), configs=())
        for name in names
    )
    client_id = unique_name("wire")
    host, _, port = proxy.bootstrap_servers.rpartition(":")
    started = time.monotonic()
    with Wire(host, int(port), client_id) as wire:
        answers = [
            wire.ask_entity(kafka.CreateTopicsRequest(topics=topics, timeout=TIMEOUT, validate_only=False))[0],
            wire.ask_entity(kafka.CreateTopicsRequest(topics=topics[3:], timeout=TIMEOUT, validate_only=False))[0],
        ]
    elapsed = time.monotonic() - started
    codes = [{topic.name: int(topic.error_code) for topic in answer.topics} for answer in answers]
    assert codes == [
        dict.fromkeys(names[:3], PASSED) | dict.fromkeys(names[3:], REFUSED),
        dict.fromkeys(names[3:], REFUSED),
    ]
    for answer in answers:
        assert WAIT_SECONDS - elapsed <= answer.throttle_time.total_seconds() <= WAIT_SECONDS
        assert {topic.error_message for topic in answer.topics if topic.error_code} == {
            "The throttling quota has been exceeded."
        }
    check_partitions(kafka_cluster, names, dict.fromkeys(names[:3], PARTITIONS))
    assert rejected(proxy, client_id) == 2
    proxy.wait_for_event("throttled", 5, client_id=client_id, limit=LIMIT, mode="reject")


@pytest.mark.timeout(90)
def test_kafka_python_is_refused_and_succeeds_later(
    kafka_cluster: KafkaCluster, proxy: ProxyProcess, unique_name: Callable[[str], str], names: list[str]
) -> None:
    client_id = unique_name("kafka-python")
    *first, last, much = names
    with kafka_python(proxy, client_id) as admin:
        started = time.monotonic()
        told = create(admin, dict.fromkeys([*first, last], PARTITIONS))
        assert told == dict.fromkeys(first, PASSED) | {last: REFUSED}

        def it_may() -> bool:
            try:
                return create(admin, {last: PARTITIONS}) == {last: PASSED}
            except NodeNotReadyError:
                return False

        eventually(it_may, 30, "the topic that was refused is created")
        assert time.monotonic() - started >= WAIT_SECONDS
    with kafka_python(proxy, client_id) as admin, pytest.raises(ThrottlingQuotaExceededError):
        admin.create_topics([much])
    check_partitions(kafka_cluster, names, dict.fromkeys([*first, last], PARTITIONS))


@pytest.mark.timeout(90)
def test_deletions_and_growth_count_partitions_from_metadata(
    kafka_cluster: KafkaCluster, proxy: ProxyProcess, unique_name: Callable[[str], str], names: list[str]
) -> None:
    prepare(kafka_cluster, dict.fromkeys(names, 6))
    with kafka_python(proxy, unique_name("grower")) as admin:
        admin.describe_topics(names)
        answer = admin.create_partitions({names[0]: 11, names[1]: 12, names[2]: 7}, raise_errors=False)
        codes = {result.name: result.error_code for result in answer.results}
        assert codes == {names[0]: PASSED, names[1]: PASSED, names[2]: REFUSED}, "5 and 6 of ten tokens"
    with kafka_python(proxy, unique_name("deleter")) as admin:
        described = {topic["name"]: UUID(str(topic["topic_id"])) for topic in admin.describe_topics(names)}
        answer = admin.delete_topics([described[names[2]], *names[3:]], raise_errors=False)
        assert sorted(result["error_code"] for result in answer["topics"]) == [PASSED, PASSED, REFUSED], "6 and 6"
    check_partitions(kafka_cluster, names, {names[0]: 11, names[1]: 12, names[4]: 6})


@pytest.mark.timeout(150)
def test_the_java_admin_client_waits_and_retries(
    kafka_cluster: KafkaCluster, proxy: ProxyProcess, unique_name: Callable[[str], str], names: list[str]
) -> None:
    client_id = unique_name("java")
    with java() as gateway:
        properties = gateway.jvm.java.util.Properties()
        properties.put("bootstrap.servers", proxy.bootstrap_servers)
        properties.put("client.id", client_id)
        admin = gateway.jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        topics = gateway.jvm.java.util.ArrayList()
        for name in names[:4]:
            topics.add(gateway.jvm.org.apache.kafka.clients.admin.NewTopic(name, PARTITIONS, 1))
        started = time.monotonic()
        admin.createTopics(topics).all().get()
        assert time.monotonic() - started >= WAIT_SECONDS
        admin.close()
    check_partitions(kafka_cluster, names, dict.fromkeys(names[:4], PARTITIONS))
    assert rejected(proxy, client_id) == 1, "it asked again when it had been told to"


@pytest.mark.timeout(150)
def test_the_java_tool_says_why(
    kafka_cluster: KafkaCluster, proxy: ProxyProcess, unique_name: Callable[[str], str], names: list[str]
) -> None:
    """It does not ask again (TopicCommand sets `retryOnQuotaViolation(false)`), and all its runs are one client."""
    create = ("TopicCommand", "--bootstrap-server", proxy.bootstrap_servers, "--create", "--replication-factor", "1")
    run_tool(*create, "--partitions", "30", "--topic", names[0])
    with pytest.raises(AssertionError, match=r"The throttling quota has been exceeded\."):
        run_tool(*create, "--partitions", "1", "--topic", names[1])
    check_partitions(kafka_cluster, names, {names[0]: 30})


@pytest.mark.timeout(90)
def test_librdkafka_asks_in_an_old_version_and_is_charged(
    kafka_cluster: KafkaCluster, proxy: ProxyProcess, unique_name: Callable[[str], str], names: list[str]
) -> None:
    client_id = unique_name("librdkafka")
    admin = AdminClient({"bootstrap.servers": proxy.bootstrap_servers, "client.id": client_id})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        created.result(30)
    check_partitions(kafka_cluster, names, dict.fromkeys(names, PARTITIONS))
    assert proxy.metric("throttled_total", client_id=client_id, limit=LIMIT, mode="notify") == 1
    assert proxy.metric("quota_debt_seconds", entity=f"client-id:{client_id}", limit=LIMIT) > WAIT_SECONDS


@pytest.mark.timeout(90)
async def test_aiokafka_asks_in_an_old_version_and_is_told_the_wait(
    kafka_cluster: KafkaCluster, proxy: ProxyProcess, unique_name: Callable[[str], str], names: list[str]
) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=proxy.bootstrap_servers, client_id=unique_name("aiokafka"))
    await admin.start()
    try:
        started = time.monotonic()
        answer = await admin.create_topics([AioNewTopic(name, PARTITIONS, 1) for name in names])
        elapsed = time.monotonic() - started
    finally:
        await admin.close()
    debt_seconds = (len(names) * PARTITIONS - TOKENS) / RATE
    assert debt_seconds - elapsed > CAP_SECONDS
    assert answer.throttle_time_ms == CAP_SECONDS * 1000
    check_partitions(kafka_cluster, names, dict.fromkeys(names, PARTITIONS))


@contextmanager
def java() -> Iterator[JavaGateway]:
    """A JVM with Kafka's own client in it."""
    gateway = JavaGateway.launch_gateway(
        classpath=class_path(KAFKA_4_3_1), java_path=find_java(), javaopts=["-Xmx256m"], die_on_exit=True
    )
    try:
        yield gateway
    finally:
        gateway.shutdown()
        with gateway.java_process as process:
            process.stdin.close()
            process.wait(30)
