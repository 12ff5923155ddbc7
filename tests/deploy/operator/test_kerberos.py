"""Kerberos with a real KDC (MIT): logins of clients pass through, and the name in them counts for nothing."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from deploy.local import leash
from deploy.local.cluster import KafkaCluster
from deploy.local.security import Security
from tests.conftest import UniqueName
from tests.deploy.operator.cache import run, system_tool
from tests.integration.java_tools import perf_producer
from tests.integration.librdkafka import records_in
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.topics import create_topics

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(400)]

KRB5: Final = """
[libdefaults]
 default_realm = TEST
 udp_preference_limit = 1
 dns_canonicalize_hostname = false
 rdns = false
[realms]
 TEST = {{
  kdc = 127.0.0.1:{port}
 }}
"""
KDC: Final = """
[logging]
 kdc = FILE:{folder}/kdc.log
[realms]
 TEST = {{
  kdc_listen = 127.0.0.1:{port}
  kdc_tcp_listen = 127.0.0.1:{port}
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
  supported_enctypes = aes256-cts:normal
 }}
"""
RECORDS, SIZE, RATE = 200, 10_000, 200_000
#: Sessions of the SASL_SSL listener: shorter than the run.
SESSION_MS = 5_000


def answers(port: int) -> bool:
    with closing(socket.socket()) as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with krb5.conf and the keytabs of the service `kafka` on localhost and of the user `alice`."""
    folder = tmp_path_factory.mktemp("realm")
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    (folder / "krb5.conf").write_text(KRB5.format(port=port))
    (folder / "kdc.conf").write_text(KDC.format(port=port, folder=folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KRB5_CONFIG", f"{folder}/krb5.conf")
        patch.setenv("KRB5_KDC_PROFILE", f"{folder}/kdc.conf")
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.krb5.conf={folder}/krb5.conf")
        run(system_tool("kdb5_util"), "create", "-s", "-r", "TEST", "-P", "master")
        for principal, keytab in (("kafka/localhost", "kafka"), ("alice", "alice")):
            for query in (f"addprinc -randkey {principal}", f"ktadd -k {folder}/{keytab}.keytab {principal}"):
                run(system_tool("kadmin.local"), "-r", "TEST", "-q", query)
        scratch = folder / "scratch"
        scratch.mkdir()
        leashed = [sys.executable, "-I", "-S", leash.__file__, f"{os.getpid()}", str(scratch)]
        with subprocess.Popen([*leashed, system_tool("krb5kdc"), "-n"], start_new_session=True) as kdc:
            eventually(lambda: answers(port), 30, "the KDC")
            yield folder
            os.killpg(kdc.pid, 15)


def jaas(realm: Path, principal: str, keytab: str) -> str:
    module = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true"
    return f'{module} keyTab="{realm}/{keytab}.keytab" principal="{principal}@TEST";'


@pytest.fixture(scope="module")
def security() -> Security:
    return Security()


@pytest.fixture(scope="module")
def cluster(realm: Path, security: Security) -> Iterator[KafkaCluster]:
    listeners = ("sasl_plaintext", "sasl_ssl")
    entry = jaas(realm, "kafka/localhost", "kafka")
    overrides = {
        "sasl.enabled.mechanisms": "GSSAPI,PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.kerberos.service.name": "kafka",
        "listener.name.sasl_ssl.gssapi.connections.max.reauth.ms": f"{SESSION_MS}",
        **{f"listener.name.{each}.gssapi.sasl.jaas.config": entry for each in listeners},
    }
    with KafkaCluster(overrides=overrides, security=security) as running:
        yield running


def client_file(realm: Path, tmp_path: Path, *more: str) -> Path:
    file = tmp_path / "client.properties"
    entry = f"sasl.jaas.config={jaas(realm, 'alice', 'alice')}"
    file.write_text("\n".join(["sasl.mechanism=GSSAPI", "sasl.kerberos.service.name=kafka", entry, *more, ""]))
    return file


@pytest.mark.claim(
    "security",
    "a Kerberos login (Java, MIT KDC) passes through, also with TLS on both sides and when its "
    "session is renewed; the name in it is not used",
)
@pytest.mark.parametrize(
    ("listener", "principal", "user"), [("SASL_PLAINTEXT", None, "ANONYMOUS"), ("SASL_SSL", "etl", "etl")]
)
def test_logins_pass_through(
    realm: Path,
    cluster: KafkaCluster,
    security: Security,
    tmp_path: Path,
    unique_name: UniqueName,
    listener: str,
    principal: str | None,
    user: str,
) -> None:
    """With TLS: on both sides, and the client logs in again before its session ends."""
    topic, with_tls = unique_name("orders"), listener == "SASL_SSL"
    create_topics(cluster, topic)
    ca = security.write_ca(tmp_path / "ca.pem")
    to_broker = tmp_path / "proxy.properties"
    to_broker.write_text(f"security.protocol={listener}\n" + (f"ssl.truststore.location={ca}\n" if with_tls else ""))
    flags = ["--command-config", str(to_broker), "--advertised-host", "localhost"]
    flags += ["--quota", f"user=<default>,producer_byte_rate={RATE},burst_seconds=0.1"]
    flags += ["--principal", principal] if principal else []
    more = [f"security.protocol={listener}"]
    if with_tls:
        server = security.issue(tmp_path, "proxy", "localhost")
        flags += ["--ssl-certificate-location", str(server.certificate), "--ssl-key-location", str(server.key)]
        more += ["ssl.truststore.type=PEM", f"ssl.truststore.location={ca}"]
    file = client_file(realm, tmp_path, *more)
    with ProxyProcess(cluster.secure_addresses(listener), *flags) as proxy:
        bootstrap = proxy.bootstrap_servers.replace("127.0.0.1", "localhost")
        settings = ("client.id=k", "batch.size=1", "max.in.flight.requests.per.connection=1")
        done = perf_producer(bootstrap, topic, *settings, records=RECORDS, size=SIZE, file=file)
        assert done.returncode == 0, done.stderr[-2000:]
        assert proxy.metric("bytes_total", user=user) > RECORDS * SIZE
        assert proxy.metric("bytes_total", user="alice") == proxy.metric("bytes_total", user="alice@TEST") == 0
        assert proxy.metric("throttled_total", user=user) > 0
        assert proxy.metric("requests_total", api="SaslHandshake") > (2 if with_tls else 1)
        said = [each["mechanism"] for each in proxy.events if each["event"] == "sasl_name_unknown"]
        assert said == ([] if principal else ["GSSAPI"]), "once, and not where --principal names all"
    assert records_in(cluster, topic) == RECORDS


@pytest.mark.claim("security", "a client of Kerberos whose host has no service principal is refused by the KDC")
def test_a_host_without_a_service_principal(realm: Path, cluster: KafkaCluster, tmp_path: Path) -> None:
    """Why `--advertised-host` must be the host of the brokers' principal: Java gets no ticket, and disconnects."""
    to_broker = tmp_path / "proxy.properties"
    to_broker.write_text("security.protocol=SASL_PLAINTEXT\n")
    file = client_file(realm, tmp_path, "security.protocol=SASL_PLAINTEXT")
    flags = ("--command-config", str(to_broker), "--listen", "127.0.0.9:0")
    with ProxyProcess(cluster.secure_addresses("SASL_PLAINTEXT"), *flags) as proxy:
        done = perf_producer(proxy.bootstrap_servers, "orders", records=1, size=1, file=file)
        assert proxy.metric("requests_total", api="SaslAuthenticate") == 0
    assert "terminated during authentication" in done.stderr
    said = (realm / "kdc.log").read_text()
    assert re.search("kafka/127.0.0.9@TEST, Server not found in Kerberos database", said), said[-2000:]
