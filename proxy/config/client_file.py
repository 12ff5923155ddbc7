"""The files of `--command-config` and `--own-client-config`: how to connect to brokers.

Java properties, by the names of the Java client or librdkafka. No message contains the value of a key that may be a
secret.
"""

from __future__ import annotations

import re
import tomllib
from contextlib import suppress
from pathlib import Path
from textwrap import fill
from typing import Final
from urllib.parse import unquote, urlsplit

from proxy.config.client_settings import ClientSettings, LoginSettings, Pem, SslSettings
from proxy.config.errors import ConfigError
from proxy.config.files import read_text
from proxy.config.java_properties import jaas_options, resolved
from quotas.problems import InvalidValue, Problem, did_you_mean

#: The properties that count: Java's names, and librdkafka's where they differ.
PROPERTIES: Final = {
    "bootstrap.servers": "",
    "client.id": "",
    "security.protocol": "",
    "sasl.mechanism": "sasl.mechanisms",
    "sasl.username": "",
    "sasl.password": "",
    "sasl.jaas.config": "",
    "sasl.oauthbearer.token.endpoint.url": "",
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.location": "ssl.certificate.location",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.key.location": "",
    "ssl.key.password": "",
    "ssl.endpoint.identification.algorithm": "",
    "ssl.enabled.protocols": "",
}
_ALIASES: Final = {alias: name for name, alias in PROPERTIES.items() if alias}
_QUOTED: Final = re.compile("([\"']).*\\1")
_BLANK: Final = "".join(map(chr, range(0x21)))
"""What Java's `String.trim` removes: `ConfigDef.parseType` calls it for every value."""
#: Other names with these beginnings are errors, but for those that change nothing here.
_STRICT: Final = re.compile(r"(?:ssl|sasl|security)[._]")
_PREFIXED: Final = re.compile(r"(?:spring\.)?(?:kafka|consumer|producer|admin)\.(?:\w+\.)?((?:ssl|sasl|security)\..+)")
_UNUSED: Final = re.compile(r"sasl\.(?:(?:login|oauthbearer|kerberos)\..*|client\.callback\.handler\.class)")
_UNUSED_OF_SSL: Final = (
    *(f"ssl.{store}.{what}" for store in ("truststore", "keystore") for what in ("type", "password")),
    *("ssl.protocol", "ssl.provider", "ssl.trustmanager.algorithm", "ssl.keymanager.algorithm"),
)
#: Names of properties, and of options of JAAS entries, with secret values, including those of other clients' settings.
_SECRET: Final = re.compile(r"pass|secret|assertion|jaas|token$|\.key$|user\.info$", re.IGNORECASE)
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_REFUSED: Final = {
    "GSSAPI": "without any sasl setting in this file, the Kerberos logins of clients pass through the proxy",
    "AWS_MSK_IAM": "its signature contains the broker's host name, so it cannot pass through the proxy either: use "
    "SCRAM or a client certificate, or OAUTHBEARER with a token file that a program of yours writes",
}
MAX_SHOWN: Final = 40
"""Characters of an unknown value: what was pasted there may be anything."""
_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_ENDPOINT: Final = "ssl.endpoint.identification.algorithm"
_CONVERT: Final = """convert it:
  keytool -importkeystore -srckeystore {0} -destkeystore {1}.p12 -deststoretype PKCS12
  openssl pkcs12 -in {1}.p12 {2} -out {1}.pem"""
#: Names that are logged: a line of a key that was pasted without backslashes is not one.
_NAME: Final = re.compile(r"(?=.{1,64}\Z)(?:[a-z]+|[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)+)")
_BLOCK: Final = re.compile(r"(-----BEGIN [A-Z0-9 ]+-----)([^-:]+)(-----END [A-Z0-9 ]+-----)")


def read_client_settings(path: Path, before: ClientSettings | None = None) -> ClientSettings:
    """The settings of the file of `--command-config`, which replace those before. Raises ConfigError.

    A file that is being written may be empty: that must not turn TLS off.
    """
    place = f"--command-config '{path}'"
    after, problems = read_client_file(path, place=place)
    if problems:
        raise ConfigError(problems)
    if before is not None and _restarts(before) != _restarts(after):
        message = "changes security.protocol, or adds or removes the proxy's own login or certificate"
        raise ConfigError((Problem(place, message, "this needs a restart"),))
    return after


def latest(settings: ClientSettings) -> ClientSettings:
    """The settings of the file as it is now, or these if it cannot be used. Blocks."""
    if settings.file is not None:
        with suppress(ConfigError):
            return read_client_settings(settings.file, settings)
    return settings


def _restarts(settings: ClientSettings) -> tuple[object, ...]:
    """What a reload cannot change; among it whether all clients have one user for brokers: see `--allow-open-relay`."""
    return settings.protocol, settings.login is None, settings.is_identity


def read_client_file(path: Path, *, place: str) -> tuple[ClientSettings, tuple[Problem, ...]]:
    """The settings of the file, and what is wrong with it. `place`: the flag that names it."""
    nothing = ClientSettings(file=path)
    try:
        text = read_text(path, place=place)
        given = _Given(path, text)
    except ConfigError as error:
        return nothing, error.problems
    except ValueError:
        return nothing, (Problem(str(path), "has an escape that is not \\uXXXX"),)
    values = given.values
    ssl = login = None
    protocol = given.one_of(_PROTOCOLS, "security.protocol", values.get("security.protocol", "PLAINTEXT").upper())
    if len(given.problems) > 1 and _is_toml(text):
        hint = "write security.protocol=SSL, without quotes and tables; TOML is for --config and --quotas-file"
        return nothing, (Problem(str(path), "is TOML, but must contain Java properties", hint),)
    if not given.problems:
        ssl, login = _ssl_of(given, protocol), _login_of(given, protocol)
    settings = ClientSettings(
        file=path,
        protocol=protocol,
        ssl=ssl,
        login=login,
        files=tuple(dict.fromkeys(given.files)),
        secret_files=tuple(dict.fromkeys(given.secret_files)),
        secrets=tuple(given.secrets),
        ignored=tuple(dict.fromkeys(given.ignored)),
        repeated=tuple(dict.fromkeys(given.repeated)),
        servers=values.get("bootstrap.servers", ""),
        client_id=values.get("client.id", ""),
    )
    return settings, tuple(given.problems)


def _is_toml(text: str) -> bool:
    try:
        return bool(tomllib.loads(text))
    except tomllib.TOMLDecodeError:
        return False


class _Given:
    """The values of a file by Java's names, and what is wrong with them. Raises ValueError: an escape is wrong."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.values: dict[str, str] = {}
        self.problems: list[Problem] = []
        self.ignored: list[str] = []
        self.repeated: list[str] = []
        self.files = [path]
        self.secret_files: list[Path] = []
        self.secrets: list[str] = []
        #: The place of each setting: its line, and its name as it is written.
        self._places: dict[str, str] = {}
        from javaproperties import KeyValue, parse  # 1 MB, if there is such a file

        line = 1
        for part in parse(text):
            if isinstance(part, KeyValue):
                self._take(part.key, part.value, f"{path}:{line}: {part.key}")
            line += part.source.count("\n")
        for key in self.ignored:
            prefixed = _PREFIXED.fullmatch(key)
            if prefixed is not None and prefixed[1] in PROPERTIES and prefixed[1] not in self.values:
                self.wrong(key, "unknown key", f"write {prefixed[1]}")

    def _take(self, key: str, text: str, place: str) -> None:
        name = _ALIASES.get(key, key)
        self._places[name] = place
        self._keep_secret(name, text)
        if name not in PROPERTIES:
            self._ignore(key)
            return
        elsewhere: list[Path] = []
        try:
            value = resolved(text, elsewhere).strip(_BLANK)
        except InvalidValue as error:
            self.wrong(name, error.message)
        else:
            if self.values.pop(name, value) != value:
                self.repeated.append(name)
            if value or name == _ENDPOINT:
                self.values[name] = value
            if _QUOTED.fullmatch(value) and not _SECRET.search(name):
                self.wrong(name, f"the quotes of {value} are part of the value", "remove the quotes")
            self._keep_secret(name, value)
        self.files += elsewhere
        if _SECRET.search(name):
            self.secret_files += elsewhere if "${" in text else [self.path]

    def _ignore(self, key: str) -> None:
        if _STRICT.match(key) and not _UNUSED.fullmatch(key) and key not in _UNUSED_OF_SSL:
            self.wrong(key, "unknown key", did_you_mean(key, sorted([*PROPERTIES, *_UNUSED_OF_SSL])))
        else:
            self.ignored.append(key if _NAME.fullmatch(key) else "(not a property name)")

    def _keep_secret(self, name: str, value: str) -> None:
        if _SECRET.search(name):
            self.secrets.append(value)
            with suppress(InvalidValue):
                self.secrets += [text for option, text in jaas_options(value).items() if _SECRET.search(option)]

    def place(self, name: str) -> str:
        return self._places.get(name, f"{self.path}: {name}")

    def wrong(self, name: str, message: str, hint: str | None = None) -> None:
        self.problems.append(Problem(self.place(name), message, hint))

    def one_of(self, allowed: tuple[str, ...], name: str, value: str) -> str:
        if value not in allowed:
            message = f"unknown value {value[:MAX_SHOWN]!r}" if name in self.values else "is missing"
            if not _QUOTED.fullmatch(value):  # which is reported instead
                self.wrong(name, message, did_you_mean(value, allowed))
        return value

    def has(self, prefix: str) -> bool:
        """Whether a setting of such a name is there that connections need."""
        return any(name.startswith(prefix) for name in self.values)


# ---- the login


def _login_of(given: _Given, protocol: str) -> LoginSettings | None:
    """None: the file has no login, or a wrong one."""
    if not given.has("sasl."):
        return None
    if not protocol.startswith("SASL"):
        given.wrong("security.protocol", f"{protocol} does not use sasl settings", "did you mean SASL_SSL?")
        return None
    mechanism = given.values.get("sasl.mechanism", "").upper()
    if mechanism in _REFUSED:
        given.wrong("sasl.mechanism", f"the proxy cannot log in with {mechanism}", _REFUSED[mechanism])
        return None
    if given.one_of(_MECHANISMS, "sasl.mechanism", mechanism) == "OAUTHBEARER":
        return LoginSettings(mechanism=mechanism, token_file=_token_file(given), secrets=tuple(given.secrets))
    username, password = _credentials(given)
    return LoginSettings(mechanism=mechanism, username=username, password=password, secrets=tuple(given.secrets))


def _credentials(given: _Given) -> tuple[str, str]:
    """The name and the password, by whichever mechanism."""
    values, jaas = given.values, "sasl.jaas.config"
    options = {name: values.get(f"sasl.{name}", "") for name in ("username", "password")}
    message = "expected a username and a password"
    if jaas in values:
        try:
            options = jaas_options(values[jaas])
        except InvalidValue as error:
            options, message = {}, error.message
    if not (options.get("username") and options.get("password")):
        entry = f'{jaas}=PACKAGE.MODULE required username="..." password="...";'
        given.wrong(jaas, message, f"{entry} or sasl.username and sasl.password")
        return "", ""
    if options.get("tokenauth", "").lower() == "true":
        given.wrong(jaas, "the proxy cannot log in with a delegation token", "they expire: use a password")
    return options["username"], options["password"]


def _token_file(given: _Given) -> Path:
    name = "sasl.oauthbearer.token.endpoint.url"
    url = urlsplit(given.values.get(name, ""))
    path = Path(unquote(url.path))
    if url.scheme != "file" or not path.is_file():
        given.wrong(name, "expected file:/PATH of a file with a token", "the proxy does not request tokens")
    given.secret_files.append(path)
    return path


# ---- TLS


def _ssl_of(given: _Given, protocol: str) -> SslSettings | None:
    if not protocol.endswith("SSL"):
        if given.has("ssl."):
            given.wrong("security.protocol", f"{protocol} does not use ssl settings", "did you mean SASL_SSL, or SSL?")
        return None
    values = given.values
    versions = tuple(part.strip() for part in values.get("ssl.enabled.protocols", ",".join(_VERSIONS)).split(","))
    for version in versions:
        given.one_of(_VERSIONS, "ssl.enabled.protocols", version)
    endpoint = given.one_of(("https", "none", ""), _ENDPOINT, values.get(_ENDPOINT, "https").lower())
    certificate = _pem_of(given, "ssl.keystore.certificate.chain", "ssl.keystore.location")
    key = _pem_of(given, "ssl.keystore.key", "ssl.key.location")
    if key is not None and certificate is None:
        given.wrong("ssl.keystore.location", "is missing: the key has no certificate")
    return SslSettings(
        ca=_pem_of(given, "ssl.truststore.certificates", "ssl.truststore.location"),
        certificate=certificate,
        key=key,
        key_password=values.get("ssl.key.password", ""),
        checks_hostname=endpoint == "https",
        protocols=versions,
    )


def _pem_of(given: _Given, text_name: str, file_name: str) -> Pem | None:
    """The PEM of a setting or of the file that another one names; None: neither is there, or the file is wrong."""
    text = given.values.get(text_name)
    if text is not None:  # Kafka also accepts it on one line
        split = _BLOCK.sub(lambda match: f"{match[1]}\n{fill(''.join(match[2].split()), 64)}\n{match[3]}\n", text)
        return Pem(split, given.place(text_name))
    name = given.values.get(file_name)
    if not name:
        return None
    path = Path(name)
    given.files.append(path)
    place = f"{given.place(file_name)} = {name}"
    try:
        text = read_text(path, place=place, errors="replace")
    except ConfigError as error:
        given.problems += error.problems
        return None
    if "-----BEGIN" not in text:  # whatever its type is said to be
        convert = _CONVERT.format(name, path.stem, "-nokeys" if "trust" in file_name else "-nodes")
        given.wrong(file_name, f"{name!r} is not a PEM file: a Java keystore (JKS, PKCS12)?", convert)
        return None
    if "PRIVATE KEY" in text:
        given.secret_files.append(path)
    return Pem(text, place)
