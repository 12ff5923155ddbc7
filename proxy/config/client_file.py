"""The files of `--command-config` and `--usage-client-config`: how to connect to brokers, as clients of Kafka.

A Java properties file, or TOML if its name ends so. Names are Java's, librdkafka's or aiokafka's, with dots or
underscores. Values may be secrets: no message contains one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import Final
from urllib.parse import unquote, urlsplit

from proxy.config.client_settings import ClientSettings, LoginSettings, Pem, SslSettings
from proxy.config.errors import ConfigError, Problem
from proxy.config.java_properties import Unresolved, is_reference, jaas_entry, properties, resolved
from proxy.config.toml_file import read_toml

#: What a setting means, by the names that the file may have.
NAMES: Final[Mapping[str, str]] = {
    "bootstrap_servers": "servers",
    "client_id": "client_id",
    "security_protocol": "protocol",
    "sasl_mechanism": "mechanism",
    "sasl_mechanisms": "mechanism",
    "sasl_username": "username",
    "sasl_plain_username": "username",
    "sasl_password": "password",
    "sasl_plain_password": "password",
    "sasl_jaas_config": "jaas",
    "sasl_oauthbearer_token_endpoint_url": "token",
    "ssl_truststore_location": "ca",
    "ssl_ca_location": "ca",
    "ssl_cafile": "ca",
    "ssl_truststore_certificates": "ca_text",
    "ssl_ca_pem": "ca_text",
    "ssl_keystore_location": "certificate",
    "ssl_certificate_location": "certificate",
    "ssl_certfile": "certificate",
    "ssl_keystore_certificate_chain": "certificate_text",
    "ssl_certificate_pem": "certificate_text",
    "ssl_key_location": "key",
    "ssl_keyfile": "key",
    "ssl_keystore_key": "key_text",
    "ssl_key_pem": "key_text",
    "ssl_key_password": "key_password",
    "ssl_password": "key_password",
    "ssl_endpoint_identification_algorithm": "endpoint",
    "ssl_enabled_protocols": "versions",
}
#: Other names with these beginnings are errors, but for those that change nothing here.
_STRICT: Final = ("ssl_", "sasl_", "security_")
_UNUSED: Final = re.compile(
    r"ssl_(?:trust|key)store_(?:type|password)|ssl_pro(?:tocol|vider)|ssl_(?:trust|key)manager_algorithm"
    r"|sasl_(?:login|oauthbearer|kerberos)_.*|sasl_client_callback_handler_class"
)
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_OAUTH: Final = "OAUTHBEARER"
_MECHANISMS: Final[tuple[str, ...]] = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", _OAUTH)
_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": (_OAUTH,),
    "Krb5LoginModule": ("GSSAPI",),
    "IAMLoginModule": ("AWS_MSK_IAM",),
}
_REFUSED: Final = {
    "GSSAPI": "without any sasl setting in this file, the Kerberos logins of clients pass through the proxy",
    "AWS_MSK_IAM": "its signature contains the broker's host name, so it cannot pass through the proxy either: use "
    "SCRAM or a client certificate, or OAUTHBEARER with a token file that a program of yours writes",
}
_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_SECRETS: Final = frozenset({"password", "jaas", "key_text", "key_password"})
#: Java's names of what may be missing.
_KEYS: Final = {
    "protocol": "security.protocol",
    "mechanism": "sasl.mechanism",
    "token": "sasl.oauthbearer.token.endpoint.url",
}
_CONVERT: Final = """convert it:
  keytool -importkeystore -srckeystore {0} -destkeystore {1}.p12 -deststoretype PKCS12
  openssl pkcs12 -in {1}.p12 {2} -out {1}.pem"""
_BLOCK: Final = re.compile(r"(-----BEGIN [A-Z0-9 ]+-----)([^-:]+)(-----END [A-Z0-9 ]+-----)")


@dataclass(frozen=True, slots=True)
class ClientFile:
    """What a client file says. `servers`: its bootstrap.servers, unparsed; "": it has none."""

    settings: ClientSettings = field(default_factory=ClientSettings)
    servers: str = ""
    client_id: str = ""
    problems: tuple[Problem, ...] = ()


def read_client_settings(path: Path, before: ClientSettings | None = None) -> ClientSettings:
    """The settings of the file of `--command-config`, in place of those before. Raises ConfigError."""
    place = f"--command-config '{path}'"
    found = read_client_file(path, place=place)
    if found.problems:
        raise ConfigError(found.problems)
    if before is not None and (before.login is None) != (found.settings.login is None):
        raise ConfigError((Problem(place, "adds or removes the login of the proxy", "this needs a restart"),))
    return found.settings


def read_client_file(path: Path, *, place: str) -> ClientFile:
    """The settings of the file, or what is wrong with it. `place`: the flag that names it."""
    given = _Given(path)
    for key, value in _settings(path, place, given.problems):
        given.take(key, value)
    protocol = given.values.get("protocol", _PROTOCOLS[0]).upper()
    if protocol not in _PROTOCOLS:
        given.wrong("protocol", "unknown value", f"allowed: {', '.join(_PROTOCOLS)}")
    if given.problems:
        return ClientFile(servers=given.values.get("servers", ""), problems=tuple(given.problems))
    ssl, login, values = _ssl_of(given, protocol), _login_of(given, protocol), given.values
    settings = ClientSettings(
        file=path,
        protocol=protocol,
        ssl=ssl,
        login=login,
        secret_files=tuple(dict.fromkeys(given.secret_files)),
        ignored=tuple(given.ignored),
    )
    return ClientFile(settings, values.get("servers", ""), values.get("client_id", ""), tuple(given.problems))


class _Given:
    """The values of a file by their meaning, and what is wrong with them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, str] = {}
        self.keys: dict[str, str] = {}
        self.problems: list[Problem] = []
        self.ignored: list[str] = []
        self.secret_files: list[Path] = []

    def take(self, key: str, text: str) -> None:
        """Note one setting."""
        name = key.replace(".", "_").replace("-", "_").lower()
        meaning = NAMES.get(name)
        if meaning is None:
            if name.startswith(_STRICT) and not _UNUSED.fullmatch(name):
                self.problems.append(Problem(f"{self.path}: {key}", "unknown key", _hint_of(name)))
            else:
                self.ignored.append(key)
            return
        self.keys[meaning] = key
        if meaning in _SECRETS and not is_reference(text):
            self.secret_files.append(self.path)
        try:
            value = resolved(text, self.secret_files)
        except Unresolved as error:
            self.wrong(meaning, str(error))
            return
        if value or meaning == "endpoint":
            self.values[meaning] = value

    def wrong(self, meaning: str, message: str, hint: str | None = None) -> None:
        self.problems.append(
            Problem(f"{self.path}: {self.keys.get(meaning) or _KEYS.get(meaning, meaning)}", message, hint)
        )

    def has(self, *prefixes: str) -> bool:
        """Whether a setting of such a name is there that connections need."""
        return any(key.replace(".", "_").startswith(prefixes) for key in self.keys.values())


# ---- the login


def _login_of(given: _Given, protocol: str) -> LoginSettings | None:
    """None: the file has no login, or a wrong one."""
    if not given.has("sasl_"):
        return None
    if not protocol.startswith("SASL"):
        given.wrong("protocol", f"{protocol} does not use sasl settings", "did you mean SASL_SSL?")
        return None
    values = given.values
    mechanism = _mechanism_of(given)
    if mechanism is None:
        return None
    if mechanism == _OAUTH:
        path = _token_file(given)
        return None if path is None else LoginSettings(mechanism=mechanism, token_file=path)
    if not {"username", "password"} <= values.keys():
        given.wrong("protocol", f"{protocol} needs sasl.username and sasl.password, or sasl.jaas.config with both")
        return None
    return LoginSettings(mechanism=mechanism, username=values["username"], password=values["password"])


def _mechanism_of(given: _Given) -> str | None:
    """The mechanism, after the JAAS entry was read for name and password. None: it is wrong."""
    mechanism = given.values.get("mechanism", "").upper()
    allowed = _MECHANISMS
    if "jaas" in given.values:
        entry = jaas_entry(given.values["jaas"])
        if entry is None or entry[0] not in _MODULES:
            expected = 'expected PACKAGE.MODULE required username="..." password="...";'
            given.wrong("jaas", expected, f"modules: {', '.join(_MODULES)}")
            return None
        allowed = _MODULES[entry[0]]
        if entry[1].get("tokenauth", "").lower() == "true":
            given.wrong("jaas", "delegation tokens are not for a login of the proxy", "they expire: use a password")
            return None
        given.values |= {name: entry[1][name] for name in ("username", "password") if name in entry[1]}
        if not mechanism and len(allowed) > 1:
            given.wrong("mechanism", "is missing", f"allowed: {', '.join(allowed)}")
            return None
    mechanism = mechanism or allowed[0]
    if mechanism in _REFUSED:
        given.wrong("mechanism", f"the proxy cannot log in by {mechanism}", _REFUSED[mechanism])
    elif mechanism not in allowed:
        given.wrong("mechanism", "unknown value", f"allowed: {', '.join(allowed)}")
    else:
        return mechanism
    return None


def _token_file(given: _Given) -> Path | None:
    url = urlsplit(given.values.get("token", ""))
    path = Path(unquote(url.path))
    if url.scheme == "file" and path.is_file():
        return path
    given.wrong("token", "expected file:/PATH of a file with a token", "the proxy requests no token")
    return None


# ---- TLS


def _ssl_of(given: _Given, protocol: str) -> SslSettings | None:
    if not protocol.endswith("SSL"):
        if given.has("ssl_"):
            given.wrong("protocol", f"{protocol} does not use ssl settings", "did you mean SASL_SSL, or SSL?")
        return None
    values = given.values
    versions = tuple(part.strip() for part in values.get("versions", ",".join(_VERSIONS)).split(","))
    if not set(versions) <= set(_VERSIONS):
        given.wrong("versions", "unknown value", f"allowed: {', '.join(_VERSIONS)}")
    endpoint = values.get("endpoint", "https").lower()
    if endpoint not in {"https", "", "none"}:
        given.wrong("endpoint", "unknown value", "allowed: https, or nothing: host names are not checked then")
    certificate, key = _pem_of(given, "certificate"), _pem_of(given, "key")
    if key is not None and {"certificate", "certificate_text"}.isdisjoint(values):
        given.wrong("key", "has no certificate", "name its file by ssl.keystore.location")
    return SslSettings(
        ca=_pem_of(given, "ca"),
        certificate=certificate,
        key=key,
        key_password=values.get("key_password", ""),
        checks_hostname=endpoint == "https",
        protocols=versions,
    )


def _pem_of(given: _Given, meaning: str) -> Pem | None:
    """The PEM text or file of a setting; None: none, or wrong."""
    values = given.values
    text = values.get(f"{meaning}_text")
    if text is not None:
        return Pem(text=_lines_of(text))
    if meaning not in values:
        return None
    name = values[meaning]
    path = Path(name)
    try:
        data = path.read_bytes()
    except OSError as error:
        given.wrong(meaning, f"{name!r}: {error.strerror}")
        return None
    if b"-----BEGIN" not in data:  # whatever its type is said to be
        what = "-nokeys" if meaning == "ca" else "-nodes"
        convert = _CONVERT.format(name, path.stem, what)
        given.wrong(meaning, f"{name!r} is no PEM file: a Java keystore (JKS, PKCS12)?", convert)
        return None
    if b"PRIVATE KEY" in data:
        given.secret_files.append(path)
    return Pem(path=path)


def _lines_of(text: str) -> str:
    """PEM with line breaks: Kafka takes it on one line, too."""
    return _BLOCK.sub(lambda match: f"{match[1]}\n{fill(''.join(match[2].split()), 64)}\n{match[3]}\n", text)


# ---- the file


def _hint_of(name: str) -> str:
    allowed = f"allowed: {', '.join(sorted(NAMES))}"
    close = difflib.get_close_matches(name, NAMES, n=1)
    return f"did you mean {close[0]!r}? {allowed}" if close else allowed


def _settings(path: Path, place: str, problems: list[Problem]) -> Iterator[tuple[str, str]]:
    if path.suffix == ".toml":
        for key, value in read_toml(path, place=place, problems=problems).items():
            if isinstance(value, str):
                yield key, value
            else:
                problems.append(Problem(f"{path}: {key}", "expected text in quotes"))
        return
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        problems.append(Problem(place, f"cannot be read: {error.strerror or error}"))
    except UnicodeDecodeError as error:
        problems.append(Problem(place, f"is not UTF-8 at byte {error.start}"))
    else:
        yield from properties(text)
