"""The file of `--usage-client-config`: how to connect to the brokers of usage records.

A Java properties file, or TOML if its name ends so. Names are Java's, librdkafka's or aiokafka's, with dots or
underscores. Values may be secrets: no message contains one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from proxy.config.errors import Problem
from proxy.config.toml_file import read_toml

#: Arguments of aiokafka's clients, and of its SSL context, by the names that the file may have.
CLIENT: Final[Mapping[str, str]] = {
    "client_id": "client_id",
    "security_protocol": "security_protocol",
    "sasl_mechanism": "sasl_mechanism",
    "sasl_mechanisms": "sasl_mechanism",
    "sasl_username": "sasl_plain_username",
    "sasl_plain_username": "sasl_plain_username",
    "sasl_password": "sasl_plain_password",
    "sasl_plain_password": "sasl_plain_password",
}
SSL: Final[Mapping[str, str]] = {
    "ssl_cafile": "cafile",
    "ssl_ca_location": "cafile",
    "ssl_certfile": "certfile",
    "ssl_certificate_location": "certfile",
    "ssl_keyfile": "keyfile",
    "ssl_key_location": "keyfile",
    "ssl_password": "password",
    "ssl_key_password": "password",
}
_JAAS: Final = "sasl_jaas_config"
_JAAS_OPTION: Final = re.compile(r'\b(username|password)="((?:[^"\\]|\\.)*)"')
_HINTS: Final[Mapping[str, str]] = {
    "bootstrap_servers": "brokers are those of --usage-bootstrap-servers",
    "ssl_truststore_location": "keys and certificates are PEM files: ssl.cafile, ssl.certfile, ssl.keyfile",
    "ssl_keystore_location": "keys and certificates are PEM files: ssl.cafile, ssl.certfile, ssl.keyfile",
}
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_PROPERTY: Final = re.compile(r"((?:[^\\=:\s]|\\.)+)\s*[=:\s]?\s*(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ClientFile:
    """`client`: arguments of aiokafka's clients; `ssl`: of its SSL context."""

    client: Mapping[str, str] = field(default_factory=dict)
    ssl: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def read_client_file(path: Path, *, place: str) -> ClientFile:
    """The settings of the file, or what is wrong with it. `place`: the flag that names it."""
    problems: list[Problem] = []
    given = dict(_settings(path, place, problems))
    client: dict[str, str] = {}
    ssl: dict[str, str] = {}
    for key, value in given.items():
        name = key.replace(".", "_").replace("-", "_").lower()
        if name in CLIENT:
            client[CLIENT[name]] = value
        elif name in SSL:
            ssl[SSL[name]] = value
        elif name == _JAAS:
            client |= {f"sasl_plain_{option}": _unescaped(text) for option, text in _JAAS_OPTION.findall(value)}
        else:
            problems.append(Problem(f"{path}: {key}", "unknown key", _hint_of(name)))
    if not problems:
        client["security_protocol"] = client.get("security_protocol", "PLAINTEXT").upper()
        problems += _inconsistencies(path, client, ssl)
    if "certfile" in ssl:
        ssl.setdefault("password", "")  # OpenSSL would ask for it at the terminal
    return ClientFile(client, ssl, tuple(problems))


def _inconsistencies(path: Path, client: Mapping[str, str], ssl: Mapping[str, str]) -> Iterator[Problem]:
    protocol = client["security_protocol"]
    if protocol not in _PROTOCOLS:
        yield Problem(f"{path}: security.protocol", "unknown value", f"allowed: {', '.join(_PROTOCOLS)}")
        return
    place = f"{path}: security.protocol = {protocol}"
    if protocol.startswith("SASL"):
        if not {"sasl_plain_username", "sasl_plain_password"} <= client.keys():
            yield Problem(place, "needs sasl.username and sasl.password")
        if client.get("sasl_mechanism", _MECHANISMS[0]) not in _MECHANISMS:
            yield Problem(f"{path}: sasl.mechanism", "unknown value", f"allowed: {', '.join(_MECHANISMS)}")
    elif any(name.startswith("sasl") for name in client):
        yield Problem(place, "does not use sasl settings", "did you mean SASL_SSL?")
    if ssl and not protocol.endswith("SSL"):
        yield Problem(place, "does not use ssl settings", "did you mean SSL?")
    yield from _wrong_files(path, ssl)


def _wrong_files(path: Path, ssl: Mapping[str, str]) -> Iterator[Problem]:
    if "certfile" not in ssl and not ssl.keys().isdisjoint(("keyfile", "password")):
        yield Problem(f"{path}: ssl.keyfile", "needs ssl.certfile")
    for name in ("cafile", "certfile", "keyfile"):
        if name in ssl and not Path(ssl[name]).is_file():
            yield Problem(f"{path}: ssl.{name} = {ssl[name]!r}", "is not a file")


def _hint_of(name: str) -> str:
    allowed = f"allowed: {', '.join(sorted([*CLIENT, *SSL, _JAAS]))}"
    close = difflib.get_close_matches(name, [*CLIENT, *SSL, _JAAS], n=1)
    return _HINTS.get(name) or (f"did you mean {close[0]!r}? {allowed}" if close else allowed)


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
        return
    except UnicodeDecodeError as error:
        problems.append(Problem(place, f"is not UTF-8 at byte {error.start}"))
        return
    yield from _properties(text)


def _properties(text: str) -> Iterator[tuple[str, str]]:
    """Keys and values of a Java properties file (java.util.Properties.load)."""
    joined = re.sub(r"(?<!\\)((?:\\\\)*)\\\n[ \t]*", r"\1", text.replace("\r\n", "\n"))
    for line in joined.splitlines():
        match = _PROPERTY.match(line.strip())
        if match is not None and match[1][0] not in "#!":
            yield _unescaped(match[1]), _unescaped(match[2])


def _unescaped(text: str) -> str:
    return re.sub(
        r"\\(u[0-9a-fA-F]{4}|.)",
        lambda match: chr(int(match[1][1:], 16)) if len(match[1]) > 1 else _ESCAPES.get(match[1], match[1]),
        text,
    )
