"""TLS contexts, made of files, and made again when a file changes: both sides or neither.

A new context serves the next connection; open connections keep theirs. What cannot be read changes nothing. Files are
read in a thread: a key on a network file system must not stop the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from asn1crypto.x509 import Certificate

from proxy.config.client_settings import ClientSettings, Pem, SslSettings
from proxy.config.config import Config, ServerSsl
from proxy.config.errors import ConfigError, Problem
from proxy.config.fingerprints import fingerprints
from proxy.observability import logs
from proxy.observability.metrics import Metrics

POLL_SECONDS: Final = 1.0
#: Labels of the metric, by who sees the certificate.
CLIENTS, BROKERS = "clients", "brokers"
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
#: OpenSSL's X509_V_ERR_… of a certificate that is not valid yet or no more, and of one for another host.
_VERIFY_REASONS: Final = {9: "tls_expired", 10: "tls_expired", 62: "tls_hostname", 64: "tls_hostname"}
CERTIFICATE, KEY = "CERTIFICATE", "PRIVATE KEY"
_CERTIFICATES: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
#: OpenSSL's words for a peer that does not speak TLS.
_PLAINTEXT: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "PACKET_LENGTH_TOO_LONG"})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Made:
    """Of one reading of all files. `not_after`: when certificates expire, in seconds since 1970, by their side."""

    upstream: ClientSettings
    to_brokers: ssl.SSLContext | None = None
    from_clients: ssl.SSLContext | None = None
    not_after: Mapping[str, float] = field(default_factory=dict)


class TlsContexts:
    """The contexts for new connections. Raises ConfigError if the files of `config` cannot be used.

    to_brokers     None: plaintext; `from_clients`: the same
    upstream       the settings of connections to brokers, with passwords, as they were last read
    read_upstream  reads them again; raises ConfigError
    """

    def __init__(
        self, config: Config, metrics: Metrics, read_upstream: Callable[[Path], ClientSettings] | None = None
    ) -> None:
        self._server = config.listening.ssl
        self._metrics = metrics
        self._read_upstream = read_upstream
        self._seen = fingerprints(self._paths(config.upstream))
        self._use(self._make(config.upstream))

    @property
    def is_watched(self) -> bool:
        """Whether files may change."""
        return bool(self._seen)

    async def watch(self) -> None:
        """Call `poll` once a second, until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self.poll()
            except Exception:  # noqa: BLE001 - a defect that one content shows must not end the watch
                self._metrics.tls_reload_ok = False
                logs.event(_log, logging.ERROR, "tls_watch_failed", exc_info=True)

    async def poll(self) -> bool:
        """Read the files if one changed; True if they are used from now on."""
        seen = await asyncio.to_thread(fingerprints, self._paths(self.upstream))
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            made = await asyncio.to_thread(self._read)
        except ConfigError as error:
            self._metrics.tls_reload_ok = False
            for problem in error.problems:
                logs.event(
                    _log,
                    logging.ERROR,
                    "tls_refused",
                    place=problem.place,
                    message=problem.message,
                    hint=problem.hint,
                    effect="new connections use what was in force before",
                )
            return False
        if self._paths(made.upstream) != self._paths(self.upstream):
            self._seen = ()  # other files: they are read once more, and watched from then on
        self._use(made)
        logs.event(
            _log, logging.INFO, "tls_reloaded", **{f"{side}_not_after": at for side, at in made.not_after.items()}
        )
        return True

    def _use(self, made: _Made) -> None:
        self.upstream = made.upstream
        self.to_brokers = made.to_brokers
        self.from_clients = made.from_clients
        self._metrics.certificates = made.not_after
        self._metrics.tls_reload_ok = True

    def _read(self) -> _Made:
        file = self.upstream.file
        return self._make(self.upstream if file is None or self._read_upstream is None else self._read_upstream(file))

    def _make(self, upstream: ClientSettings) -> _Made:
        not_after: dict[str, float] = {}
        from_clients = to_brokers = None
        if self._server is not None:
            from_clients = context_from_clients(self._server)
            not_after[CLIENTS] = _not_after(Pem(path=self._server.certificate))
        if upstream.ssl is not None:
            to_brokers = context_to_brokers(upstream.ssl)
            if upstream.ssl.certificate is not None:
                not_after[BROKERS] = _not_after(upstream.ssl.certificate)
        return _Made(upstream, to_brokers, from_clients, not_after)

    def _paths(self, upstream: ClientSettings) -> tuple[Path, ...]:
        settings, server = upstream.ssl, self._server
        pems = () if settings is None else (settings.ca, settings.certificate, settings.key)
        found = [upstream.file, *upstream.secret_files, *(pem.path for pem in pems if pem is not None)]
        found += [] if server is None else [server.certificate, server.key, server.ca]
        return tuple([path for path in found if path is not None])


def context_from_clients(options: ServerSsl) -> ssl.SSLContext:
    """The context of connections from clients. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load_chain(context, Pem(path=options.certificate), Pem(path=options.key), "")
    if options.ca is not None:
        _load_ca(context, Pem(path=options.ca))
    context.verify_mode = _CLIENT_AUTH[options.client_auth]
    return context


def context_to_brokers(settings: SslSettings) -> ssl.SSLContext:
    """The context of connections to brokers. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_hostname
    versions = [_VERSIONS[name] for name in settings.protocols]
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
    with _file_of(ca, CERTIFICATE) as (name, _), _refusing(ca, "cannot be used"):
        context.load_verify_locations(name)


def _load_chain(context: ssl.SSLContext, certificate: Pem, key: Pem | None, password: str) -> None:
    key = key or certificate
    with _file_of(certificate, CERTIFICATE) as (chain, _), _file_of(key, KEY) as (name, text):
        message = "is not the key of this certificate"
        if "ENCRYPTED" in text:
            message = "is encrypted, and no password of the client file decrypts it"
        with _refusing(key, message):
            context.load_cert_chain(chain, name, password)  # without a password OpenSSL would ask at the terminal


@contextmanager
def _refusing(pem: Pem, message: str) -> Iterator[None]:
    """Turn errors of OpenSSL into a ConfigError."""
    try:
        yield
    except ssl.SSLError as error:
        raise ConfigError((Problem(_place(pem), message, f"OpenSSL: {_words(error)}"),)) from error


def _place(pem: Pem) -> str:
    return "PEM in the client file" if pem.path is None else str(pem.path)


def _text_of(pem: Pem, content: str) -> str:
    """The PEM, which has such a part. Raises ConfigError."""
    try:
        text = pem.text if pem.path is None else pem.path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError((Problem(_place(pem), f"cannot be read: {error.strerror}"),)) from error
    if f"{content}-----" not in text:
        raise ConfigError((Problem(_place(pem), f"contains no {content.lower()} in PEM format"),))
    return text


@contextmanager
def _file_of(pem: Pem, content: str) -> Iterator[tuple[str, str]]:
    """The name of a file with the PEM, and its text: Python reads keys from files only. This one is in memory."""
    text = _text_of(pem, content)
    if hasattr(os, "memfd_create"):
        file = os.fdopen(os.memfd_create("pem"), "w", encoding="utf-8")
        name = f"/proc/self/fd/{file.fileno()}"
    else:
        file = tempfile.NamedTemporaryFile("w", encoding="utf-8")  # for this user only, and removed at once
        name = file.name
    with file:
        file.write(text)
        file.flush()
        yield name, text


def _not_after(certificate: Pem) -> float:
    """When the first certificate of a chain expires, in seconds since 1970."""
    chain = _CERTIFICATES.findall(_text_of(certificate, CERTIFICATE))
    return min(Certificate.load(ssl.PEM_cert_to_DER_cert(each)).not_valid_after.timestamp() for each in chain)


def failure_of(error: Exception, *, is_server: bool = False) -> tuple[str, str]:
    """Why a handshake failed: the reason, a metric's label, and a sentence.

    A listener without TLS closes the connection after the client's first message, as other servers do for other reasons.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _VERIFY_REASONS.get(error.verify_code, "tls_certificate"), error.verify_message
    if isinstance(error, ssl.SSLEOFError | ConnectionError | EOFError):
        return "tls_failed" if is_server else "tls_plaintext_peer", "the connection was closed during the handshake"
    if isinstance(error, ssl.SSLError):
        return "tls_plaintext_peer" if error.reason in _PLAINTEXT else "tls_failed", _words(error)
    return "tls_failed", str(error)


def _words(error: ssl.SSLError) -> str:
    """What OpenSSL says: `tlsv1 alert unknown ca` is what the other side sent."""
    return (error.reason or error.strerror or str(error)).replace("_", " ").lower()
