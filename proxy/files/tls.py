"""TLS contexts made from files, and made again when a file changes: both sides or neither.

A new context serves the next connection; open connections keep theirs.
"""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from proxy.config.addresses import server_name
from proxy.config.client_file import read_client_settings
from proxy.config.client_settings import ClientSettings, Pem, SslSettings
from proxy.config.config import Config, ServerSsl
from proxy.config.errors import ConfigError
from proxy.config.files import read_text
from proxy.files.certificates import (
    CERTIFICATE,
    KEY,
    Caution,
    as_clients_see,
    cautions_of,
    ders_of,
    in_lines,
    not_after,
    refusing,
    words,
)
from proxy.files.file_watch import FileWatch, fingerprints
from proxy.observability.logs import EventLog
from proxy.observability.metrics import Metrics
from quotas.problems import Problem

#: Labels of the metric: the side that sees the certificate.
CLIENTS, BROKERS = "clients", "brokers"
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
#: OpenSSL's X509_V_ERR_… for a certificate that is not valid yet, has expired, or is for another host.
_VERIFY_REASONS: Final = {9: "tls_expired", 10: "tls_expired", 62: "tls_hostname", 64: "tls_hostname"}
#: PKCS8, and the older format.
_ENCRYPTED: Final = re.compile(r"BEGIN ENCRYPTED PRIVATE KEY|^Proc-Type: 4,ENCRYPTED", re.MULTILINE)
#: OpenSSL's words for a peer that does not speak TLS.
_PLAINTEXT: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "PACKET_LENGTH_TOO_LONG"})

_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class _Made:
    """The result of reading all files. `not_after`: when certificates expire, in seconds since 1970, by side. `shown`:
    the certificate that clients see, in words. `faults`: why they would not accept it. `cautions`: warnings.
    """

    upstream: ClientSettings
    to_brokers: ssl.SSLContext | None = None
    from_clients: ssl.SSLContext | None = None
    not_after: Mapping[str, int] = field(default_factory=dict)
    shown: str = ""
    faults: tuple[Problem, ...] = ()
    cautions: tuple[Caution, ...] = ()


class TlsContexts(FileWatch[_Made]):
    """The contexts for new connections. Raises ConfigError if the files of `config` cannot be used.

    to_brokers     None for plaintext; `from_clients` likewise
    upstream       the settings of connections to brokers, with passwords, as they were last read
    shown          the certificate that clients see, in words; "" if there is none
    cautions       warnings about the certificates that clients and brokers see

    A certificate that clients cannot accept is an error at startup and a warning later: it must not keep another file
    from being read, and the previous certificate is no better.
    """

    def __init__(self, config: Config, metrics: Metrics, clock: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__("tls", metrics, clock)
        self._server = config.listening.ssl
        self._listening = config.listening
        #: What was read last, even if it was refused.
        self._latest = config.upstream
        self._seen = fingerprints(self.paths())
        made = self._make(config.upstream)
        if made.faults:
            raise ConfigError(made.faults)
        self._use(made)

    def principal_of(self, certificate_der: bytes) -> str | None:
        """The user that a client's certificate names; None if its name cannot be read."""
        from protocol.principal_rules import distinguished_name, parse_rules  # 5 MB, if there are certificates

        assert self._server is not None  # noqa: S101 - for the type checker
        try:
            return parse_rules(self._server.principal_rules).principal_of(distinguished_name(certificate_der))
        except ValueError:
            return None

    def paths(self) -> tuple[Path | None, ...]:
        server = self._server
        return self._latest.files + (() if server is None else (server.certificate, server.key, server.ca))

    def read(self) -> _Made:
        file = self.upstream.file
        self._latest = self.upstream if file is None else read_client_settings(file, self.upstream)
        return self._make(self._latest)

    async def apply(self, found: _Made, *, is_requested: bool) -> bool:
        self._use(found)
        for fault in found.faults:
            _log.warning("certificate_unusable", file=fault.place, effect=fault.message, hint=fault.hint)
        _log.warn_of(found.cautions)
        expiry = ",".join(f"{side}={at}" for side, at in found.not_after.items())
        _log.info("tls_reloaded", not_after=expiry)
        return True

    def _use(self, made: _Made) -> None:
        self.upstream = made.upstream
        self.to_brokers = made.to_brokers
        self.from_clients = made.from_clients
        self.shown = made.shown
        self.cautions = made.cautions
        self._metrics.certificates = made.not_after

    def _make(self, upstream: ClientSettings) -> _Made:
        ends: dict[str, int] = {}
        from_clients = to_brokers = None
        shown, faults, cautions = "", tuple[Problem, ...](), list[Caution]()
        if self._server is not None:
            certificate = read_pem(self._server.certificate)
            from_clients = context_from_clients(self._server, certificate)
            ends[CLIENTS] = not_after(certificate)
            with refusing(certificate, CERTIFICATE, ""):
                shown, faults = as_clients_see(certificate, self._listening)
                cautions += cautions_of(certificate)
        if upstream.ssl is not None:
            to_brokers = context_to_brokers(upstream.ssl)
            if upstream.ssl.certificate is not None:
                ends[BROKERS] = not_after(upstream.ssl.certificate)
                cautions += cautions_of(upstream.ssl.certificate)
        return _Made(upstream, to_brokers, from_clients, ends, shown, faults, tuple(cautions))


def read_pem(path: Path) -> Pem:
    """The content of a file. Raises ConfigError."""
    return Pem(read_text(path, place=str(path), errors="replace"), str(path))


def context_from_clients(options: ServerSsl, certificate: Pem) -> ssl.SSLContext:
    """The context of connections from clients. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.sni_callback = _keep_server_name
    key = read_pem(options.key)
    if _ENCRYPTED.search(key.text):
        hint = f"decrypt it: openssl pkey -in {key.place} -out {options.key.stem}-plain.pem"
        raise ConfigError((Problem(key.place, "is an encrypted key, and the proxy has no password for it", hint),))
    _load_chain(context, certificate, key, "")
    if options.ca is not None:
        _load_ca(context, read_pem(options.ca))
    context.verify_mode = _CLIENT_AUTH[options.client_auth]
    return context


def _keep_server_name(tls: Any, server_name: str | None, _: ssl.SSLContext) -> None:
    """Python passes the name in a client's hello only to this callback. `TlsWire` reads it from the same object."""
    tls.server_name = server_name


class _ToBrokers(ssl.SSLContext):
    """Accepts the host of a broker as it is written, from the proxy's own wires, asyncio and aiokafka."""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        if isinstance(server_hostname, str):
            server_hostname = server_name(server_hostname)
        return super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def context_to_brokers(settings: SslSettings) -> ssl.SSLContext:
    """The context of connections to brokers. Raises ConfigError."""
    context = _ToBrokers(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_hostname
    versions = [ssl.TLSVersion[name.replace(".", "_")] for name in settings.protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_RENEGOTIATION
    if settings.ca is None:
        context.load_default_certs()
    else:
        _load_ca(context, settings.ca)
    if settings.certificate is not None:
        _load_chain(context, settings.certificate, settings.key, settings.key_password)
    return context


def _load_ca(context: ssl.SSLContext, ca: Pem) -> None:
    with refusing(ca, CERTIFICATE, "cannot be used"):
        context.load_verify_locations(
            cadata=in_lines(ca.text).encode("ascii", "replace").decode()
        )  # comments may be UTF-8


def _load_chain(context: ssl.SSLContext, certificate: Pem, key: Pem | None, password: str) -> None:
    key = key or certificate
    with refusing(certificate, CERTIFICATE, "cannot be used"):
        not_after(certificate)
    message = "is not the key of this certificate"
    if _ENCRYPTED.search(key.text):
        message = "is encrypted, and no password in the client file decrypts it"
    with refusing(key, KEY, message):
        try:
            _load(context, certificate.text, key.text, password)
        except ssl.SSLError:
            for number, der in enumerate(ders_of(certificate)[1:], 2):
                with suppress(ssl.SSLError):
                    _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.DER_cert_to_PEM_cert(der), key.text, password)
                    message = f"the key belongs to certificate {number} of the file, but the first one is shown"
                    hint = "put that certificate first, followed by the certificate of its issuer"
                    raise ConfigError((Problem(certificate.place, message, hint),)) from None
            raise


def _load(context: ssl.SSLContext, chain: str, key: str, password: str) -> None:
    """Python reads keys only from files, so these files are in memory."""
    with open(os.memfd_create("certificate"), "w") as chain_file, open(os.memfd_create("key"), "w") as key_file:
        for file, text in ((chain_file, chain), (key_file, key)):
            file.write(in_lines(text))
            file.flush()
        chain_name, key_name = (f"/proc/self/fd/{file.fileno()}" for file in (chain_file, key_file))
        context.load_cert_chain(
            chain_name, key_name, password
        )  # without a password OpenSSL would ask for one at the terminal


def failure_of(error: Exception, *, is_server: bool = False) -> tuple[str, str]:
    """Why a handshake failed: the reason, which is a label of the metric, and a sentence.

    A listener without TLS closes the connection after the client's first message, but other listeners may too.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _VERIFY_REASONS.get(error.verify_code, "tls_certificate"), error.verify_message
    if isinstance(error, ssl.SSLEOFError | ConnectionError | EOFError):
        return "tls_failed" if is_server else "tls_plaintext_peer", "the connection was closed during the handshake"
    if isinstance(error, ssl.SSLError) and error.reason in _PLAINTEXT:
        what = "it does not speak TLS: set security.protocol=SSL or SASL_SSL in the client"
        return "tls_plaintext_peer", what if is_server else words(error)
    return "tls_failed", words(error) if isinstance(error, ssl.SSLError) else str(error)
