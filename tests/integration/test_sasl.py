"""Clients log in through the proxy: each is limited as the user that it proves."""

import asyncio
import base64
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, Producer
from kafka import KafkaProducer
from kio.schema.create_delegation_token.v3.request import CreateDelegationTokenRequest
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.static.primitive import i64Timedelta

from deploy.local.cluster import KafkaCluster
from deploy.local.security import Security
from tests.conftest import SESSIONS_MS, UniqueName
from tests.integration.java_tools import perf_producer
from tests.integration.librdkafka import produce, read
from tests.integration.proxy_process import ProxyProcess, eventually, sum_of
from tests.integration.test_own_login import unsecured_token
from tests.integration.topics import create_topics
from tests.integration.wire import Wire

SASL = "SASL_PLAINTEXT"
MODULES = "org.apache.kafka.common.security"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
#: At this rate 300 kB after the burst of a second are throttled.
LIMITS = ("user=alice,producer_byte_rate=400kB,burst_seconds=0.1", "user=bob,producer_byte_rate=1GB")
VALUES = [bytes(10_000)] * 40


@pytest.fixture(scope="module")
def proxy(secured_cluster: KafkaCluster) -> Iterator[ProxyProcess]:
    with ProxyProcess(secured_cluster.secure_addresses(SASL), quotas=LIMITS) as running:
        yield running


@pytest.fixture
def topic(secured_cluster: KafkaCluster, unique_name: UniqueName) -> str:
    name = unique_name("orders")
    create_topics(secured_cluster, name)
    return name


def librdkafka(bootstrap: str, mechanism: str, user: str, password: str, **more: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": SASL,
        "sasl.mechanism": mechanism,
        "message.max.bytes": 1_000_000,
        "batch.num.messages": 1,
    }
    if mechanism == "OAUTHBEARER":
        return settings | {"oauth_cb": lambda _: (unsecured_token(user), 2_000_000_000.0)} | more
    return settings | {"sasl.username": user, "sasl.password": password} | more


def java(directory: Path, mechanism: str, user: str, password: str, options: str = "") -> Path:
    module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    jaas = f'{MODULES}.{module}LoginModule required username="{user}" password="{password}"{options};'
    if mechanism == "OAUTHBEARER":
        jaas = f'{MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="{user}";'
    file = directory / f"{user}.properties"
    file.write_text(f"security.protocol={SASL}\nsasl.mechanism={mechanism}\nsasl.jaas.config={jaas}\n")
    return file


def java_producer(proxy: ProxyProcess, topic: str, file: Path, *properties: str) -> subprocess.CompletedProcess[str]:
    return perf_producer(proxy.bootstrap_servers, topic, *properties, records=len(VALUES), size=10_000, file=file)


def charged(proxy: ProxyProcess, client_id: str) -> dict[str, float]:
    """Bytes produced with this client id, by user."""
    users = ("alice", "bob", "ANONYMOUS")
    page = proxy.metrics()
    found = {user: sum_of(page, "bytes_total", direction="produce", user=user, client_id=client_id) for user in users}
    return {user: count for user, count in found.items() if count}


def check_limited(proxy: ProxyProcess, client_id: str, user: str) -> None:
    """Everything was charged to this user; alice was throttled, bob was not."""
    counts = charged(proxy, client_id)
    assert list(counts) == [user]
    assert counts[user] > sum(map(len, VALUES))
    throttled = proxy.metric("throttled_total", user=user, client_id=client_id, limit="producer_byte_rate")
    assert (throttled > 0) == (user == "alice")


@pytest.mark.claim(
    "security",
    "librdkafka, aiokafka, kafka-python and Java are limited as the user that they prove, with "
    "every mechanism, even where the proxy adds TLS",
)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(
    proxy: ProxyProcess, security: Security, topic: str, unique_name: UniqueName, mechanism: str
) -> None:
    for user in ("alice", "bob"):
        settings = librdkafka(proxy.bootstrap_servers, mechanism, user, security.users[user])
        client_id = unique_name(user)
        produce(Producer(settings | {"client.id": client_id}), topic, VALUES)
        check_limited(proxy, client_id, user)
    settings.pop("message.max.bytes"), settings.pop("batch.num.messages")
    assert len(read(proxy, topic, unique_name("group"), 2 * len(VALUES), **settings)) == 2 * len(VALUES)
    assert proxy.metric("bytes_total", direction="fetch", user="bob", client_id="rdkafka") > 0


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_aiokafka_and_kafka_python(
    proxy: ProxyProcess, security: Security, topic: str, unique_name: UniqueName, mechanism: str
) -> None:
    settings = {
        "bootstrap_servers": proxy.bootstrap_servers,
        "security_protocol": SASL,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": security.users["alice"],
    }
    first, second = unique_name("aiokafka"), unique_name("kafka-python")

    def with_kafka_python() -> None:
        with closing(KafkaProducer(**settings, client_id=second)) as producer:
            for value in VALUES:
                producer.send(topic, value).get(30)
        for client_id in (first, second):
            check_limited(proxy, client_id, "alice")

    async with AIOKafkaProducer(**settings, client_id=first) as producer:
        for value in VALUES:
            await producer.send_and_wait(topic, value)
    await asyncio.to_thread(with_kafka_python)


@pytest.mark.claim(
    "security",
    "librdkafka, aiokafka, kafka-python and Java are limited as the user that they prove, with "
    "every mechanism, even where the proxy adds TLS",
)
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_java(
    proxy: ProxyProcess, security: Security, topic: str, unique_name: UniqueName, tmp_path: Path, mechanism: str
) -> None:
    client_id = unique_name("java")
    file = java(tmp_path, mechanism, "alice", security.users["alice"])
    done = java_producer(proxy, topic, file, f"client.id={client_id}", "batch.size=1")
    assert (done.returncode, "disconnected" in done.stderr) == (0, False), done.stderr[-2_000:]
    check_limited(proxy, client_id, "alice")


def log_in(wire: Wire, user: str, password: str) -> int:
    """By PLAIN. Returns the error code."""
    wire.ask_entity(SaslHandshakeRequest(mechanism="PLAIN"))
    answer, _ = wire.ask_entity(SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{password}".encode()))
    return int(answer.error_code)


def test_a_delegation_token_is_a_user_of_its_own(
    secured_cluster: KafkaCluster,
    proxy: ProxyProcess,
    security: Security,
    topic: str,
    unique_name: UniqueName,
    tmp_path: Path,
) -> None:
    """Its id is all that the proxy can see: not the user that it was made for."""
    with Wire(secured_cluster.secure_addresses(SASL)) as wire:
        assert log_in(wire, "alice", security.users["alice"]) == 0
        lifetime = i64Timedelta.parse(timedelta(hours=1))
        owner: Any = {"owner_principal_type": None, "owner_principal_name": None}
        token, _ = wire.ask_entity(CreateDelegationTokenRequest(**owner, renewers=(), max_lifetime=lifetime))
    assert int(token.error_code) == 0
    password = base64.b64encode(token.hmac).decode()
    file = java(tmp_path, "SCRAM-SHA-256", token.token_id, password, " tokenauth=true")
    client_id = unique_name("token")
    done = java_producer(proxy, topic, file, f"client.id={client_id}")
    assert done.returncode == 0, done.stderr[-2_000:]
    assert proxy.metric("bytes_total", user=token.token_id, client_id=client_id) > sum(map(len, VALUES))
    assert charged(proxy, client_id) == {}


def refusal(bootstrap: str, mechanism: str) -> tuple[str | None, str]:
    """What librdkafka says of a wrong password."""
    errors: list[KafkaError] = []
    producer = Producer(librdkafka(bootstrap, mechanism, "alice", "wrong", error_cb=errors.append))

    def refused() -> KafkaError | None:
        producer.poll(0.2)
        return next((each for each in errors if each.code() == KafkaError._AUTHENTICATION), None)

    error = eventually(refused, 20, "it is refused")
    assert error is not None
    return error.name(), error.str().split(": ", 1)[1].split(" (after")[0]


@pytest.mark.claim("security", "a client with a wrong password gets the broker's own error")
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused_as_by_the_broker(
    secured_cluster: KafkaCluster, proxy: ProxyProcess, topic: str, tmp_path: Path, mechanism: str
) -> None:
    """Java with one record: it would try each with a connection of its own, a second after the one before."""
    direct = secured_cluster.secure_addresses(SASL)
    assert refusal(proxy.bootstrap_servers, mechanism) == refusal(direct, mechanism)
    if mechanism == "PLAIN":
        return
    file = java(tmp_path, mechanism, "alice", "wrong")
    said = []
    for bootstrap in (direct, proxy.bootstrap_servers):
        done = perf_producer(bootstrap, topic, records=1, size=1_000, file=file)
        lines = (done.stdout + done.stderr).splitlines()
        said.append(next(line for line in lines if "SaslAuthenticationException" in line))
    assert said[0] == said[1]


def test_a_new_login_keeps_the_user_unless_it_proves_another(proxy: ProxyProcess, security: Security) -> None:
    """Kafka permits no other user on the same connection, and closes it."""
    with Wire(proxy.bootstrap_servers, "again") as wire:
        assert log_in(wire, "alice", security.users["alice"]) == 0
        asked = MetadataRequest(topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False)
        for _ in range(2):
            wire.ask_entity(asked)
            assert log_in(wire, "alice", security.users["alice"]) in {0, 34}  # 34: within a second
    with Wire(proxy.bootstrap_servers, "other") as wire:
        assert log_in(wire, "alice", "wrong") == 58
        with pytest.raises(EOFError):
            log_in(wire, "bob", security.users["bob"])


@pytest.mark.claim(
    "security", "sessions that end (connections.max.reauth.ms) are renewed by clients as without the proxy"
)
@pytest.mark.timeout(120)
def test_sessions_that_end_are_renewed_by_clients(
    secured_cluster: KafkaCluster, security: Security, unique_name: UniqueName, topic: str, tmp_path: Path
) -> None:
    """`connections.max.reauth.ms`: librdkafka and Java log in again on their connections, and keep their user.

    Each produces for longer than a session is valid. One request at a time: what a client sends before its new login,
    and the limit holds, must pass before the session ends.
    """
    mechanism, rate = "SCRAM-SHA-256", 40_000
    assert sum(map(len, VALUES)) / rate > SESSIONS_MS[mechanism] / 1_000
    line = tmp_path / "client.properties"
    line.write_text(f"security.protocol=SASL_SSL\nssl.truststore.location={security.write_ca(tmp_path / 'ca.pem')}\n")
    flags = ("--command-config", f"{line}", "--quota", f"user=<default>,producer_byte_rate={rate},burst_seconds=0.1")
    clients = {"alice": unique_name("librdkafka"), "bob": unique_name("java")}
    with ProxyProcess(secured_cluster.secure_addresses("SASL_SSL"), *flags) as proxy, ThreadPoolExecutor() as threads:
        file = java(tmp_path, mechanism, "bob", security.users["bob"])
        one_at_a_time = ("batch.size=1", "max.in.flight.requests.per.connection=1")
        running = threads.submit(java_producer, proxy, topic, file, f"client.id={clients['bob']}", *one_at_a_time)
        errors: list[KafkaError] = []
        settings = librdkafka(proxy.bootstrap_servers, mechanism, "alice", security.users["alice"])
        settings |= {"client.id": clients["alice"], "error_cb": errors.append, "max.in.flight": 1}
        produce(Producer(settings), topic, VALUES)
        done = running.result()
        assert (errors, done.returncode, "disconnected" in done.stderr) == ([], 0, False), done.stderr[-2_000:]
        assert [list(charged(proxy, client_id)) for client_id in clients.values()] == [["alice"], ["bob"]]
        assert proxy.metric("requests_total", api="SaslHandshake") >= 6, "two connections each, and a renewal"


@pytest.mark.claim(
    "security",
    "librdkafka, aiokafka, kafka-python and Java are limited as the user that they prove, with "
    "every mechanism, even where the proxy adds TLS",
)
def test_clients_without_tls_to_a_listener_with_it(
    secured_cluster: KafkaCluster, security: Security, topic: str, unique_name: UniqueName, tmp_path: Path
) -> None:
    """The proxy adds TLS, the client its login; and both sides have TLS."""
    client = tmp_path / "client.properties"
    client.write_text(f"security.protocol=SASL_SSL\nssl.truststore.location={security.write_ca(tmp_path / 'ca.pem')}\n")
    server = security.issue(tmp_path, "proxy", "127.0.0.1")
    tls = ("--ssl-certificate-location", f"{server.certificate}", "--ssl-key-location", f"{server.key}")
    for flags, more in (
        ((), {}),
        (tls, {"security.protocol": "SASL_SSL", "ssl.ca.location": f"{tmp_path / 'ca.pem'}"}),
    ):
        client_id = unique_name("tls")
        addresses = secured_cluster.secure_addresses("SASL_SSL")
        with ProxyProcess(addresses, "--command-config", f"{client}", *flags, quotas=LIMITS) as proxy:
            settings = librdkafka(proxy.bootstrap_servers, "SCRAM-SHA-512", "alice", security.users["alice"])
            produce(Producer(settings | {"client.id": client_id} | more), topic, VALUES)
            check_limited(proxy, client_id, "alice")
            eventually(lambda: proxy.get("/readyz")[0] == 200, 20, "ready")
