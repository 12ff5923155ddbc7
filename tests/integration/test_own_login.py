"""The proxy logs in to a real broker, and clients need no credentials; nothing that it writes contains one."""

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, Producer

from deploy.local.artifacts import PROJECT
from deploy.local.cluster import KafkaCluster
from deploy.local.security import Security
from tests.conftest import UniqueName
from tests.integration.java_tools import perf_producer
from tests.integration.librdkafka import produce, read, records_in
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.test_usage_records import in_topic, recorded, shown, usage_flags
from tests.integration.topics import create_topics

VALUES = [b"value-%d" % number for number in range(50)]
MODULES = "org.apache.kafka.common.security"


def properties(
    directory: Path, security: Security, protocol: str, mechanism: str, *, password: str | None = None
) -> Path:
    """A client.properties as users of the cluster have it."""
    lines = [f"security.protocol={protocol}", f"sasl.mechanism={mechanism}", "acks=all"]
    if protocol == "SASL_SSL":
        lines.append(f"ssl.truststore.location={security.write_ca(directory / 'ca.pem')}")
    if mechanism == "OAUTHBEARER":
        token = directory / "token"
        token.write_text(unsecured_token("etl") if password is None else password)
        token.chmod(0o600)
        lines += [
            f"sasl.jaas.config={MODULES}.oauthbearer.OAuthBearerLoginModule required;",
            f"sasl.oauthbearer.token.endpoint.url=file:{token}",
        ]
    else:
        module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
        password = password or security.users["etl"]
        lines.append(f'sasl.jaas.config={MODULES}.{module}LoginModule required username="etl" password="{password}";')
    path = directory / "client.properties"
    path.touch(0o600)
    path.write_text("\n".join(lines))
    return path


def unsecured_token(subject: str) -> str:
    """A JWS without signature (RFC 7515, appendix A.5), for a broker that asks for no better."""
    now = int(datetime.now(UTC).timestamp())
    claims = {"sub": subject, "iat": now, "exp": now + 600}
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "none"}, claims))
    return b".".join(parts).decode() + "."


def producer_for(proxy: ProxyProcess, **settings: Any) -> Producer:
    settings = {"client.id": "c", "message.max.bytes": 1_000_000, **settings}
    return Producer({"bootstrap.servers": proxy.bootstrap_servers, **settings})


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SASL_SSL", "SCRAM-SHA-512"),
        ("SASL_SSL", "PLAIN"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        ("SASL_PLAINTEXT", "OAUTHBEARER"),
    ],
)
async def test_clients_without_credentials(
    secured_cluster: KafkaCluster,
    security: Security,
    unique_name: UniqueName,
    tmp_path: Path,
    protocol: str,
    mechanism: str,
) -> None:
    """librdkafka and aiokafka write, librdkafka reads; records are counted for the user of the login."""
    topic = unique_name("orders")
    create_topics(secured_cluster, topic)
    file = properties(tmp_path, security, protocol, mechanism)
    with ProxyProcess(secured_cluster.secure_addresses(protocol), "--command-config", str(file)) as proxy:
        produce(producer_for(proxy), topic, VALUES)
        async with AIOKafkaProducer(bootstrap_servers=proxy.bootstrap_servers) as producer:
            await producer.send_and_wait(topic, b"last")
        assert sorted(read(proxy, topic, unique_name("group"), 51)) == sorted([*VALUES, b"last"])
        assert proxy.get("/readyz")[0] == 200
        assert proxy.metric("bytes_total", direction="produce", user="etl", client_id="c") > 0
        assert proxy.metric("bytes_total", user="ANONYMOUS") == 0
        [line] = [each for each in proxy.events if each["event"] == "client_properties_ignored"]
        assert line["keys"] == "acks"


# ---- errors, and what is written
@pytest.mark.claim(
    "security",
    "passwords appear in no log (even at level debug), metric, error or process list, even if a "
    "broker repeats one in an error",
)
def test_a_refused_login_and_no_secret_anywhere(
    secured_cluster: KafkaCluster, security: Security, unique_name: UniqueName, tmp_path: Path
) -> None:
    """A wrong password, then the right one in the same file, then a file that is broken; at log level debug."""
    topic = unique_name("orders")
    create_topics(secured_cluster, topic)
    right, wrong = security.users["etl"], "guessed-but-still-secret"
    file = properties(tmp_path, security, "SASL_SSL", "SCRAM-SHA-512", password=wrong)
    written = []
    usage = ("--usage-topic", unique_name("usage"), "--usage-interval", "1s")
    flags = ("--command-config", str(file), "--log-level", "debug", *usage)
    with ProxyProcess(secured_cluster.secure_addresses("SASL_SSL"), *flags) as proxy:
        proxy.expected_errors = {"tls_refused"}
        producer = producer_for(proxy, **{"message.timeout.ms": 40_000})
        producer.produce(topic, b"waits for the right password")
        refused = proxy.wait_for_event("broker_failed", 20, reason="login_refused")
        in_words = "invalid credentials with SASL mechanism SCRAM-SHA-512"
        assert in_words in refused["detail"]
        status, body = proxy.get("/readyz")
        written.append(body)
        assert (status, in_words in body) == (503, True)
        properties(tmp_path, security, "SASL_SSL", "SCRAM-SHA-512")
        assert producer.flush(30) == 0
        eventually(lambda: proxy.metric("usage_records_sent_total") > 0, 30, "usage records, by the same file")
        file.write_text(f"{file.read_text()}\nsasl.pasword={right}")
        proxy.wait_for_event("tls_refused", 20)
        produce(producer, topic, VALUES)
        written += [proxy.metrics(), *(proxy.get(path)[1] for path in ("/readyz", "/throttles", "/healthz"))]
        written.append(Path(f"/proc/{proxy.pid}/cmdline").read_text())
        (tmp_path / "proxy.toml").write_text('command_config = "client.properties"')
        command = Path(sys.executable).with_name("kafka-quota-proxy")
        for arguments in (("run", "--command-config", file), ("check-config", tmp_path / "proxy.toml")):
            checked = subprocess.run([command, *arguments], capture_output=True, text=True, check=False, cwd=PROJECT)
            assert (checked.returncode, "sasl.pasword: unknown key" in checked.stderr) == (2, True)
            written.append(checked.stdout + checked.stderr)
    written.append(json.dumps(proxy.events))
    encoded = [base64.b64encode(f"\0etl\0{each}".encode()).decode() for each in (right, wrong)]
    for secret in (right, wrong, *encoded):
        assert not [text for text in written if secret in text]


def test_usage_records_are_written_with_credentials_of_their_own(
    secured_cluster: KafkaCluster, security: Security, unique_name: UniqueName, tmp_path: Path
) -> None:
    """First with a wrong password."""
    topic, client, right = unique_name("usage"), tmp_path / "client.properties", security.users["etl"]
    servers = secured_cluster.secure_addresses("SASL_PLAINTEXT")
    flags = usage_flags("--usage-topic", topic, "--own-client-config", str(client), "--log-level", "debug")
    for password in ("guessed-but-still-secret", right):
        lines = (f"bootstrap.servers={servers}", "security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN")
        client.write_text("\n".join((*lines, "sasl.username=etl", f"sasl.password={password}")))
        with ProxyProcess(secured_cluster.bootstrap_servers, *flags) as proxy:
            produce(producer_for(proxy), unique_name("orders"), VALUES)
            if password != right:
                assert proxy.wait_for_event("usage_records_not_written", 30)["reason"] == "authentication"
            expected = shown(proxy)
        assert password not in json.dumps(proxy.events)
    assert recorded([record for _, record in in_topic(secured_cluster.bootstrap_servers, topic)]) == expected


# ---- renewal
@contextmanager
def load(proxy: ProxyProcess, topic: str, size: int, in_flight: int, errors: list[KafkaError]) -> Iterator[list[int]]:
    """A producer at full speed, of at most 30 large records a second; yields how many it has sent."""
    sent = [0]
    ends = threading.Event()
    settings = {"error_cb": errors.append, "queue.buffering.max.kbytes": 4_000, "max.in.flight": in_flight}
    producer = producer_for(proxy, **settings)

    def run() -> None:
        while not ends.is_set():
            try:
                producer.produce(topic, bytes(size))
                sent[0] += 1
            except BufferError:
                producer.poll(0.05)
            if size > 100_000:
                ends.wait(1 / 30)
        assert producer.flush(60) == 0

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sent
    finally:
        ends.set()
        thread.join()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mechanism", "seconds", "in_flight"),
    [("SCRAM-SHA-256", 8, 5), pytest.param("SCRAM-SHA-512", 75, 1_000_000, marks=pytest.mark.nightly)],
)
def test_the_login_is_renewed_under_full_load(
    secured_cluster: KafkaCluster,
    security: Security,
    unique_name: UniqueName,
    tmp_path: Path,
    mechanism: str,
    seconds: int,
    in_flight: int,
) -> None:
    """Small and large requests, flowing and held, from librdkafka and Java: no connection ends, and each record is
    there once.

    A broker closes a connection whose requests it takes later than the session ends. So where sessions are that short,
    few requests are on their way.
    """
    file = properties(tmp_path, security, "SASL_SSL", mechanism)
    sizes = {"small": 100, "large": 900_000, "small-held": 100, "large-held": 900_000}
    topics = {kind: unique_name(kind) for kind in (*sizes, "java")}
    create_topics(secured_cluster, *topics.values())
    flags = [f"--quota=topic={topics[kind]},bytes_in_rate=2MB" for kind in ("small-held", "large-held")]
    errors: list[KafkaError] = []
    with (
        ProxyProcess(secured_cluster.secure_addresses("SASL_SSL"), "--command-config", str(file), *flags) as proxy,
        ExitStack() as stack,
    ):
        running = {
            kind: stack.enter_context(load(proxy, topics[kind], size, in_flight, errors))
            for kind, size in sizes.items()
        }
        done = perf_producer(proxy.bootstrap_servers, topics["java"], records=200 * seconds, size=1_000, throughput=200)
        assert proxy.metric("throttled_total") > 0
    counts = {kind: sent[0] for kind, sent in running.items()} | {"java": 200 * seconds}
    assert (errors, done.returncode, "disconnected" in done.stderr) == ([], 0, False), done.stderr[-2_000:]
    assert {kind: records_in(secured_cluster, topic) for kind, topic in topics.items()} == counts
