"""`--max-connection-age` under load: real clients see their connections end again and again, lose nothing, double
nothing, and report no error.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import KafkaError, Message, Producer

from deploy.local.cluster import KafkaCluster
from deploy.local.security import Security
from tests.conftest import UniqueName
from tests.integration.java_tools import perf_producer, run_tool
from tests.integration.librdkafka import numbers_of, read, records_in
from tests.integration.proxy_process import ProxyProcess
from tests.integration.test_sasl import java, librdkafka
from tests.integration.test_tls import Sides
from tests.integration.test_transactions import committed_values
from tests.integration.topics import create_topics
from tests.integration.transactional_producers import PARTITIONS, TRANSACT

pytestmark = pytest.mark.claim(
    "enforcement",
    "connections that end by age lose nothing and double nothing, with idempotence, acks=1 and "
    "acks=0, in transactions and groups, with TLS and logins",
)

#: Of each client, about one record in each millisecond: three ages and more. An age is seen within a second.
RECORDS = 6_000
AGE = ("--max-connection-age", "1s")


@pytest.fixture(scope="module")
def proxy(kafka_cluster: KafkaCluster) -> Iterator[ProxyProcess]:
    with ProxyProcess(kafka_cluster.bootstrap_servers, *AGE) as running:
        yield running


def ended(proxy: ProxyProcess) -> float:
    return proxy.metric("connections_closed_total", reason="max_age")


def paced() -> Iterator[int]:
    """Numbers, one in each millisecond."""
    began = time.monotonic()
    for number in range(RECORDS):
        late = time.monotonic() - began - number / 1000
        if late < 0:
            time.sleep(-late)  # the rate of the load, not a wait for something
        yield number


def produce_with_librdkafka(bootstrap: str, topic: str, **settings: Any) -> list[str]:
    """What failed: of records, and fatal errors. It reports each end of a connection as a transport error to
    `error_cb`, as it does those of brokers (`log.connection.close`).
    """
    wrong: list[str] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            wrong.append(f"record: {error}")

    def failed(error: KafkaError) -> None:
        if error.code() not in {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}:
            wrong.append(f"{error}")

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "error_cb": failed, **settings})
    for number in paced():
        producer.produce(topic, b"%08d" % number, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(45) == 0
    return wrong


async def produce_with_aiokafka(bootstrap: str, topic: str, **settings: Any) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, **settings) as producer:
        began = time.monotonic()
        sent = []
        for number in range(RECORDS):
            late = time.monotonic() - began - number / 1000
            if late < 0:
                await asyncio.sleep(-late)  # the rate of the load
            sent.append(await producer.send(topic, b"%08d" % number))
        await asyncio.gather(*sent)


async def consume_with_aiokafka(bootstrap: str, topic: str, group: str) -> list[int]:
    """It commits before it stops: the commit that `stop` would make is repeated forever if the connection to the
    coordinator has just ended, because aiokafka 0.14 looks for no coordinator any more (`ensure_coordinator_known`).
    """
    found: list[int] = []
    settings = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    async with AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, **settings) as consumer, asyncio.timeout(60):
        while len(found) < RECORDS:
            for messages in (await consumer.getmany(timeout_ms=500)).values():
                found += [int(each.value) for each in messages]
        await consumer.commit()
    return sorted(found)


def produce_with_java(bootstrap: str, topic: str, *properties: str, file: Path | None = None) -> str:
    """What failed; not that it sends a request again, of which it warns."""
    done = perf_producer(bootstrap, topic, *properties, records=RECORDS, size=100, throughput=1_000, file=file)
    assert done.returncode == 0, done.stderr[-2_000:]
    return "".join(
        line for line in (done.stdout + done.stderr).splitlines(True) if "Exception" in line and " WARN " not in line
    )


@pytest.mark.timeout(150)
async def test_under_load(proxy: ProxyProcess, kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    """Three libraries, each with idempotence, without, and with acks=0; consumers in groups read along."""
    bootstrap, before = proxy.bootstrap_servers, ended(proxy)
    kinds = ("idempotent", "acks=1", "acks=0")
    topics = {(library, kind): unique_name("age") for library in ("java", "librdkafka", "aiokafka") for kind in kinds}
    create_topics(kafka_cluster, *topics.values())
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(12) as threads:

        def run(function: Callable[..., Any], *arguments: Any, **settings: Any) -> asyncio.Future[Any]:
            return loop.run_in_executor(threads, lambda: function(*arguments, **settings))

        made = [
            run(produce_with_librdkafka, bootstrap, topics["librdkafka", "idempotent"], **{"enable.idempotence": True}),
            run(produce_with_librdkafka, bootstrap, topics["librdkafka", "acks=1"], acks=1),
            run(produce_with_librdkafka, bootstrap, topics["librdkafka", "acks=0"], acks=0),
        ]
        complaints = [
            run(produce_with_java, bootstrap, topics["java", "idempotent"], "acks=all"),
            run(produce_with_java, bootstrap, topics["java", "acks=1"], "acks=1", "enable.idempotence=false"),
            run(produce_with_java, bootstrap, topics["java", "acks=0"], "acks=0", "enable.idempotence=false"),
        ]
        reading = run(read, proxy, topics["librdkafka", "acks=1"], unique_name("group"), RECORDS)
        consumed, *_ = await asyncio.gather(
            consume_with_aiokafka(bootstrap, topics["aiokafka", "idempotent"], unique_name("group")),
            produce_with_aiokafka(bootstrap, topics["aiokafka", "idempotent"], enable_idempotence=True),
            produce_with_aiokafka(bootstrap, topics["aiokafka", "acks=1"], acks=1),
            produce_with_aiokafka(bootstrap, topics["aiokafka", "acks=0"], acks=0),
        )
        assert [await each for each in made] == [[], [], []]
        assert [await each for each in complaints] == ["", "", ""]
        assert sorted(map(int, await reading)) == list(range(RECORDS))
    assert consumed == list(range(RECORDS))
    for (library, kind), topic in topics.items():
        assert records_in(kafka_cluster, topic) == RECORDS, (library, kind)
        if library != "java":  # its records have no numbers
            assert sorted(numbers_of(kafka_cluster, topic, 0)) == list(range(RECORDS)), (library, kind)
    assert ended(proxy) - before > 2 * len(topics), "each had several ends"


@pytest.mark.timeout(150)
def test_transactions_and_java(proxy: ProxyProcess, kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    names = {library: unique_name(library) for library in TRANSACT}
    create_topics(kafka_cluster, *names.values(), partitions=PARTITIONS)
    records = [4] * 80  # ten ages and more: each commit waits for several responses
    before = ended(proxy)
    with ThreadPoolExecutor() as threads:
        running: dict[str, Future[Any]] = {
            library: threads.submit(TRANSACT[library], proxy.bootstrap_servers, name, name, records, 30_000)
            for library, name in names.items()
        }
        done = {library: each.result() for library, each in running.items()}
    assert ended(proxy) - before > 2
    for library, each in done.items():
        assert each.errors == [], library
        assert committed_values(kafka_cluster, names[library]) == list(range(sum(records)))
    printed = run_tool(
        *("ConsumerPerformance", "--bootstrap-server", proxy.bootstrap_servers, "--topic", names["java"]),
        *("--messages", f"{sum(records)}", "--group", unique_name("group"), "--timeout", "60000"),
    )
    assert f", {sum(records)}, " in printed


@pytest.mark.timeout(150)
def test_with_tls_and_logins(
    secured_cluster: KafkaCluster, security: Security, unique_name: UniqueName, tmp_path: Path
) -> None:
    """A new connection has a new certificate and a new login."""
    ours, theirs = unique_name("tls"), unique_name("tls")
    create_topics(secured_cluster, ours, theirs)
    given = Sides(security, tmp_path, "client", *AGE)
    password = security.users["bob"]
    file = java(tmp_path, "SCRAM-SHA-512", "bob", password)
    login, tls = file.read_text().replace("SASL_PLAINTEXT", "SASL_SSL"), given.java().read_text()
    file.write_text(login + tls.partition("\n")[2])
    with ProxyProcess(secured_cluster.secure_addresses("SASL_PLAINTEXT"), *given.flags) as proxy:
        bootstrap = proxy.bootstrap_servers
        settings = librdkafka(bootstrap, "SCRAM-SHA-512", "bob", password, **given.librdkafka())
        settings |= {"security.protocol": "SASL_SSL"}
        settings.pop("batch.num.messages")
        with ThreadPoolExecutor() as threads:
            made = threads.submit(produce_with_librdkafka, bootstrap, ours, **settings)
            complaint = threads.submit(produce_with_java, bootstrap, theirs, "acks=1", file=file)
            settings.pop("message.max.bytes")
            received = threads.submit(read, proxy, ours, unique_name("group"), RECORDS, **settings)
            assert (made.result(), complaint.result()) == ([], "")
            assert sorted(map(int, received.result())) == list(range(RECORDS))
        assert ended(proxy) > 6
    assert [records_in(secured_cluster, topic) for topic in (ours, theirs)] == [RECORDS, RECORDS]
