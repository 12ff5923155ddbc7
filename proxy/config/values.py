"""Parses text to values in final units: addresses, port ranges, durations, sizes.

Each `parse_*` takes a str (or, from TOML, also a number) and raises `InvalidValue`: its message has the expected form,
its hint the correction.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Final, NamedTuple

from proxy.config.config import Address, Network

MAX_PORT: Final = 65_535
INT32_MAX: Final = 2_147_483_647


class Finding(NamedTuple):
    """One error of a value: a `proxy.config.errors.Problem` without its place."""

    message: str
    hint: str | None = None
    may_pass: bool = False


class InvalidValue(ValueError):
    """`message`: the expected form. `hint`: how to correct the value, or None.

    `findings` are all errors of the value, if there are several.
    """

    def __init__(self, message: str, hint: str | None = None, findings: Sequence[Finding] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.findings = tuple(findings) or (Finding(message, hint),)


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """A hint: the allowed word that is most like this one, and all of them."""
    words = list(allowed)
    close = difflib.get_close_matches(word, words, n=1)
    return (f"did you mean {close[0]!r}? " if close else "") + f"allowed: {', '.join(words)}"


def parse_name(value: object) -> str:
    """A client id or principal: any text but the empty one."""
    text = _text(value, "a name")
    if not text.strip():
        raise InvalidValue(
            "expected a name, not an empty one", "leave the option out to use the name that each client sends"
        )
    if not text.isprintable():
        raise InvalidValue("expected a name without control characters")
    return text


def parse_address(value: object, *, zero_port: bool = False) -> Address:
    """`HOST:PORT`; an IPv6 literal is in brackets, as in `[::1]:19092`. Port 0 (any free port) if `zero_port`."""
    text = _text(value, "HOST:PORT").strip()
    if "://" in text:
        raise InvalidValue("expected HOST:PORT", "remove the scheme: addresses are plain host:port")
    host, colon, port_text = text.rpartition(":")
    if not colon:
        raise InvalidValue("expected HOST:PORT", "the port is missing" if text else None)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host:
            raise InvalidValue("expected HOST:PORT", "brackets are for IPv6 addresses only, as in [::1]:19092")
    elif ":" in host:
        raise InvalidValue("expected HOST:PORT", "put an IPv6 address in brackets, as in [::1]:19092")
    _check_host(host, "HOST:PORT")
    lowest = 0 if zero_port else 1
    port = _digits(port_text)
    if port is None or not lowest <= port <= MAX_PORT:
        raise InvalidValue("expected HOST:PORT", f"the port is a number from {lowest} to {MAX_PORT}, not {port_text!r}")
    return host, port


def parse_host(value: object) -> str:
    """A host name or IP literal without port; an IPv6 literal may be in brackets."""
    host = _text(value, "HOST").strip()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif host.count(":") == 1:
        raise InvalidValue("expected HOST without a port", "the ports are those of --listen and --broker-ports")
    _check_host(host, "HOST")
    return host


def parse_addresses(value: object) -> tuple[Address, ...]:
    """`HOST:PORT[,HOST:PORT...]`, or a list of such texts; repetitions are dropped."""
    parts: list[object] = []
    for item in value if isinstance(value, list) else [value]:
        parts += _text(item, "HOST:PORT[,HOST:PORT...]").split(",")
    addresses: dict[Address, None] = {}
    for part in parts:
        try:
            addresses[parse_address(part)] = None
        except InvalidValue as error:
            hint = f"{part!r}: {error.hint}" if error.hint else f"one address is {part!r}"
            raise InvalidValue("expected HOST:PORT[,HOST:PORT...]", hint) from error
    if not addresses:
        raise InvalidValue("expected HOST:PORT[,HOST:PORT...], at least one")
    return tuple(addresses)


def parse_network(value: object) -> Network:
    """An IP address, or a network in CIDR notation."""
    text = _text(value, "CIDR").strip()
    try:
        network = ip_network(text, strict=False)
    except ValueError as error:
        raise InvalidValue("expected an IP network such as 10.0.0.0/8, or an address") from error
    address, _, length = text.partition("/")
    if length and ip_address(address) != network.network_address:
        raise InvalidValue("expected an IP network", f"did you mean {network}?")
    return network


def parse_port_range(value: object) -> range:
    """`FIRST-LAST`, both included, or `0`, an empty range: each port is chosen by the kernel."""
    expected = "expected FIRST-LAST (such as 19093-19112) or 0 (ports chosen by the kernel)"
    text = str(value).strip() if _is_number(value) else _text(value, "FIRST-LAST").strip()
    if text == "0":
        return range(0)
    first_text, dash, last_text = text.partition("-")
    first, last = _digits(first_text.strip()), _digits(last_text.strip())
    if not dash or first is None or last is None:
        raise InvalidValue(expected)
    if not (1 <= first <= MAX_PORT and 1 <= last <= MAX_PORT):
        raise InvalidValue(expected, f"ports go from 1 to {MAX_PORT}")
    if last < first:
        raise InvalidValue(expected, f"the last port is below the first: did you mean {last}-{first}?")
    return range(first, last + 1)


def parse_node_port(value: object) -> tuple[int, int]:
    """`NODE=PORT`: the node id of a broker, and its port of the proxy."""
    node_text, _, port_text = _text(value, "NODE=PORT").partition("=")
    node, port = _digits(node_text.strip()), _digits(port_text.strip())
    if node is None or node > INT32_MAX or port is None or not 1 <= port <= MAX_PORT:
        raise InvalidValue("expected NODE=PORT", f"a broker's node id and a port from 1 to {MAX_PORT}, as in 7=19200")
    return node, port


_DURATION_UNITS: Final[Mapping[str, float]] = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SIZE_UNITS: Final[Mapping[str, int]] = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", re.ASCII)


def parse_duration(value: object) -> float:
    """Seconds, from `20s`, `500ms`, `2m`, `1h` or a plain number of seconds. At most a day."""
    expected = "expected a duration such as 20s, 500ms or 2m"
    number, unit = _quantity(value, expected)
    if unit not in _DURATION_UNITS:
        raise InvalidValue(expected, f"unknown unit {unit!r}; allowed: ms, s, m, h")
    seconds = number * _DURATION_UNITS[unit]
    if seconds > 86_400:
        raise InvalidValue(expected, "at most 24h")
    return seconds


def parse_duration_or_off(value: object) -> float:
    """As `parse_duration`; `off` is 0."""
    if isinstance(value, str) and value.strip().lower() == "off":
        return 0.0
    try:
        return parse_duration(value)
    except InvalidValue as error:
        raise InvalidValue(f"{error.message}, or off", error.hint) from error


def duration(lowest: float, highest: float) -> Callable[[object], float]:
    """A parser of durations from `lowest` to `highest` seconds."""

    def parse(value: object) -> float:
        seconds = parse_duration(value)
        if not lowest <= seconds <= highest:
            raise InvalidValue(f"expected a duration from {lowest:g}s to {highest:g}s")
        return seconds

    return parse


_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def parse_topic(value: object) -> str:
    """A topic name, as brokers accept it."""
    name = _text(value, "TOPIC").strip()
    if not _TOPIC.fullmatch(name) or name in {".", ".."}:
        raise InvalidValue("expected a topic name", "at most 249 letters, digits, '.', '_' and '-'")
    return name


_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def parse_label(value: object) -> tuple[str, str]:
    """`NAME=VALUE`."""
    name, equals, text = _text(value, "NAME=VALUE").partition("=")
    if not equals or not _LABEL_NAME.fullmatch(name):
        raise InvalidValue("expected NAME=VALUE", "the name: at most 64 letters, digits, '.', '_' and '-'")
    if len(text) > 256 or not text.isprintable():
        raise InvalidValue("expected NAME=VALUE", "the value: at most 256 printable characters")
    return name, text


def parse_size(value: object, smallest: int = 1) -> int:
    """Bytes, from `256MiB`, `100MB` or a plain number. From `smallest` to 2,147,483,647 (the range of Kafka's length
    field).
    """
    expected = "expected a size such as 104857600, 100MB or 256MiB"
    number, unit = _quantity(value, expected)
    factor = _SIZE_UNITS.get(unit.lower())
    if factor is None:
        raise InvalidValue(expected, f"unknown unit {unit!r}; allowed: B, kB, MB, GB, KiB, MiB, GiB")
    size = number * factor
    if not size.is_integer() or not smallest <= size <= INT32_MAX:
        raise InvalidValue(expected, f"from {smallest} to {INT32_MAX} bytes")
    return int(size)


SMALLEST_FRACTION: Final = 1e-6
"""With the smallest rate, waits still fit the arithmetic."""


def parse_fraction(value: object) -> float:
    """A number from `SMALLEST_FRACTION` to 1."""
    expected = "expected a fraction above 0 and at most 1, such as 0.25"
    try:
        fraction = float(value) if _is_number(value) else float(_text(value, "a fraction"))  # type: ignore[arg-type]
    except ValueError as error:
        raise InvalidValue(expected) from error
    if not 0 < fraction <= 1:
        raise InvalidValue(expected)
    if fraction < SMALLEST_FRACTION:
        raise InvalidValue(expected, f"at least {SMALLEST_FRACTION:f}")
    return fraction


def whole_number(lowest: int, highest: int = INT32_MAX) -> Callable[[object], int]:
    """A parser of whole numbers from `lowest` to `highest`."""

    def parse(value: object) -> int:
        number = value if isinstance(value, int) and not isinstance(value, bool) else _digits(str(value).strip())
        if number is None or not lowest <= number <= highest:
            raise InvalidValue(f"expected a whole number from {lowest} to {highest}")
        return number

    return parse


def parse_switch(value: object) -> bool:
    """true or false, on or off, yes or no, 1 or 0."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in {"true", "yes", "on", "1"}:
        return True
    if word in {"false", "no", "off", "0", ""}:
        return False
    raise InvalidValue("expected true or false, or on or off")


def split_specs(text: str) -> list[str]:
    """Several values in one environment variable: split at `;` and at line ends, except inside double quotes."""
    parts = [""]
    quoted = escaped = False
    for char in text:
        quoted ^= char == '"' and not escaped
        escaped = quoted and char == "\\" and not escaped
        if char in ";\n" and not quoted:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidValue(f"expected {what}, as text in quotes")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _digits(text: str) -> int | None:
    """A number of at most 10 digits, or None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def _quantity(value: object, expected: str) -> tuple[float, str]:
    text = str(value) if _is_number(value) else value
    match = _QUANTITY.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or len(match[1]) > 20:
        raise InvalidValue(expected)
    return float(match[1]), match[2]


def _check_host(host: str, what: str) -> None:
    if not host:
        raise InvalidValue(f"expected {what}", "the host is missing")
    if not host.isprintable() or any(char in ' ,/@"' for char in host):
        raise InvalidValue(f"expected {what}", f"{host!r} is not a host name or IP address")
