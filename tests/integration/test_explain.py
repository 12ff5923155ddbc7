"""`explain` names each cause why a client is slow: real clients, real brokers, found within a minute."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from deploy.local.broker_quota import client_quotas
from deploy.local.cluster import KafkaCluster
from deploy.local.tools import tool_command
from tests.conftest import UniqueName
from tests.integration.delaying_relay import DelayingRelay
from tests.integration.flood import Flood
from tests.integration.java_tools import TOOLS
from tests.integration.librdkafka import produce
from tests.integration.proxy_process import ProxyProcess, eventually, killed_at_the_end
from tests.integration.topics import create_topics
from tests.integration.wire import Wire, schema

FOUND_SECONDS = 60.0
LIMIT = 100_000
Finding = dict[str, Any]


def findings(proxy: ProxyProcess, client_id: str) -> list[Finding]:
    return [each for each in proxy.page("/explain") if each["client_id"] == client_id]


def explained(proxy: ProxyProcess, client_id: str, verdict: str | None, *words: str) -> Finding:
    """Waits until the verdict on the client is this one, None: any, and one sentence has all the words."""
    last: list[Finding] = []

    def found() -> Finding | None:
        last[:] = findings(proxy, client_id)
        for each in last:
            has_words = any(all(word in sentence for word in words) for sentence in each["sentences"])
            if verdict in {None, each["verdict"]} and has_words:
                return each
        return None

    try:
        seen = eventually(found, FOUND_SECONDS, f"{client_id}: {verdict} {words}")
    except AssertionError as error:
        raise AssertionError(f"{error}; it says {last}") from None
    assert seen is not None
    return seen


def keys_of(finding: Finding) -> list[tuple[str, str]]:
    return [(each["limit"], each["entity"]) for each in finding["limits"]]


# ---- limits of the proxy
class Names:
    """Of topics and clients; each test uses its own."""

    def __init__(self, unique_name: UniqueName) -> None:
        self.topic, self.narrow, self.quiet = map(unique_name, ("any", "narrow", "quiet"))
        self.etl, self.java = map(unique_name, ("etl", "java"))


@pytest.fixture(scope="module")
def names() -> Names:
    return Names(lambda prefix: f"{prefix}-{os.urandom(4).hex()}")


@pytest.fixture(scope="module")
def proxy(kafka_cluster: KafkaCluster, names: Names) -> Iterator[ProxyProcess]:
    """With limits of clients and of a topic, and one for a client that does not come."""
    create_topics(kafka_cluster, names.topic, names.narrow, names.quiet)
    quotas = (
        f"client-id={names.etl},producer_byte_rate={LIMIT}",
        f"client-id={names.java},producer_byte_rate={LIMIT}",
        f"topic={names.narrow},bytes_in_rate={LIMIT}",
        "client-id=eltj,producer_byte_rate=5MB",
    )
    with ProxyProcess(kafka_cluster.bootstrap_servers, quotas=quotas) as running:
        yield running


@pytest.mark.timeout(120)
def test_the_command_names_the_limit_of_a_client_and_who_shares_it(proxy: ProxyProcess, names: Names) -> None:
    """Two connections of one client id: both in text and in JSON."""
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(Flood(proxy.bootstrap_servers, names.etl, names.topic))
        limit = ("producer_byte_rate", f"client-id:{names.etl}")
        seen = explained(proxy, names.etl, "limit", *limit, "allows 100 kB/s", "passed in the last minute")
        assert keys_of(seen) == [limit]
        assert max(seen["states"], key=seen["states"].get) == "limit"

        def explain(*arguments: str) -> str:
            program = str(Path(sys.executable).with_name("kafka-quota-proxy"))
            command = [program, "explain", "--proxy", proxy.admin_address, *arguments]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        text = explain(names.etl)
        assert text.startswith(f"{names.etl}: a limit of this proxy is holding it back\n")
        assert f"producer_byte_rate of client-id:{names.etl} allows 100 kB/s" in text
        held = f"{names.etl} is held to 100 kB/s by producer_byte_rate of client-id:{names.etl} (--quota)"
        answers = explain().partition("\n\n")[0].splitlines()  # clients of other tests have theirs
        assert f"Yes, as configured: {held}" in answers
        (found,) = json.loads(explain(names.etl, "--json"))
        assert (found["client_id"], found["verdict"], keys_of(found)) == (names.etl, "limit", [limit])


@pytest.mark.timeout(120)
def test_a_java_producer_that_keeps_throttle_times_is_at_its_limit(proxy: ProxyProcess, names: Names) -> None:
    command = tool_command(
        f"{TOOLS}ProducerPerformance",
        *("--bootstrap-server", proxy.bootstrap_servers, "--topic", names.topic, "--throughput", "-1"),
        *("--num-records", "100000", "--record-size", "10000", "--command-property", f"client.id={names.java}"),
    )
    with killed_at_the_end(command):
        limit = ("producer_byte_rate", f"client-id:{names.java}")
        assert keys_of(explained(proxy, names.java, "limit", *limit, "allows 100 kB/s")) == [limit]


@pytest.mark.timeout(120)
def test_a_limit_that_clients_share(proxy: ProxyProcess, names: Names, unique_name: UniqueName) -> None:
    one, two, limit = unique_name("one"), unique_name("two"), ("bytes_in_rate", f"topic:{names.narrow}")
    with Flood(proxy.bootstrap_servers, one, names.narrow), Flood(proxy.bootstrap_servers, two, names.narrow):
        explained(proxy, one, "limit", *limit, "allows 100 kB/s")
        assert keys_of(explained(proxy, one, "limit", "2 clients share it", one, two)) == [limit]


@pytest.mark.timeout(120)
def test_clients_that_connect_too_often_wait(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    client_id = unique_name("cron")
    is_over = threading.Event()
    quotas = ("ip=<default>,connection_creation_rate=3",)
    with ProxyProcess(kafka_cluster.bootstrap_servers, quotas=quotas) as proxy, ThreadPoolExecutor() as threads:

        def connect_again_and_again() -> None:
            while not is_over.is_set():
                settings = {"bootstrap.servers": proxy.bootstrap_servers, "client.id": client_id}
                AdminClient(settings).list_topics(timeout=30)

        jobs = [threads.submit(connect_again_and_again) for _ in range(4)]
        try:
            explained(proxy, client_id, "limit", "connection_creation_rate", "ip:127.0.0.1")
        finally:
            is_over.set()
        for job in jobs:
            job.result()


# ---- the brokers
@contextmanager
def far_broker() -> Iterator[tuple[KafkaCluster, DelayingRelay]]:
    with DelayingRelay() as relay, KafkaCluster(1, advertised=relay.advertise) as cluster:
        yield cluster, relay


@contextmanager
def frozen(cluster: KafkaCluster) -> Iterator[None]:
    """Its broker does not run, and its connections stay, as of a machine that hangs."""
    leash = cluster._nodes[1]._process
    assert leash is not None
    (pid,) = Path(f"/proc/{leash.pid}/task/{leash.pid}/children").read_text().split()
    os.kill(int(pid), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(int(pid), signal.SIGCONT)


@pytest.mark.timeout(200)
def test_a_broker_that_is_slow_hangs_and_is_down(unique_name: UniqueName) -> None:
    """The proxy begins at the broker's own address; clients get one that is 0.4 s away: this one is named."""
    slow, hanging, topic = unique_name("slow"), unique_name("hanging"), unique_name("far")
    with far_broker() as (cluster, relay):
        host, port = cluster.node_addresses[1]
        far = cluster.bootstrap_servers
        create_topics(cluster, topic)
        with ProxyProcess(f"{host}:{port}") as proxy:
            relay.delay_seconds = 0.4
            one_at_a_time = {"max.in.flight.requests.per.connection": 1, "batch.num.messages": 10}
            with Flood(proxy.bootstrap_servers, slow, topic, **one_at_a_time):
                seen = explained(proxy, slow, "broker", f"Broker {far} answers Produce requests in")
                times = {each["address"]: each["produce"]["mean_seconds"] for each in seen["brokers"]}
                assert times[far] >= relay.delay_seconds
            relay.delay_seconds = 0.0
            with Flood(proxy.bootstrap_servers, hanging, topic) as flood:
                flood.wait_for(100)
                with frozen(cluster):
                    explained(proxy, hanging, "broker", f"Broker {far}", "has not answered a request for", "frozen")
                cluster.stop_broker(1, graceful=False)
                explained(proxy, hanging, "broker", f"Broker {host}:{port} cannot be used (connect_refused)")
        with ProxyProcess(f"{host}:{port}") as proxy:
            assert proxy.get("/readyz")[0] == 503
            text = proxy.get("/explain", "text/plain")[1]
            assert "no client has sent a request" in text
            assert f"Broker {host}:{port} cannot be used (connect_refused): nothing listens there" in text


@pytest.mark.parametrize(("rate", "record_bytes"), [(LIMIT, 10_000), (1_000_000, 900_000)])
@pytest.mark.timeout(120)
def test_a_quota_of_the_broker(
    proxy: ProxyProcess,
    kafka_cluster: KafkaCluster,
    names: Names,
    unique_name: UniqueName,
    rate: int,
    record_bytes: int,
) -> None:
    """Of a client with many requests in flight, as librdkafka's are, or large ones that fill the broker's socket."""
    client_id = unique_name("etl")
    quotas = client_quotas(kafka_cluster.node_addresses[1], client_id, {"producer_byte_rate": rate})
    with quotas, Flood(proxy.bootstrap_servers, client_id, names.topic, record_bytes=record_bytes):
        seen = explained(proxy, client_id, "broker_quota", "Kafka itself", "quota")
        assert any("kafka-configs.sh" in each for each in seen["sentences"])


# ---- the client itself
@pytest.mark.timeout(120)
def test_tiny_batches_one_at_a_time(proxy: ProxyProcess, names: Names, unique_name: UniqueName) -> None:
    client_id = unique_name("tiny")
    settings = {"record_bytes": 200, "max.in.flight.requests.per.connection": 1}
    with Flood(proxy.bootstrap_servers, client_id, names.topic, **settings):
        explained(proxy, client_id, "client", "sends many small requests", "linger.ms", "batch.size")


@pytest.mark.claim("limits", "clients with larger requests notice nothing; one with small ones uses up its own limit")
@pytest.mark.timeout(120)
def test_small_requests_are_charged_their_cost(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    topic, small, sane = map(unique_name, ("any", "small", "sane"))
    quota = "client-id=<default>,producer_byte_rate=3200000,request_cost=16KB"
    with ProxyProcess(kafka_cluster.bootstrap_servers, quotas=[quota]) as proxy:
        flooding = partial(Flood, proxy.bootstrap_servers)
        with flooding(small, topic, record_bytes=100) as flood, flooding(sane, topic, record_bytes=100_000):
            explained(proxy, small, None, "charges each Produce request at least 16 kB")
            assert explained(proxy, sane, None, "producer_byte_rate")
            assert flood.problems == []
        rows = {each["entity"]: each for each in proxy.page("/limits")}
        clients = {each["client_id"]: each for each in proxy.page("/clients")}
        assert not any("charges each" in sentence for sentence in findings(proxy, sane)[0]["sentences"])
        assert rows[f"client-id:{small}"]["request_cost"] == 16_000
        assert rows[f"client-id:{small}"]["rate_60s"] > 3 * clients[small]["produce_bytes_per_second"] > 0
        assert rows[f"client-id:{sane}"]["rate_60s"] < 3 * clients[sane]["produce_bytes_per_second"]


@pytest.mark.timeout(120)
def test_a_reader_at_the_end_of_its_topic(proxy: ProxyProcess, names: Names, unique_name: UniqueName) -> None:
    client_id = unique_name("idle")
    settings = {"bootstrap.servers": proxy.bootstrap_servers, "client.id": client_id, "group.id": client_id}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(names.quiet, 0, OFFSET_END)])
    try:
        explained(proxy, client_id, "data", "there are no new records", "it has read everything")
    finally:
        consumer.close()


@pytest.mark.timeout(120)
def test_an_entry_that_never_matches_is_named(proxy: ProxyProcess, names: Names, unique_name: UniqueName) -> None:
    client_id = unique_name("fast")
    with Flood(proxy.bootstrap_servers, client_id, names.topic):
        words = "No quota entry applies", "client-id:eltj", "names seen so far", client_id
        assert explained(proxy, client_id, None, *words)["limits"] == []


def fetch_of(topic: str) -> bytes:
    """Fetch 4: from the beginning, 4 MB at most."""
    most = 4_000_000
    asked = b"".join(value.to_bytes(4, "big") for value in (0, 0, 0, most))  # partition, offset (8), bytes
    name = len(topic).to_bytes(2, "big") + topic.encode()
    head = b"".join(value.to_bytes(4, "big") for value in (0xFFFFFFFF, 100, 1, most)) + b"\0"
    return head + (1).to_bytes(4, "big") + name + (1).to_bytes(4, "big") + asked


@pytest.mark.timeout(120)
def test_readers_that_read_nothing_use_up_the_memory(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    topic, reader, waiting = unique_name("large"), unique_name("reader"), unique_name("waiting")
    settings = {"bootstrap.servers": kafka_cluster.bootstrap_servers, "linger.ms": 5}
    produce(Producer(settings), topic, [bytes(100_000)] * 40)
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--max-buffered-bytes", "1MiB") as proxy, ExitStack() as stack:

        def read_nothing() -> bool:
            """Ten more. Whether there is no room for another response of 100 kB."""
            for _ in range(10):
                wire = stack.enter_context(Wire(proxy.bootstrap_servers, reader))
                for _ in range(2):
                    wire.send(1, 4, fetch_of(topic))
            return proxy.metric("memory_used_ratio") > 0.92

        eventually(read_nothing, 20, "the memory is used up")
        explained(proxy, reader, "slow_reader", "does not read its responses")
        module = schema("describe_configs", 4)
        broker = module.DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
        asked = module.DescribeConfigsRequest(resources=(broker,), include_synonyms=True, include_documentation=True)
        stack.enter_context(Wire(proxy.bootstrap_servers, waiting)).send_entity(asked)
        explained(proxy, waiting, "proxy", "--max-buffered-bytes is used up")
