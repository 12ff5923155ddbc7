"""Contexts of TLS: what is made of files and texts, what is refused in which words, and changes of files."""

import asyncio
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy.admin.exposition import families
from proxy.brokers.readiness import Readiness
from proxy.commands import main
from proxy.config.client_file import read_client_settings
from proxy.config.client_settings import Pem, SslSettings
from proxy.config.config import ServerSsl
from proxy.config.errors import ConfigError
from proxy.tls import context_from_clients, context_to_brokers, read_pem
from tests.proxy.conversation import OpenStage, Stage, lines_of
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
    await client.send(heartbeat(1))
    assert await broker.frame() == heartbeat(1)
    await broker.send(heartbeat_answer(1))
    assert await client.frame() == heartbeat_answer(1)
    refused = [fields["message"] for name, fields in lines_of(caplog.records) if name == "tls_refused"]
    assert refused == ["is not the key of this certificate", "cannot be read: No such file or directory"]
    expiry = {
        sample.labels["side"]
        for each in families(stage.metrics)
        for sample in each.samples
        if sample.name == "kafka_quota_proxy_certificate_not_after_timestamp_seconds"
    }
    assert expiry == {"clients"}


async def test_of_a_chain_the_certificate_that_expires_first_counts(
    open_stage: OpenStage, certificates: Certificates
) -> None:
    issue, soon = certificates.security._ca.issue_cert, datetime.now(UTC).replace(microsecond=0) + timedelta(5)
    leaf, other = issue("127.0.0.1"), issue("other.test", not_after=soon)
    for issued in ((leaf, other), (other, leaf)):
        certificates.server.certificate.write_bytes(b"".join(each.cert_chain_pems[0].bytes() for each in issued))
        certificates.server.key.write_bytes(issued[0].private_key_pem.bytes())
        stage = open_stage(listening=certificates.listening())
        assert stage.metrics.certificates == {"clients": int(soon.timestamp())}


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


# ---- what is made of files


def test_text_and_an_encrypted_key(certificates: Certificates) -> None:
    key = subprocess.run(
        ["openssl", "pkey", "-in", certificates.server.key, "-aes256", "-passout", "pass:secret"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    certificate, ca = read_pem(certificates.server.certificate), read_pem(certificates.ca)
    ca = Pem(f"# Főtanúsítvány\n{ca.text}")
    settings = {"certificate": certificate, "key": Pem(key), "ca": ca}
    context = context_to_brokers(SslSettings(**settings, key_password="secret"))  # type: ignore[arg-type]
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    for password in ("", "wrong"):
        with pytest.raises(
            ConfigError, match="is encrypted, and no password of the client file decrypts it"
        ) as refused:
            context_to_brokers(SslSettings(**settings, key_password=password))  # type: ignore[arg-type]
        assert "secret" not in str(refused.value)


def test_versions(certificates: Certificates) -> None:
    context = context_to_brokers(SslSettings(ca=read_pem(certificates.ca), protocols=("TLSv1.2",)))
    assert context.maximum_version is ssl.TLSVersion.TLSv1_2


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


def test_check_config_reads_certificates(tmp_path: Path) -> None:
    file = tmp_path / "proxy.toml"
    file.write_text(f'bootstrap_servers = "broker:9092"\nssl_certificate_location = "{tmp_path}/missing.pem"\n')
    done = CliRunner().invoke(main, ["check-config", str(file)])
    assert (done.exit_code, "missing.pem: cannot be read" in done.output) == (2, True)


def test_a_proxy_without_certificates_and_login_loads_no_libraries_for_them() -> None:
    """They are 5 MB in each process."""
    code = """
import sys, proxy.server
from proxy.commands import run
run.make_context("run", ["--bootstrap-servers=broker:9092"])
print({"asn1crypto", "scramp"} & set(sys.modules))"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
