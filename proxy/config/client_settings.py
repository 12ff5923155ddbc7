"""How the proxy connects to brokers: the content of the file of `--command-config`, in final form."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MASK: Final = "***"
#: Three bytes are four digits: in digits of a shorter secret other texts would be masked as well.
_LEAST_IN_BASE64: Final = 6


def masked(text: str, secrets: Iterable[str]) -> str:
    """A text that a broker wrote, without secrets of ours: as they are, with JSON's escapes, or in base64.

    A broker knows passwords and tokens, and some repeat in an error what they were sent.
    """
    spellings = {spelling for secret in secrets if secret for spelling in _spellings(secret)}
    if not spellings:
        return text
    longest_first = sorted(spellings, key=len, reverse=True)  # one may contain another
    return re.sub("|".join(map(re.escape, longest_first)), MASK, text)


def _spellings(secret: str) -> Iterator[str]:
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    data = secret.encode("utf-8", "replace")
    if len(data) >= _LEAST_IN_BASE64:
        for before in range(3):  # bytes of a message, before the secret, in its first group of three
            digits = b64encode(bytes(before) + data).decode()
            yield digits[-(-8 * before // 6) : 8 * (before + len(data)) // 6]


@dataclass(frozen=True, slots=True)
class Pem:
    """A text in PEM, which may be a key. `place`: of its setting, for messages."""

    text: str = field(repr=False)
    place: str = field(default="PEM", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SslSettings:
    """TLS to brokers.

    ca             None: the system's certificate authorities
    certificate    of the proxy as a client, with its chain
    key            None: it is in the text of the certificate
    key_password   of an encrypted key
    protocols      the versions that are allowed
    """

    ca: Pem | None = None
    certificate: Pem | None = None
    key: Pem | None = None
    key_password: str = field(default="", repr=False)
    checks_hostname: bool = True
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSettings:
    """The proxy's own login. `mechanism`: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, or OAUTHBEARER with `token_file`.

    `secrets`: all of its file, for `masked`.
    """

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    token_file: Path | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.mechanism} as {self.username}" if self.username else self.mechanism


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Connections to brokers.

    protocol        `security.protocol`
    ssl             None: plaintext
    login           None: SASL passes through from clients
    files           all that were read, `file` among them
    secret_files    those with a secret, and the token file
    secrets         passwords, keys and the like, those of ignored keys too, for `masked`
    ignored         keys that have no use here
    repeated        keys with several values, of which the last one counts, as in Java
    servers         `bootstrap.servers`, unparsed; "": none
    client_id       `client.id`; "": none
    """

    file: Path | None = None
    protocol: str = "PLAINTEXT"
    ssl: SslSettings | None = None
    login: LoginSettings | None = None
    files: tuple[Path, ...] = ()
    secret_files: tuple[Path, ...] = ()
    secrets: tuple[str, ...] = field(default=(), repr=False, compare=False)
    ignored: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    servers: str = ""
    client_id: str = ""

    @property
    def is_identity(self) -> bool:
        """Whether all connections of the proxy have one user for brokers, the proxy's own."""
        return self.login is not None or (
            self.protocol == "SSL" and self.ssl is not None and self.ssl.certificate is not None
        )

    @property
    def clients_log_in(self) -> bool:
        """Whether brokers require of each client that it logs in itself."""
        return self.login is None and self.protocol.startswith("SASL")
