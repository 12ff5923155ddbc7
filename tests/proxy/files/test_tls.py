"""Contexts of TLS: what is made of files and texts, what is refused in which words, and changes of files."""

import asyncio
import ssl
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from proxy.admin.exposition import families
from proxy.brokers.readiness import Readiness
from proxy.command.commands import main
from proxy.config.client_file import read_client_settings
from proxy.config.client_settings import Pem, SslSettings
from proxy.config.config import Config, ListeningOptions, ServerSsl
from proxy.config.errors import ConfigError
from proxy.files.tls import TlsContexts, context_from_clients, context_to_brokers, read_pem
from proxy.observability.metrics import Metrics
from tests.proxy.conversation import OpenStage, Stage, exchange, lines_of, until
from tests.proxy.frames import heartbeat, heartbeat_answer
from tests.proxy.tls_peer import Certificates, TlsPeer


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


async def connected(stage: Stage, certificates: Certificates) -> tuple[TlsPeer, bytes]:
    """A client, and the certificate that it was shown."""
    client = TlsPeer(await stage.client(), certificates.of_client())
    await client.handshake()
    shown = client.tls.getpeercert(binary_form=True)
    assert shown is not None
    return client, shown


def write_server(certificates: Certificates) -> None:
    """A new certificate and key, each written beside its file and renamed."""
    beside = certificates.issue("beside", "127.0.0.1")
    beside.certificate.rename(certificates.server.certificate)
    beside.key.rename(certificates.server.key)


@pytest.mark.claim("security", "a certificate that cannot be used, or a file that is half written, changes nothing")
async def test_files_that_are_renamed(
    open_stage: OpenStage, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """The next connection has the new certificate, the old one goes on; files that do not fit change nothing."""
    stage = open_stage(listening=certificates.listening())
    contexts = stage.server.tls
    assert not await contexts.poll()
    client, first = await connected(stage, certificates)
    broker = await stage.broker.accept()
    write_server(certificates)
    assert await contexts.poll()
    assert not await contexts.poll()
    _, second = await connected(stage, certificates)
    assert first != second
    certificates.issue("beside", "127.0.0.1").key.rename(certificates.server.key)
    assert not await contexts.poll()
    assert (stage.metrics.reload_ok["tls"], (await connected(stage, certificates))[1]) == (False, second)
    certificates.server.certificate.unlink()
    assert not await contexts.poll()
    write_server(certificates)
    assert await contexts.poll()
    assert stage.metrics.reload_ok["tls"]
    assert (await connected(stage, certificates))[1] not in (first, second)
    await exchange(client, broker, heartbeat(1), heartbeat_answer(1))
    refused = [fields["message"] for name, fields in lines_of(caplog.records) if name == "tls_refused"]
    assert refused == ["is not the key of this certificate", "cannot be read: No such file or directory"]
    samples = [sample for each in families(stage.metrics) for sample in each.samples]
    assert {each.labels["side"] for each in samples if "certificate_not_after" in each.name} == {"clients"}


async def test_the_links_of_kubernetes(open_stage: OpenStage, certificates: Certificates, tmp_path: Path) -> None:
    """A Secret's files are links into `..data`, itself a link, which is replaced."""
    for number in (1, 2):
        folder = tmp_path / f"..{number}"
        folder.mkdir()
        issued = certificates.issue("server", "127.0.0.1")
        for path in (issued.certificate, issued.key):
            path.rename(folder / path.name)
    data, new = tmp_path / "..data", tmp_path / "..data_tmp"
    data.symlink_to("..1")
    for path in (certificates.server.certificate, certificates.server.key):
        path.symlink_to(f"..data/{path.name}")
    stage = open_stage(listening=certificates.listening())
    _, first = await connected(stage, certificates)
    new.symlink_to("..2")
    new.rename(data)
    assert await stage.server.tls.poll()
    assert (await connected(stage, certificates))[1] != first


async def test_settings_of_brokers_that_name_other_files(open_stage: OpenStage, certificates: Certificates) -> None:
    """The client file is read again with its certificates, and other files that it names are watched then."""
    file = certificates.directory / "client.properties"
    text = f"security.protocol=SSL\nssl.ca.location={certificates.ca}\nssl.keystore.location="
    one, other = (certificates.issue(name).both for name in ("one", "other"))
    file.write_text(f"{text}{one}")
    contexts = open_stage(upstream=read_client_settings(file)).server.tls
    before = contexts.to_brokers
    file.write_text(f"{text}{other}")
    assert await contexts.poll()
    assert contexts.to_brokers is not before
    await contexts.poll()
    assert not await contexts.poll()
    certificates.issue("other")
    assert await contexts.poll()


@pytest.mark.claim(
    "security",
    "a broker's name may end with a dot, in upper case, or be an IPv6 address with a zone: what "
    "is sent and verified is the name in certificates",
)
@pytest.mark.parametrize(
    ("host", "of_certificate", "sent"),
    [
        ("kafka.example.com.", "kafka.example.com", "kafka.example.com"),
        ("Kafka.Example.COM", "kafka.example.com", "kafka.example.com"),
        ("b-1.kafka.example.com.", "*.kafka.example.com", "b-1.kafka.example.com"),
        ("B\u00fccher.example.", "b\u00fccher.example", "xn--bcher-kva.example"),
        ("127.0.0.1", "127.0.0.1", None),
        ("::ffff:127.0.0.1", "127.0.0.1", None),
        ("::1", "::1", None),
        ("fe80::1%eth0", "fe80::1", None),
    ],
)
def test_the_verified_name(certificates: Certificates, host: str, of_certificate: str, sent: str | None) -> None:
    """Also with what only a resolver needs, as Java and librdkafka connect. Addresses are no server names."""
    settings = certificates.upstream().ssl
    assert settings is not None
    names: list[str | None] = []
    at_broker = certificates.of_server(certificates.issue("broker", of_certificate))
    at_broker.sni_callback = lambda _, name, __: names.append(name)
    to_broker, from_broker = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        context_to_brokers(settings).wrap_bio(from_broker, to_broker, server_hostname=host),
        at_broker.wrap_bio(to_broker, from_broker, server_side=True),
    )
    for _ in range(2):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    assert names == [sent]
    assert ends[0].version() == "TLSv1.3"
    assert ends[0].getpeercert()


async def test_readiness_over_tls(open_stage: OpenStage, certificates: Certificates) -> None:
    stage = open_stage(upstream=certificates.upstream())
    ready = Readiness([stage.broker.address], stage.server.tls, stage.shared.health, stage.clock)
    checked = asyncio.ensure_future(ready.check())
    stranger = Certificates(certificates.directory)
    broker = TlsPeer(await stage.broker.accept(), stranger.of_server(), None)
    with pytest.raises(ssl.SSLError):
        await broker.handshake()
    await checked
    await ready._probe  # type: ignore[misc]
    status = await ready.check()
    assert (status.ok, "ssl.truststore.location" in status.reason) == (False, True)


def encrypted(key: Path) -> str:
    command = ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:secret"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


# ---- what is made of files
def test_text_and_an_encrypted_key(certificates: Certificates) -> None:
    certificate, ca = read_pem(certificates.server.certificate), read_pem(certificates.ca)
    ca = Pem(f"# Főtanúsítvány\n{ca.text}")
    settings: Any = {"certificate": certificate, "key": Pem(encrypted(certificates.server.key)), "ca": ca}
    context = context_to_brokers(SslSettings(**settings, key_password="secret"))
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    context = context_to_brokers(SslSettings(ca=ca, protocols=("TLSv1.2",)))
    assert context.maximum_version is ssl.TLSVersion.TLSv1_2
    for password in ("", "wrong"):
        with pytest.raises(ConfigError, match="encrypted, and no password in the client file decrypts it") as refused:
            context_to_brokers(SslSettings(**settings, key_password=password))
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "written",
    [
        lambda text: text.rstrip(),
        lambda text: "".join(f"  {line}\n" for line in text.splitlines()),
        lambda text: text.replace("\n", "\r"),
        lambda text: text.replace("\n", " "),
    ],
    ids=["without a newline at its end", "indented", "carriage returns", "one line"],
)
def test_files_that_were_put_together_by_hand(certificates: Certificates, written: Callable[[str], str]) -> None:
    """As by `cat` and in YAML: OpenSSL alone would not find the certificate after another one, nor an indented one."""
    server, ca = certificates.server, written(certificates.ca.read_text())
    chain = Pem(written(server.certificate.read_text()) + ca)
    server.key.write_text(written(server.key.read_text()))
    options = ServerSsl(certificate=server.certificate, key=server.key, ca=certificates.ca)
    assert context_from_clients(options, chain)
    assert len(context_to_brokers(SslSettings(ca=Pem(ca + chain.text))).get_ca_certs(binary_form=True)) == 1


def test_a_listener_has_no_password_for_a_key(certificates: Certificates) -> None:
    key = certificates.server.key
    key.write_text(encrypted(key))
    says = f"{key}: is an encrypted key.*\n.*openssl pkey -in {key} -out server-plain.pem"
    with pytest.raises(ConfigError, match=says):
        context_from_clients(certificates.listening().ssl or ServerSsl(), read_pem(certificates.server.certificate))


def issue_for(certificates: Certificates, *hosts: str, days: int = 5) -> None:
    """Another certificate of the listener, valid for so many days."""
    issued = certificates.security._ca.issue_cert(*hosts, not_after=datetime.now(UTC) + timedelta(days))
    certificates.server.certificate.write_bytes(issued.cert_chain_pems[0].bytes())
    certificates.server.key.write_bytes(issued.private_key_pem.bytes())


@pytest.mark.parametrize(
    ("host", "days", "says"),
    [
        ("127.0.0.1", -1, r"server.crt: the certificate expired at 20"),
        ("proxy.test", 5, r"server.crt: the certificate is for proxy.test, not for 127.0.0.1, .*\n.*--advertised-host"),
        ("*.test", 5, "is for \\*.test, not for 127.0.0.1"),
    ],
)
async def test_a_certificate_that_no_client_would_accept(
    open_stage: OpenStage, certificates: Certificates, caplog: pytest.LogCaptureFixture, host: str, days: int, says: str
) -> None:
    """An error at the start; later a warning: other files must be read, and the one before is no better."""
    stage = open_stage(listening=certificates.listening())
    issue_for(certificates, host, days=days)
    with pytest.raises(ConfigError, match=says):
        TlsContexts(stage.server.config, stage.metrics)
    assert await stage.server.tls.poll()
    warnings = [fields for name, fields in lines_of(caplog.records) if name == "certificate_unusable"]
    assert [each["file"] for each in warnings] == [str(certificates.server.certificate)]


@pytest.mark.parametrize("host", ["proxy.test", "PROXY.test", "proxy.test.", "a.proxies.test", "10.0.0.7", "::1"])
def test_a_certificate_for_the_advertised_host(certificates: Certificates, host: str) -> None:
    issue_for(certificates, "proxy.test", "*.proxies.test", "10.0.0.7", "::1")
    config = Config(listening=replace(certificates.listening(), advertised_host=host))
    assert " for proxy.test, *.proxies.test, 10.0.0.7, ::1, until " in TlsContexts(config, Metrics()).shown


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["*.kafka.test"], "for *.kafka.test, until"),
        (["kafka.test", "*.KAFKA.test"], "for kafka.test, *."),
        (["broker-1.kafka.test", "broker-2.kafka.test"], "broker-2.kafka.test; no other broker, until"),
        (["kafka.test"], None),
        (["*.test"], None),
        (["broker-x.kafka.test"], None),
        (["broker-1.kafka.test.example.com"], None),
    ],
)
def test_a_certificate_for_all_brokers(certificates: Certificates, names: list[str], shown: str | None) -> None:
    server = certificates.issue("brokers", *names)
    options = ServerSsl(certificate=server.certificate, key=server.key)
    listening = ListeningOptions(sni_host="broker-{node}.kafka.test:443", broker_ports=range(0), ssl=options)
    config = Config(listening=listening)
    if shown is not None:
        assert shown in TlsContexts(config, Metrics()).shown
        return
    with pytest.raises(ConfigError) as refused:
        TlsContexts(config, Metrics())
    (problem,) = refused.value.problems
    assert problem.message.endswith("not for broker-{node}.kafka.test, which responses name (--sni-host)")
    assert problem.hint == "clients verify the name: get a certificate for *.kafka.test"


async def test_a_client_that_does_not_trust_the_listener_is_logged_with_its_certificate(
    open_stage: OpenStage, certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage(listening=certificates.listening())
    (tmp_path / "other").mkdir()
    client = TlsPeer(await stage.client(), Certificates(tmp_path / "other").of_client())
    with pytest.raises(ssl.SSLError):
        await client.handshake()
    await client._flush(())  # its alert
    client.peer.end()
    await until(lambda: any(name == "protocol_error" for name, _ in lines_of(caplog.records)))
    ((name, fields),) = lines_of(caplog.records)
    assert (name, fields["reason"]) == ("protocol_error", "tls_handshake")
    assert str(fields["certificate"]).partition(", until ")[0].endswith(" for 127.0.0.1")
    assert str(fields["hint"]).startswith("the client trusts another CA")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"certificate": "missing"}, "missing: cannot be read: No such file or directory"),
        ({"certificate": "junk"}, "junk: contains no whole certificate in PEM format"),
        ({"key": "junk"}, "junk: contains no whole private key in PEM format"),
        ({"certificate": "cut"}, "cut: contains no whole certificate in PEM format"),
        ({"certificate": "labelled"}, "labelled: contains no whole certificate in PEM format"),
        ({"certificate": "broken"}, "broken: has a certificate that cannot be read"),
        ({"key": "other.key"}, "other.key: is not the key of this certificate"),
        ({"ca": "junk"}, "junk: contains no whole certificate in PEM format"),
        ({"ca": "broken"}, "broken: cannot be used"),
    ],
)
def test_files_that_are_refused(certificates: Certificates, wrong: dict[str, str], message: str) -> None:
    folder = certificates.directory
    (folder / "junk").write_bytes(b"\xfe\xed\xfe\xed junk")
    (folder / "broken").write_text("-----BEGIN CERTIFICATE-----\nxyz\n-----END CERTIFICATE-----\n")
    certificates.issue("other")
    text = certificates.server.certificate.read_text()
    (folder / "cut").write_text(text[: text.index("-----END") - 200])
    (folder / "labelled").write_text(text.replace("CERTIFICATE", "X509 CERTIFICATE"))
    files = {"certificate": certificates.server.certificate, "key": certificates.server.key, "ca": certificates.ca}
    files |= {name: folder / file for name, file in wrong.items()}
    with pytest.raises(ConfigError, match=message):
        context_from_clients(ServerSsl(**files, client_auth="required"), read_pem(files["certificate"]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "option", "code", "says"),
    [
        ("127.0.0.1", 'advertised_host = "proxy.test"', 2, "is for 127.0.0.1, not for proxy.test"),
        ("broker-1.kafka.test", 'sni_host = "broker-{node}.kafka.test"', 0, "; no other broker, until "),
        (None, "", 2, "missing.pem: cannot be read"),
    ],
)
def test_check_config_reads_certificates(
    certificates: Certificates, tmp_path: Path, name: str | None, option: str, code: int, says: str
) -> None:
    location = tmp_path / "missing.pem" if name is None else certificates.issue("some", name).both
    file = tmp_path / "proxy.toml"
    file.write_text(f'bootstrap_servers = "broker:9092"\nssl_certificate_location = "{location}"\n{option}\n')
    done = CliRunner().invoke(main, ["check-config", str(file)])
    assert (done.exit_code, says in done.output) == (code, True)


def test_a_proxy_without_certificates_and_login_loads_no_libraries_for_them() -> None:
    """They are 5 MB in each process."""
    code = """
import sys, proxy.process.server
from proxy.command.commands import run
run.make_context("run", ["--bootstrap-servers=broker:9092"])
print({"asn1crypto", "scramp"} & set(sys.modules))"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
