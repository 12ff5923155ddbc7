"""What a file of certificates or keys contains: which certificates clients verify, and what is wrong with the file."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from proxy.config.addresses import server_name
from proxy.config.client_settings import Pem
from proxy.config.config import ListeningOptions
from proxy.config.errors import ConfigError
from proxy.config.values import INT32_MAX, NODE
from quotas.problems import Problem

CERTIFICATE, KEY = "certificate", "private key"
_CERTIFICATES: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_MARK: Final = re.compile(r"\s*(-----(?:BEGIN|END) [A-Z0-9 ]+-----)\s*")
_WHOLE: Final = {
    CERTIFICATE: _CERTIFICATES,
    KEY: re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.+?-----END \1-----", re.DOTALL),
}
#: The first bytes of a Java keystore, and of PKCS12: version 3 of a sequence.
_JKS, _PKCS12 = "\ufffd" * 4, "\x02\x01\x03"
_CONVERT: Final = {
    CERTIFICATE: "openssl x509 -inform DER -in {0} -out {1}.pem",
    KEY: "openssl pkey -inform DER -in {0} -out {1}.pem",
    _PKCS12: "openssl pkcs12 -in {0} -nodes -out {1}.pem",
    _JKS: "keytool -importkeystore -srckeystore {0} -destkeystore {1}.p12 -deststoretype PKCS12 && "
    "openssl pkcs12 -in {1}.p12 -nodes -out {1}.pem",
}
DAY_SECONDS: Final = 86_400
#: The warning about a certificate starts this long before it expires, unless its lifetime is about a day or less:
#: programs replace such certificates often.
SOON_SECONDS: Final = 7 * DAY_SECONDS
SHORT_LIVED_SECONDS: Final = 1.5 * DAY_SECONDS

Caution = tuple[str, dict[str, object]]


def ders_of(pem: Pem) -> list[bytes]:
    """Its certificates, in order."""
    return list(map(ssl.PEM_cert_to_DER_cert, _CERTIFICATES.findall(pem.text)))


def in_lines(pem: str) -> str:
    """The text the way OpenSSL needs it, with each mark on a line of its own. Java accepts marks anywhere: indented, or
    after `cat` of a file without a newline at its end.
    """
    return "\n".join(line.strip() for line in _MARK.sub(r"\n\1\n", pem).splitlines())


@contextmanager
def refusing(pem: Pem, content: str, message: str) -> Iterator[None]:
    """Turn errors of OpenSSL into a ConfigError. A text without such content is an error too."""
    if not _WHOLE[content].search(pem.text):
        text = f"contains no whole {content} in PEM format"
        raise ConfigError((Problem(pem.place, text, _hint_of(pem, content)),))
    try:
        yield
    except ssl.SSLError as error:
        raise ConfigError((Problem(pem.place, message, f"OpenSSL: {words(error)}"),)) from error
    except ValueError as error:
        raise ConfigError((Problem(pem.place, f"has a {content} that cannot be read"),)) from error


def _hint_of(pem: Pem, content: str) -> str | None:
    """A hint about what the file contains instead."""
    other = KEY if content == CERTIFICATE else CERTIFICATE
    if _WHOLE[other].search(pem.text):
        return f"it contains a {other}: were the files of certificate and key swapped?"
    if "-----BEGIN" in pem.text or not pem.text:
        return None
    if pem.text.startswith("LS0tLS1C"):  # as in a Secret of Kubernetes
        return f"it is PEM in base64: base64 -d {pem.place} > {Path(pem.place).stem}.pem"
    kind = _JKS if pem.text.startswith(_JKS) else _PKCS12 if _PKCS12 in pem.text[:12] else content
    return "convert it: " + _CONVERT[kind].format(pem.place, Path(pem.place).stem)


def words(error: ssl.SSLError) -> str:
    """The words of OpenSSL: `tlsv1 alert unknown ca` is what the other side sent."""
    return (error.reason or error.strerror or str(error)).replace("_", " ").lower()


def _path(ders: Sequence[bytes], now: float) -> list[bytes]:
    """The certificates that clients verify: the first one, then the issuer of each. If several have the issuer's name,
    as a root and a cross certificate do, clients need only one: the one that is valid for longest.
    """
    from protocol.principal_rules import issued, validity  # 5 MB, if there are certificates

    path, rest = [ders[0]], list(ders[1:])
    while True:
        issuers = [each for each in rest if each != path[-1] and issued(each, path[-1])]
        if not issuers:
            return path
        path.append(max(issuers, key=lambda each: (validity(each)[0] <= now, validity(each)[1])))
        rest.remove(path[-1])


def not_after(certificate: Pem) -> int:
    """When clients stop accepting a chain, in seconds since 1970: when the first of the certificates that they verify
    expires.

    An expired certificate above the issuer of the first does not count: clients that trust a certificate below it, as
    most do if it is a cross certificate, never check it.
    """
    from protocol.principal_rules import validity

    now = _now()
    ends = [validity(each)[1] for each in _path(ders_of(certificate), now)]
    return min([*ends[:2], *(end for end in ends[2:] if end > now)])


def cautions_of(certificate: Pem) -> list[Caution]:
    """The warnings about a chain that clients accept now: it expires soon, or some clients may need a certificate that
    has expired.
    """
    from protocol.principal_rules import distinguished_name, validity

    now, ders, place = _now(), ders_of(certificate), certificate.place
    found = list[Caution]()
    begins, ends = validity(ders[0])
    chain_ends = not_after(certificate)
    if ends - begins > SHORT_LIVED_SECONDS and now < chain_ends < now + SOON_SECONDS:
        effect = f"its chain expires at {_date(chain_ends)} UTC; clients refuse new connections then"
        hint = "replace the file: it is read again without a restart"
        found.append(("certificate_expires", {"file": place, "effect": effect, "hint": hint}))
    if begins > now:
        effect = f"the certificate is not valid before {_date(begins)} UTC; clients refuse it until then"
        found.append(("certificate_unusable", {"file": place, "effect": effect, "hint": "is the clock right here?"}))
    for number, each in enumerate(ders[1:], 2):
        if validity(each)[1] < now:
            effect = (
                f"certificate {number} of the file, {distinguished_name(each)}, expired at {_date(validity(each)[1])}"
            )
            hint = "clients that trust no other issuer refuse the connection: remove this certificate, or get a new one"
            found.append(("certificate_expired", {"file": place, "effect": f"{effect} UTC", "hint": hint}))
    return found


def as_clients_see(certificate: Pem, listening: ListeningOptions) -> tuple[str, tuple[Problem, ...]]:
    """The certificate of the listener in words, and why clients would not accept it for the hosts in responses."""
    from protocol.principal_rules import as_seen_at, distinguished_name, validity

    der = ders_of(certificate)[0]
    host, only = listening.host_of(NODE), ""
    hosts, fits = as_seen_at(server_name(listening.host_of(INT32_MAX)), der)
    if not fits and any(
        map(re.compile(re.escape(host).replace(re.escape(NODE), "[0-9]+"), re.IGNORECASE).fullmatch, hosts)
    ):
        fits, only = True, "; no other broker"
    names, ends, faults = ", ".join(hosts), validity(der)[1], list[Problem]()
    if ends < _now():
        message = f"the certificate expired at {_date(ends)} UTC"
        faults.append(Problem(certificate.place, message, "clients refuse it: get a new one"))
    if not fits:
        hint = "clients verify it: set --advertised-host to a name in the certificate, or get one for that host"
        flag = "--advertised-host"
        if listening.sni_host is not None:
            flag, hint = "--sni-host", f"clients verify the name: get a certificate for *.{host.partition('.')[2]}"
        message = f"the certificate is for {names}, not for {host}, which responses name ({flag})"
        faults.append(Problem(certificate.place, message, hint))
    return f"{distinguished_name(der)} for {names}{only}, until {_date(not_after(certificate))[:10]}", tuple(faults)


def _now() -> float:
    return datetime.now(UTC).timestamp()


def _date(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
