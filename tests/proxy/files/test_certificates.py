"""Files of certificates and keys as operators have them: what counts, what is a warning, what is refused."""

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import CertificateBuilder, load_pem_x509_certificate

from proxy.config.client_settings import Pem, SslSettings
from proxy.config.config import Config, ListeningOptions, ServerSsl
from proxy.config.errors import ConfigError
from proxy.files.tls import TlsContexts, context_to_brokers
from proxy.observability.metrics import Metrics
from tests.proxy.conversation import OpenStage
from tests.proxy.tls_peer import Certificates, TlsPeer

pytestmark = pytest.mark.claim(
    "security",
    "of the listener's certificates only those count that clients verify; the others, and one "
    "that will soon expire, are warnings; files in another format or order are refused with the "
    "command or the order that is right",
)

#: As `openssl ecparam -genkey` writes them before the key.
EC_PARAMETERS = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def chain(*issued: trustme.LeafCert | trustme.CA) -> bytes:
    """Of leaves and authorities, as a file."""
    return b"".join(
        each.cert_pem.bytes() if isinstance(each, trustme.CA) else each.cert_chain_pems[0].bytes() for each in issued
    )


def cross(authority: trustme.CA, old: trustme.CA, days: int) -> bytes:
    """A certificate for the name and the key of an authority, issued by another one, that expires in so many days."""
    of = load_pem_x509_certificate(authority.cert_pem.bytes())
    builder = CertificateBuilder(
        issuer_name=load_pem_x509_certificate(old.cert_pem.bytes()).subject,
        subject_name=of.subject,
        public_key=of.public_key(),
        serial_number=4_711,
        not_valid_before=datetime.now(UTC) - timedelta(100),
        not_valid_after=datetime.now(UTC) + timedelta(days),
        extensions=list(of.extensions),
    )
    return builder.sign(old._private_key, SHA256()).public_bytes(Encoding.PEM)


def write_chain(certificates: Certificates, text: bytes, leaf: trustme.LeafCert) -> ListeningOptions:
    certificates.server.certificate.write_bytes(text)
    certificates.server.key.write_bytes(leaf.private_key_pem.bytes())
    return certificates.listening()


def made(listening: ListeningOptions) -> tuple[Metrics, list[dict[str, object]]]:
    """What a start makes of the files: metrics, and warnings."""
    config = Config(listening=listening)
    metrics = Metrics()
    return metrics, [{"event": event} | fields for event, fields in TlsContexts(config, metrics).cautions]


def _ordered(order: str, leaf: bytes, issuer: bytes, cross: bytes) -> tuple[bytes, int]:
    """The parts in this order, and the number of the cross certificate among them."""
    parts = [{"leaf": leaf, "issuer": issuer, "cross": cross}[each] for each in order.split()]
    return b"".join(parts), parts.index(cross) + 1


@pytest.mark.parametrize(
    "order", ["leaf issuer cross", "leaf cross issuer", "leaf cross", "leaf leaf issuer issuer cross"]
)
async def test_an_expired_one_may_be_a_warning(open_stage: OpenStage, certificates: Certificates, order: str) -> None:
    """OpenSSL and Java accept such files. Alerts ring only if it is the one issuer in the file."""
    authority = certificates.security._ca
    leaf = authority.issue_cert("127.0.0.1", not_after=datetime.now(UTC) + timedelta(50))
    text, number = _ordered(order, chain(leaf), chain(authority), cross(authority, trustme.CA(), -1))
    listening = write_chain(certificates, text, leaf)
    await TlsPeer(await open_stage(listening=listening).client(), certificates.of_client()).handshake()
    metrics, [warning] = made(listening)
    assert warning["event"] == "certificate_expired"
    assert str(warning["effect"]).startswith(f"certificate {number} of the file, ")
    days = (metrics.certificates["clients"] - datetime.now(UTC).timestamp()) / 86_400
    assert days == pytest.approx(-1 if order == "leaf cross" else 50, abs=0.5)


async def test_of_the_certificates_that_clients_verify_the_first_end_counts(certificates: Certificates) -> None:
    authority = certificates.security._ca
    leaf, other = (authority.issue_cert("127.0.0.1", not_after=datetime.now(UTC) + timedelta(at)) for at in (50, 40))
    issuer = cross(authority, trustme.CA(), 30)
    for text, days in ((chain(leaf), 50), (chain(leaf, other), 50), (chain(leaf) + issuer, 30)):
        metrics, warnings = made(write_chain(certificates, text, leaf))
        end = (datetime.now(UTC) + timedelta(days)).timestamp()
        assert metrics.certificates["clients"] == pytest.approx(end, abs=60)
        assert warnings == []


@pytest.mark.parametrize(
    ("begins", "ends", "event"),
    [
        (-30, 2, "certificate_expires"),
        (-0.01, 2, "certificate_expires"),
        (-0.5, 0.5, None),
        (-30, 8, None),
        (0.01, 90, "certificate_unusable"),
    ],
)
def test_warnings_of_certificates(certificates: Certificates, begins: float, ends: float, event: str | None) -> None:
    """Not of one that lives for a day: a program replaces it. A clock that is wrong keeps no proxy from starting."""
    at = [datetime.now(UTC) + timedelta(days) for days in (begins, ends)]
    leaf = certificates.security._ca.issue_cert("127.0.0.1", not_before=at[0], not_after=at[1])
    _, warnings = made(write_chain(certificates, chain(leaf), leaf))
    assert [each["event"] for each in warnings] == ([] if event is None else [event])


@pytest.mark.parametrize(
    "change",
    [
        lambda key, text: b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n") + key,
        lambda key, text: key + text,
        lambda key, text: EC_PARAMETERS + key + text,
        lambda key, text: "Certificate:\n    Issuer: CN=Büro, ENCRYPTED\n".encode() + text + b"\n# and\n\n" + key,
    ],
    ids=["Windows", "key first", "EC parameters", "text"],
)
def test_files_as_tools_write_them(certificates: Certificates, change: Callable[[bytes, bytes], bytes]) -> None:
    leaf = certificates.security._ca.issue_cert("127.0.0.1")
    text = change(leaf.private_key_pem.bytes(), chain(leaf, certificates.security._ca))
    certificates.server.both.write_bytes(text)
    server = ServerSsl(certificate=certificates.server.both, key=certificates.server.both, ca=certificates.ca)
    assert made(ListeningOptions(address=("127.0.0.1", 0), ssl=server))[1] == []


def test_authorities_that_have_expired_or_come_twice_and_comments(certificates: Certificates) -> None:
    """As in one file that serves for years: the good ones count."""
    authority = certificates.security._ca
    text = "# Büro\nsubject=CN=x\n".encode() + cross(authority, trustme.CA(), -1) + 2 * chain(authority)
    assert len(context_to_brokers(SslSettings(ca=Pem(text.decode(), "ca.pem"))).get_ca_certs()) == 2


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("openssl x509 -in server.crt -outform DER -out wrong", "openssl x509 -inform DER -in {0} -out wrong.pem"),
        (
            "openssl pkcs12 -export -in server.crt -inkey server.key -passout pass:x -out wrong",
            "openssl pkcs12 -in {0} -nodes -out wrong.pem",
        ),
        ("openssl base64 -in server.crt -out wrong", "it is PEM in base64: base64 -d {0} > wrong.pem"),
        ("cp server.key wrong", "it contains a private key: were the files of certificate and key swapped?"),
    ],
)
def test_a_file_that_is_no_certificate_in_pem(certificates: Certificates, command: str, hint: str) -> None:
    subprocess.run(command.split(), cwd=certificates.directory, check=True)
    wrong = certificates.directory / "wrong"
    with pytest.raises(ConfigError) as refused:
        made(ListeningOptions(ssl=ServerSsl(certificate=wrong, key=certificates.server.key)))
    (problem,) = refused.value.problems
    assert (problem.place, problem.message) == (str(wrong), "contains no whole certificate in PEM format")
    assert (problem.hint or "").removeprefix("convert it: ") == hint.format(wrong)


def test_a_chain_in_another_order_names_the_certificate_of_the_key(certificates: Certificates) -> None:
    authority = certificates.security._ca
    leaf = authority.issue_cert("127.0.0.1")
    with pytest.raises(
        ConfigError, match=r"the key belongs to certificate 2 of the file, .*\n.*put that certificate first"
    ):
        made(write_chain(certificates, chain(authority, leaf), leaf))
