"""How the proxy connects to brokers: the content of the file of `--command-config`, in final form."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


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
    """The proxy's own login. `mechanism`: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, or OAUTHBEARER with `token_file`."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    token_file: Path | None = None

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
    ignored         keys that have no use here
    servers         `bootstrap.servers`, unparsed; "": none
    client_id       `client.id`; "": none
    """

    file: Path | None = None
    protocol: str = "PLAINTEXT"
    ssl: SslSettings | None = None
    login: LoginSettings | None = None
    files: tuple[Path, ...] = ()
    secret_files: tuple[Path, ...] = ()
    ignored: tuple[str, ...] = ()
    servers: str = ""
    client_id: str = ""

    @property
    def is_identity(self) -> bool:
        """Whether brokers take all connections of the proxy for one user of its own."""
        return self.login is not None or (
            self.protocol == "SSL" and self.ssl is not None and self.ssl.certificate is not None
        )

    @property
    def clients_log_in(self) -> bool:
        """Whether brokers require of each client that it logs in itself."""
        return self.login is None and self.protocol.startswith("SASL")
