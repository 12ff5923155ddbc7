"""TLS from clients and to a real broker: four libraries, certificates as users, and new ones while it runs."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaProducer

from deploy.local.cluster import KafkaCluster
from deploy.local.security import PemFiles, Security
from tests.conftest import UniqueName
from tests.integration.delaying_relay import DelayingRelay
from tests.integration.java_tools import perf_producer
from tests.integration.librdkafka import produce, read, records_in
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.topics import create_topics

HANDSHAKE_SECONDS = 7
VALUES = [b"value-%d" % number for number in range(50)]


class Sides:
    """The flags of a proxy with TLS on some sides, and the settings of its clients."""

    def __init__(self, security: Security, directory: Path, sides: str, *flags: str) -> None:
        self.ca = security.write_ca(directory / "ca.pem")
        self.server = security.issue(directory, "proxy", "127.0.0.1")
        self.has_clients = sides != "broker"
        self.protocol = "PLAINTEXT" if sides == "client" else "SSL"
        self.flags = list(flags)
        self.directory = directory
        if self.has_clients:
            self.flags += ["--ssl-certificate-location", f"{self.server.certificate}"]
            self.flags += ["--ssl-key-location", f"{self.server.key}"]
        if sides != "client":
            file = directory / "client.properties"
            file.write_text(f"security.protocol=SSL\nssl.truststore.location={self.ca}\n")
            self.flags += ["--command-config", f"{file}"]

    def proxy(self, cluster: KafkaCluster) -> ProxyProcess:
        address = cluster.bootstrap_servers if self.protocol == "PLAINTEXT" else cluster.secure_addresses("SSL")
        return ProxyProcess(address, *self.flags)

    def context(self, files: PemFiles | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        if files is not None:
            context.load_cert_chain(files.both)
        return context

    def librdkafka(self, files: PemFiles | None = None) -> dict[str, str]:
        if not self.has_clients:
            return {}
        settings = {"security.protocol": "ssl", "ssl.ca.location": str(self.ca)}
        if files is not None:
            settings |= {"ssl.certificate.location": str(files.certificate), "ssl.key.location": str(files.key)}
        return settings

    def java(self, files: PemFiles | None = None) -> Path:
        lines = ["security.protocol=SSL", "ssl.truststore.type=PEM", f"ssl.truststore.location={self.ca}"]
        if files is not None:
            lines += ["ssl.keystore.type=PEM", f"ssl.keystore.location={files.both}"]
        path = self.directory / "java.properties"
        path.write_text("\n".join(lines if self.has_clients else ["acks=all"]))
        return path


@pytest.mark.parametrize("sides", ["client", "broker", "both"])
async def test_four_libraries(
    secured_cluster: KafkaCluster, security: Security, unique_name: UniqueName, tmp_path: Path, sides: str
) -> None:
    topic = unique_name("orders")
    create_topics(secured_cluster, topic)
    given = Sides(security, tmp_path, sides)
    with given.proxy(secured_cluster) as proxy:
        servers = proxy.bootstrap_servers
        produce(Producer({"bootstrap.servers": servers, **given.librdkafka()}), topic, VALUES)
        protocol, context = ("SSL", given.context()) if given.has_clients else ("PLAINTEXT", None)
        settings: Any = {"bootstrap_servers": servers, "security_protocol": protocol, "ssl_context": context}
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, b"a" * 900_000)
        other = KafkaProducer(**settings)
        await asyncio.to_thread(other.send(topic, b"kafka-python").get, 30)
        await asyncio.to_thread(other.close)
        done = await asyncio.to_thread(perf_producer, servers, topic, records=2_000, size=1_000, file=given.java())
        assert done.returncode == 0, done.stderr[-2_000:]
        received = read(proxy, topic, unique_name("group"), 2_052, **given.librdkafka())
        assert set(VALUES) | {b"kafka-python"} <= set(received)
        assert proxy.get("/readyz")[0] == 200
    assert records_in(secured_cluster, topic) == 2_052


def test_certificates_of_clients(
    secured_cluster: KafkaCluster, security: Security, unique_name: UniqueName, tmp_path: Path
) -> None:
    """They name the user. Without one Java reports what it would of a broker: an SslAuthenticationException."""
    topic = unique_name("orders")
    create_topics(secured_cluster, topic)
    flags = ("--ssl-client-auth", "required", "--ssl-ca-location", f"{tmp_path}/ca.pem")
    given = Sides(security, tmp_path, "both", *flags, "--ssl-principal-mapping-rules", "RULE:^CN=([a-z]+).*$/$1/U")
    files = security.issue(tmp_path, "etl", common_name="etl")
    with given.proxy(secured_cluster) as proxy:
        settings = given.librdkafka(files)
        produce(Producer({"bootstrap.servers": proxy.bootstrap_servers, "client.id": "c", **settings}), topic, VALUES)
        assert proxy.metric("bytes_total", direction="produce", user="ETL", client_id="c") > 0
        assert proxy.metric("bytes_total", user="ANONYMOUS") == 0
        refused = perf_producer(proxy.bootstrap_servers, topic, records=1, size=1_000, file=given.java())
        assert "SslAuthenticationException" in refused.stdout + refused.stderr
        assert proxy.metric("protocol_errors_total", reason="tls_handshake") > 0


def test_a_new_certificate_while_a_client_is_connected(
    secured_cluster: KafkaCluster, security: Security, unique_name: UniqueName, tmp_path: Path
) -> None:
    topic = unique_name("orders")
    create_topics(secured_cluster, topic)
    given = Sides(security, tmp_path, "client")

    def shown() -> str:
        host, port = proxy.bootstrap_servers.split(":")
        return ssl.get_server_certificate((host, int(port)))

    with given.proxy(secured_cluster) as proxy:
        producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, **given.librdkafka()})
        produce(producer, topic, VALUES)
        before = shown()
        new = security.issue(tmp_path, "new", "127.0.0.1")
        new.certificate.rename(given.server.certificate)
        new.key.rename(given.server.key)
        eventually(lambda: shown() != before, 10, "the new certificate")
        produce(producer, topic, VALUES)
        assert proxy.metric("certificates_last_reload_successful") == 1
        proxy.expected_errors.add("tls_refused")  # between the two renames
    assert records_in(secured_cluster, topic) == 100


@pytest.mark.claim("limits", "a broker whose TLS handshake takes 7 s; how long each address has")
@pytest.mark.nightly  # it waits for as long as the handshake takes
@pytest.mark.timeout(200)
async def test_a_broker_whose_handshake_takes_seven_seconds(
    secured_cluster: KafkaCluster, security: Security, unique_name: UniqueName, tmp_path: Path
) -> None:
    """As at a broker on a busy machine: its client waits for it, as without the proxy, and sees no error."""
    topic = unique_name("slow")
    create_topics(secured_cluster, topic)
    given = Sides(security, tmp_path, "broker")
    address = secured_cluster.secure_addresses("SSL")
    errors: list[str] = []
    with DelayingRelay() as relay:
        host, port = relay.advertise(1, int(address.rpartition(":")[2]))
        with ProxyProcess(f"{host}:{port}", *given.flags) as proxy:
            eventually(lambda: proxy.get("/readyz")[0] == 200, 30, "the proxy has probed the broker")
            eventually(lambda: not relay.connections, 60, "the probe is over")
            relay.delay_seconds = HANDSHAKE_SECONDS
            settings = {"bootstrap.servers": proxy.bootstrap_servers, "error_cb": lambda e: errors.append(str(e))}
            producer = Producer(settings)
            eventually(lambda: relay.delayed, 30, "the handshake has begun")
            relay.delay_seconds = 0
            produce(producer, topic, VALUES)
            assert relay.delayed == 1
            for reason in ("tls_failed", "connect_timeout"):
                assert proxy.metric("upstream_errors_total", reason=reason) == 0
    assert errors == []
    assert records_in(secured_cluster, topic) == len(VALUES)
