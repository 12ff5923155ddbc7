"""What a real client sees of a line to the broker that is set up wrongly, and what the proxy logs of it."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from confluent_kafka import KafkaError, Producer

from deploy.local.cluster import KafkaCluster
from deploy.local.security import Security
from tests.conftest import UniqueName
from tests.integration.librdkafka import produce
from tests.integration.proxy_process import Event, ProxyProcess, eventually
from tests.integration.topics import create_topics

PATIENCE_SECONDS = 30
TLS = "security.protocol=SSL\nssl.truststore.location={ca}\n"
TLS_OF_OTHER = TLS.replace("{ca}", "{other_ca}")
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
GUESSED = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
GUESSED += f'sasl.jaas.config={SCRAM} required username="etl" password="guessed";\n'


@contextmanager
def server(serve: Callable[[socket.socket], object]) -> Iterator[str]:
    """The address of a listener that does this with each connection."""

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                serve(connection)

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE_SECONDS)


def failed(proxy: ProxyProcess, reason: str) -> Event:
    """The first line of this reason, which names the broker; a client of this proxy can connect to none."""
    seen: list[KafkaError] = []
    settings = {"bootstrap.servers": proxy.bootstrap_servers, "error_cb": seen.append, "reconnect.backoff.max.ms": 500}
    producer = Producer(settings)
    eventually(lambda: producer.poll(0.05) or seen, PATIENCE_SECONDS, "the client's error")
    assert {error.code() for error in seen} <= {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
    line = proxy.wait_for_event("broker_failed", PATIENCE_SECONDS, reason=reason)
    lines = [each for each in proxy.events if each["event"] == "broker_failed" and each["reason"] == reason]
    assert lines == [line], "once in a minute, however often the client tries"
    return line


CASES = {
    "a TLS listener in plaintext": ("SSL", "", "plaintext_to_tls", "set security.protocol=SSL"),
    "a SASL listener without a login": ("SASL_PLAINTEXT", "", "sasl_required", "sasl.jaas.config"),
    "a SASL_SSL listener without a login": ("SASL_SSL", TLS, "sasl_required", "sasl.jaas.config"),
    "a plaintext listener with TLS": ("PLAINTEXT", TLS, "tls_plaintext_peer", "security.protocol=PLAINTEXT"),
    "the CA of another cluster": ("SSL", TLS_OF_OTHER, "tls_certificate", "ssl.truststore.location"),
    "a wrong password": ("SASL_PLAINTEXT", GUESSED, "login_refused", "sasl.jaas.config"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_line_to_a_broker(secured_cluster: KafkaCluster, security: Security, tmp_path: Path, case: str) -> None:
    protocol, content, reason, hint = CASES[case]
    plaintext = protocol == "PLAINTEXT"
    address = secured_cluster.bootstrap_servers if plaintext else secured_cluster.secure_addresses(protocol)
    flags: tuple[str, ...] = ()
    if content:
        file, other_ca = tmp_path / "client.properties", tmp_path / "other.pem"
        trustme.CA().cert_pem.write_to_path(str(other_ca))
        file.touch(0o600)
        file.write_text(content.format(ca=security.write_ca(tmp_path / "ca.pem"), other_ca=other_ca))
        flags = ("--command-config", str(file))
    with ProxyProcess(address, *flags) as proxy:
        if reason != "sasl_required":  # a broker answers ApiVersions before a login
            proxy.wait_for_event("broker_failed", PATIENCE_SECONDS, reason=reason)  # before the first client
            status, text = proxy.get("/readyz")
            assert (status, hint in text) == (503, True)
        line = failed(proxy, reason)
        assert not [each for each in proxy.events if each["event"] == "broker_recovered"]
    assert (line["address"], hint in line["hint"], line["level"]) == (address, True, "WARN")
    if reason == "login_refused":
        assert "invalid credentials with SASL mechanism SCRAM-SHA-256" in line["detail"]
    if content:
        assert str(tmp_path / "client.properties") in line["hint"]


@pytest.mark.parametrize(
    ("host", "days", "reason", "hint"),
    [
        ("other.test", 1, "tls_hostname", "use a name of the certificate"),
        ("127.0.0.1", -1, "tls_expired", "clock of this machine"),
    ],
)
def test_a_certificate_of_another_host_or_time(tmp_path: Path, host: str, days: int, reason: str, hint: str) -> None:
    ca, file = trustme.CA(), tmp_path / "client.properties"
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    file.write_text(TLS.format(ca=tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(host, not_after=datetime.now(UTC) + timedelta(days)).configure_cert(context)

    def handshake(connection: socket.socket) -> None:
        with suppress(OSError):
            context.wrap_socket(connection, server_side=True).close()

    with server(handshake) as address, ProxyProcess(address, "--command-config", str(file)) as proxy:
        line = failed(proxy, reason)
        assert (line["address"], hint in line["hint"]) == (address, True)


def test_an_address_of_nobody() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as gone:
        refused = f"127.0.0.1:{gone.getsockname()[1]}"
    with ProxyProcess(f"{refused},no-such-host.invalid:9092") as proxy:
        assert failed(proxy, "connect_refused")["address"] == refused
        line = failed(proxy, "name_resolution")
        assert (line["address"], "--bootstrap-servers" in line["hint"]) == ("no-such-host.invalid:9092", True)
        effects = [each.get("effect") for each in proxy.events if each["event"] == "broker_failed"]
        assert effects == [None, "no bootstrap server can be used"]


def test_a_full_broker_and_a_silent_one(secured_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    """One that hangs as a process does that is stopped: the kernel still accepts for it."""
    go_on = threading.Event()
    with server(lambda _: go_on.wait(PATIENCE_SECONDS)) as address, ProxyProcess(address) as proxy:
        line = proxy.wait_for_event("broker_failed", PATIENCE_SECONDS, reason="connect_timeout")
        assert "no answer within 3 s" in line["detail"]
        producer = Producer({"bootstrap.servers": proxy.bootstrap_servers})
        line = proxy.wait_for_event("broker_failed", PATIENCE_SECONDS, reason="silent")
        assert (line["address"], line["detail"]) == (address, "no response for 5 s to a request in flight")
        assert producer.flush(0) == 0
        go_on.set()
    topic = unique_name("orders")
    create_topics(secured_cluster, topic)
    with ProxyProcess(secured_cluster.bootstrap_servers) as proxy:
        produce(Producer({"bootstrap.servers": proxy.bootstrap_servers}), topic, [b"a"])
        assert not [each for each in proxy.events if each["event"] == "broker_failed"]
