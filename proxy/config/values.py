"""Parses text to values in final units: addresses, port ranges, durations, sizes.

Each `parse_*` takes a str (or, from TOML, also a number) and raises `InvalidValue`: its message has the expected form,
its hint the correction.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from ipaddress import ip_address, ip_network
from typing import Final

from proxy.config.addresses import Address, Network, ip_literal
from quotas.adaptive.disk_guard import DiskMarks
from quotas.exemption import Exemption
from quotas.fleet.record import MAX_NAME_LENGTH, is_name
from quotas.parsing.names import check_topic
from quotas.problems import InvalidValue
from quotas.rates import UNITS, check_bytes, kafka_rate, parse_number, parse_rate
from quotas.resource_groups import parse_pattern
from quotas.slips import slip_in, within_quotes

MAX_PORT: Final = 65_535
INT32_MAX: Final = 2_147_483_647


def parse_name(value: object) -> str:
    """A client id or principal: any text that is not empty."""
    text = _text(value, "a name")
    if not text.strip():
        raise InvalidValue(
            "expected a name, not an empty one", "leave the option out to use the name that each client sends"
        )
    if not text.isprintable():
        raise InvalidValue("expected a name without control characters")
    return _as_written(text, "expected a name")


def _as_written(name: str, expected: str) -> str:
    """The name, without the double quotes that it needs if it looks like a slip."""
    literal = within_quotes(name)
    slip = None if literal is not None else slip_in(name)
    if slip is not None:
        raise InvalidValue(f"{expected}; in double quotes, it is taken as written", slip)
    return name if literal is None else literal


def parse_address(value: object, *, zero_port: bool = False) -> Address:
    """`HOST:PORT`; an IPv6 literal is in brackets, as in `[::1]:19092`. Port 0 (any free port) if `zero_port`."""
    text = _text(value, "HOST:PORT").strip()
    _check_plain(text, "HOST:PORT")
    host, colon, port_text = text.rpartition(":")
    if not colon or text.endswith("]"):
        raise InvalidValue("expected HOST:PORT", _what_is_missing(text))
    host = _without_brackets(host)
    _check_host(host, "HOST:PORT")
    if host == "*" and not zero_port:
        raise InvalidValue("expected HOST:PORT", "'*' is not a host that a client can connect to")
    lowest = 0 if zero_port else 1
    port = _digits(port_text)
    if port is None or not lowest <= port <= MAX_PORT:
        raise InvalidValue("expected HOST:PORT", f"the port is a number from {lowest} to {MAX_PORT}, not {port_text!r}")
    return host, port


def _without_brackets(host: str) -> str:
    """The host of an address, where an IPv6 literal is in brackets and nothing else is."""
    if host.startswith("[") and host.endswith("]"):
        if ":" not in host:
            raise InvalidValue("expected HOST:PORT", "brackets are for IPv6 addresses only, as in [::1]:19092")
        return host[1:-1]
    if ":" in host:
        is_literal = ip_literal(host) is not None or host.startswith("[")
        hint = "put an IPv6 address in brackets, as in [::1]:19092" if is_literal else "one address has one colon"
        raise InvalidValue("expected HOST:PORT", hint)
    return host


def parse_host(value: object) -> str:
    """A host name or IP literal without port; an IPv6 literal may be in brackets."""
    host = _text(value, "HOST").strip()
    _check_plain(host, "HOST")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif host.count(":") == 1:
        raise InvalidValue("expected HOST without a port", "the ports are those of --listen and --broker-ports")
    _check_host(host, "HOST")
    return host


def parse_host_header(value: object) -> str:
    """A host name as in the Host of a request to the admin port, where a pattern would permit DNS rebinding."""
    text = _text(value, "HOST").strip()
    if "*" in text:
        hint = "give each name by which scrapers reach this port; IP addresses are always answered"
        raise InvalidValue("expected HOST", hint)
    host, colon, port = text.rpartition(":")
    if colon and host and ":" not in host and _digits(port) is not None:
        raise InvalidValue("expected HOST without a port", f"write {host}")
    return parse_host(text)


NODE: Final = "{node}"
"""Stands for a node id in the host of `--sni-host`."""
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def parse_sni_host(value: object) -> str:
    """`HOST[:PORT]` in lower case, where the host has `{node}`. Clients send it as server name, so it has a domain and
    is not an address; it has no dot at its end either, because not all clients remove that.
    """
    text = _text(value, "HOST").strip().lower()
    host, colon, port_text = text.partition(":")
    if colon and not 1 <= (_digits(port_text) or 0) <= MAX_PORT:
        raise InvalidValue(
            "expected HOST or HOST:PORT", f"the port is a number from 1 to {MAX_PORT}, not {port_text!r}"
        )
    if host.count(NODE) != 1:
        raise InvalidValue(
            f"expected a host with {NODE} once", f"it stands for a broker's id, as in broker-{NODE}.kafka.example.com"
        )
    labels = host.replace(NODE, str(INT32_MAX)).split(".")
    if len(labels) < 2 or labels[-1].isdigit() or not all(map(_LABEL.fullmatch, labels)) or len(".".join(labels)) > 253:
        end = " and no dot at its end" if host.endswith(".") else ""
        hint = f"letters, digits and hyphens, with a domain{end}, as in broker-{NODE}.kafka.example.com"
        raise InvalidValue("expected a host that clients send as server name", hint)
    return text


def parse_addresses(value: object) -> tuple[Address, ...]:
    """`HOST:PORT[,HOST:PORT...]`, or a list of such texts; repetitions are dropped."""
    parts: list[object] = []
    for item in value if isinstance(value, list) else [value]:
        # Like Kafka's clients, without empty parts between two commas.
        parts += [part for part in _text(item, "HOST:PORT[,HOST:PORT...]").split(",") if part.strip()]
    addresses: dict[Address, None] = {}
    for part in parts:
        several = _SEPARATORS.split(str(part).strip())
        if len(several) > 1:
            raise InvalidValue("expected HOST:PORT[,HOST:PORT...]", f"put commas between servers: {','.join(several)}")
        try:
            addresses[parse_address(part)] = None
        except InvalidValue as error:
            hint = f"{part!r}: {error.hint}" if error.hint else f"one address is {part!r}"
            raise InvalidValue("expected HOST:PORT[,HOST:PORT...]", hint) from error
    if not addresses:
        raise InvalidValue("expected HOST:PORT[,HOST:PORT...], at least one")
    return tuple(addresses)


_SEPARATORS: Final = re.compile(r"\s*[;|\s]\s*")
_URL: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9_+.-]*://)?([^/]*)(?:/.*)?", re.DOTALL)


def _check_plain(text: str, what: str) -> None:
    """Refuse a URL, a listener of Kafka, and an address with the path of ZooKeeper's chroot."""
    url = _URL.fullmatch(text)
    if url is not None and url[1] != text:
        plain = url[1].partition(":")[0] if what == "HOST" else url[1]
        raise InvalidValue(f"expected {what}", f"write {plain or what}, without a scheme and a path")


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
        raise InvalidValue(expected, None if dash or first is None else f"for one broker {text}-{text}")
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
_SIZE_UNITS: Final = {"": 1} | {unit.lower(): factor for unit, factor in UNITS.items()}
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", re.ASCII)


def parse_duration(value: object, lowest: float = 0, highest: float = 86_400) -> float:
    """Seconds, from `20s`, `500ms`, `2m`, `1h` or a plain number of seconds."""
    expected = "expected a duration such as 20s, 500ms or 2m"
    number, factor = _quantity(value, expected, _DURATION_UNITS, "ms, s, m, h")
    if not lowest <= number * factor <= highest:
        raise InvalidValue(expected, f"from {lowest:g}s to {highest:g}s")
    return number * factor


def parse_duration_or_off(value: object, lowest: float = 0) -> float:
    """As `parse_duration`; `off` is 0."""
    if isinstance(value, str) and value.strip().lower() == "off":
        return 0.0
    try:
        return parse_duration(value, lowest)
    except InvalidValue as error:
        raise InvalidValue(f"{error.message}, or off", error.hint) from error


def parse_topic(value: object) -> str:
    """A topic name that brokers accept."""
    name = _text(value, "a topic name").strip()
    check_topic(name)
    return name


def parse_principal(value: object) -> str:
    """The user of a principal: alice, or User:alice as in Kafka's ACLs, but without their wildcard."""
    user = parse_name(value).removeprefix("User:") or parse_name("")
    if user.endswith("*"):
        hint = "give each user, or User:ANONYMOUS for everyone who has not logged in"
        raise InvalidValue("expected a PRINCIPAL, and * matches no one", hint)
    if user.startswith("user:"):
        raise InvalidValue("expected a PRINCIPAL such as User:alice", f"did you mean User:{user[5:]}?")
    return user


def parse_fleet(value: object) -> str:
    """The name of a fleet."""
    name = _text(value, "the name of a fleet").strip()
    if not is_name(name):
        raise InvalidValue(f"expected the name of a fleet: 1 to {MAX_NAME_LENGTH} printable ASCII characters")
    return name


MAX_LABELS: Final = 32
_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def parse_label(value: object) -> tuple[str, str]:
    name, equals, text = _text(value, "NAME=VALUE").partition("=")
    if not equals or not _LABEL_NAME.fullmatch(name):
        raise InvalidValue("expected NAME=VALUE", "the name: at most 64 letters, digits, '.', '_' and '-'")
    if len(text) > 256 or not text.isprintable():
        raise InvalidValue("expected NAME=VALUE", "the value: at most 256 printable characters")
    if re.search(rf",\s*{_LABEL_NAME.pattern}=", text):
        raise InvalidValue("expected one NAME=VALUE", "give each label with its own flag")
    return name, _as_written(text, "expected NAME=VALUE")


def parse_size(value: object, smallest: int = 1) -> int:
    """Bytes, from `256MiB`, `100MB` or a plain number. From `smallest` to 2,147,483,647 (the range of Kafka's length
    field).
    """
    expected = "expected a size such as 104857600, 100MB or 256MiB"
    number, factor = _quantity(value, expected, _SIZE_UNITS, ", ".join(UNITS))
    unit = str(value).strip().lstrip("0123456789.").strip()
    if unit != unit.lower():  # all of 100mb is in lower case, so its b says nothing
        check_bytes(f"{number:g}", unit)
    size = number * factor
    if not size.is_integer() or not smallest <= size <= INT32_MAX:
        raise InvalidValue(expected, f"from {smallest} to {INT32_MAX} bytes")
    return int(size)


_DISK_UNITS: Final = _SIZE_UNITS | {"tb": 10**12, "tib": 2**40}


def parse_disk_marks(value: object) -> DiskMarks:
    """`SOFT..HARD`: used shares of a disk, `85%..95%`, or free bytes, `50GB..20GB`."""
    expected = "expected SOFT..HARD, used shares such as 85%..95%, or free bytes such as 50GB..20GB"
    text = _text(value, "SOFT..HARD").strip()
    marks = [part.strip() for part in text.split("..")]
    if len(marks) != 2 or not all(marks):
        raise InvalidValue(expected, "two marks, with .. between them")
    in_shares = [mark.endswith("%") for mark in marks]
    if in_shares[0] != in_shares[1]:
        raise InvalidValue(expected, "both marks are used shares, or both are free bytes")
    soft, hard = (_mark(mark, expected) for mark in marks)
    if in_shares[0]:
        if not 0 < soft < hard <= 1:
            above = "percentages go up to 100%" if max(soft, hard) > 1 else "SOFT is above 0% and below HARD"
            raise InvalidValue(expected, above)
    elif not soft > hard > 0:
        raise InvalidValue(expected, "with free bytes, SOFT is more than HARD, which is above 0")
    return DiskMarks(soft, hard, text, is_free=not in_shares[0])


def _mark(text: str, expected: str) -> Fraction:
    """A share of 1, or bytes."""
    if text.endswith("%"):
        try:
            return parse_number(text[:-1]) / 100
        except InvalidValue as error:
            raise InvalidValue(expected) from error
    if text[-1].isdigit():
        raise InvalidValue(expected, "a mark has % or a unit of bytes")
    number, factor = _quantity(text, expected, _DISK_UNITS, "GB, TB, GiB, TiB")
    return Fraction(number) * int(factor)


def parse_exempt(value: object) -> Exemption:
    """`user=NAME` or `client-id=NAME`; the name may end with *."""
    kind, _, name = _text(value, "user=NAME or client-id=NAME").partition("=")
    if kind not in {"user", "client-id"} or not name:
        raise InvalidValue("expected user=NAME or client-id=NAME", "NAME may end with *, as in client-id=ops-*")
    parse_pattern(name := _as_written(name, "expected user=NAME or client-id=NAME"))
    return Exemption((name,)) if kind == "user" else Exemption((), (name,))


def parse_bytes_per_second(value: object) -> int:
    """A rate as in quotas, from 1 byte per second."""
    return int(kafka_rate("the rate", parse_rate(value), "LONG"))


SMALLEST_FRACTION: Final = 1e-6
"""With the smallest rate, waits still fit the arithmetic."""


def parse_fraction(value: object) -> float:
    """A number from `SMALLEST_FRACTION` to 1, or `1/N`."""
    expected = "expected a fraction above 0 and at most 1, such as 0.25 or 1/40"
    try:
        above, slash, below = str(value if _is_number(value) else _text(value, "a fraction")).partition("/")
        fraction = float(above) / float(below if slash else 1)
    except (ValueError, ZeroDivisionError) as error:
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


SWITCH_WORDS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0", ""), False),
}


def parse_switch(value: object) -> bool:
    """true or false, on or off, yes or no, 1 or 0."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in SWITCH_WORDS:
        return SWITCH_WORDS[word]
    raise InvalidValue("expected true or false, or on or off")


_SPEC: Final = re.compile(r'(?:"(?:\\.|[^"])*"?|[^";\n])+', re.DOTALL)


def split_specs(text: str) -> list[str]:
    """Several values in one environment variable: split at `;` and at line ends, except inside double quotes."""
    return [part.strip() for part in _SPEC.findall(text) if part.strip()]


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidValue(f"expected {what}, as a quoted string")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _digits(text: str) -> int | None:
    """A number of at most 10 digits, or None."""
    return int(text) if re.fullmatch("[0-9](?:_?[0-9]){0,9}", text) else None


def _quantity(value: object, expected: str, units: Mapping[str, float], allowed: str) -> tuple[float, float]:
    """A number, and the factor of its unit."""
    text = str(value) if _is_number(value) else value
    match = _QUANTITY.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or len(match[1]) > 20:
        raise InvalidValue(expected)
    factor = units.get(match[2].lower())
    if factor is None:
        raise InvalidValue(expected, f"unknown unit {match[2]!r}; allowed: {allowed}")
    return float(match[1]), factor


def _what_is_missing(text: str) -> str | None:
    """For a text without a colon, instead of HOST:PORT."""
    if text.lower() in {"off", "none"}:
        return "it cannot be switched off: 127.0.0.1:0 is any free port, for this host only"
    if _digits(text) is not None:
        return f"the host is missing: 127.0.0.1:{text}"
    return "the port is missing" if text else None


_HOST: Final = re.compile(r"(?:[\w.:%-]|[^\x00-\x7f])+")


def _check_host(host: str, what: str) -> None:
    if not host:
        raise InvalidValue(f"expected {what}", "the host is missing")
    if not (host == "*" or (host.isprintable() and _HOST.fullmatch(host))):
        raise InvalidValue(f"expected {what}", f"{host!r} is not a host name or IP address")
    try:
        host.encode("idna")  # the way resolvers are asked
    except UnicodeError as error:
        hint = f"{host[:100]!r}: each part of a name between two dots has 1 to 63 characters"
        raise InvalidValue(f"expected {what}", hint) from error
