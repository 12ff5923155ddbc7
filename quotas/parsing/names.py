"""The scope of an entry: from what an operator writes to the canonical name of an entity.

user, client-id   any text but the empty one
ip                an address, a host name or a network: canonical, so that "::ffff:10.0.0.1" and "10.0.0.1/32" are
                  "10.0.0.1"
topic             a valid topic name
listener          "bootstrap" (the listener of --listen), or the digits of a port
resource-group    any text but the empty one; there is no default group
total             no name: "true"
"""

import re
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network, IPv6Address, ip_address, ip_network
from typing import Final, TypeAlias

from quotas.entity import DEFAULT, DEFAULT_NAME, EntityKind, Name
from quotas.problems import InvalidValue

Resolve: TypeAlias = Callable[[str], Sequence[str] | None]
"""Resolves a host name to its addresses as literals, best first; empty if it has none, None until it is known."""

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = EntityKind.IP.value
TOPIC: Final = EntityKind.TOPIC.value
RESOURCE_GROUP: Final = EntityKind.RESOURCE_GROUP.value
LISTENER: Final = EntityKind.LISTENER.value
TOTAL_KEY: Final = EntityKind.TOTAL.value
ENTITY_KEYS: Final = (USER, CLIENT_ID, IP, TOPIC, RESOURCE_GROUP, LISTENER, TOTAL_KEY)

MEMBER_KEYS: Final = (USER, CLIENT_ID, TOPIC)
"""The members of a resource group: repeatable there, and only there."""

EXEMPT_USER: Final = "exempt-user"
EXEMPT_CLIENT_ID: Final = "exempt-client-id"
EXEMPT_KEYS: Final = (EXEMPT_USER, EXEMPT_CLIENT_ID)
"""The clients that a topic, a resource group or the total neither charges nor holds: repeatable."""

BOOTSTRAP: Final = "bootstrap"
"""The name of the listener where clients connect first."""

MAX_PORT: Final = 65_535
_MAPPED_BITS: Final = 96
"""The prefix of IPv4 addresses that are mapped into IPv6."""
_TOTAL_WORDS: Final = ("true", "all", "proxy", DEFAULT_NAME)
_NUMBERS: Final = re.compile(r"[0-9.]+", re.ASCII)
_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_MAX_TOPIC_NAME: Final = 249


def entity_name(key: str, value: object, *, real_name: bool, resolve: Resolve | None = None) -> Name:
    """The name of an entity of this key; "" for the total. Raises InvalidValue.

    `real_name`: the value is a name even if it is <default>.
    """
    if key == TOTAL_KEY:
        _check_total(value)
        return ""
    name = _text_of(key, value)
    if name == DEFAULT_NAME and not real_name:
        if key == RESOURCE_GROUP:
            raise InvalidValue("there is no default resource-group", "a group with the member * contains every name")
        return DEFAULT
    if key == IP:
        return _ip_name(name, resolve)
    if key == LISTENER:
        return _listener_name(name)
    if key == TOPIC:
        check_topic(name)
    return name


def _text_of(key: str, value: object) -> str:
    """The name as text, not empty. A listener may be given as the number of its port."""
    if key == LISTENER and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        hint = "each name needs its own table, or all of them a [[resource-group]]" if isinstance(value, list) else None
        raise InvalidValue(f"expected a name in quotes, not {value!r}", hint)
    if not value:
        if key == RESOURCE_GROUP:
            raise InvalidValue("a resource-group needs a name")
        hint = f"{DEFAULT_NAME} matches every name without its own entry; a shell needs single quotes around it"
        raise InvalidValue(f"Empty {key} not supported", hint)  # Kafka's message
    return value


def canonical_ip(text: str) -> str | None:
    """The canonical form of an IPv4 or IPv6 literal, with IPv4-mapped IPv6 as IPv4; None for other text."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def is_host_name(ip: Name) -> bool:
    """Whether the name of an `ip` is a host whose address is not known yet."""
    return isinstance(ip, str) and "/" not in ip and canonical_ip(ip) is None


def _ip_name(text: str, resolve: Resolve | None) -> str:
    """As Kafka does (InetAddress.getByName): a host name is the first of its addresses. Kafka has no networks."""
    if "%" in text:
        hint = f"write {re.sub('%[^/]*', '', text)}"
        raise InvalidValue(f"{text} has a zone, but addresses of connections have none", hint)
    if "/" in text:
        return _network_name(text)
    found = canonical_ip(text)
    if found is None and _NUMBERS.fullmatch(text):  # resolvers read 010.0.0.7 as 8.0.0.7, and 10.7 as 10.0.0.7
        raise InvalidValue(f"{text} is not a valid IP or resolvable host.", "write four numbers without leading zeros")
    if found is None and resolve is not None:
        addresses = resolve(text)
        if addresses is None:
            return text.lower()
        found = next((ip for ip in map(canonical_ip, addresses) if ip is not None), None)
    if found is None:
        message = f"{text} is not a valid IP or resolvable host."  # Kafka's
        raise InvalidValue(message, may_pass=resolve is not None)
    return found


def _network_name(text: str) -> str:
    """The canonical name of a network; of one that is a single address, that of the address."""
    address, _, length = text.partition("/")
    try:
        network = ip_network(text, strict=False)
        has_host_bits = ip_address(address) != network.network_address
    except ValueError as error:
        raise InvalidValue(f"{text} is not a valid network", "for example 10.1.0.0/16 or 2001:db8::/32") from error
    mapped = network.network_address.ipv4_mapped if isinstance(network.network_address, IPv6Address) else None
    if mapped is not None and network.prefixlen >= _MAPPED_BITS:
        network = IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))
    if has_host_bits or not length.isdigit():
        what = "host bits set" if has_host_bits else "a netmask instead of a prefix length"
        raise InvalidValue(f"{text} has {what}", f"did you mean {network}?")
    return str(network if network.num_addresses > 1 else network.network_address)


def _listener_name(text: str) -> str:
    if text == BOOTSTRAP:
        return text
    host, colon, digits = text.rpartition(":")
    host_is_sane = bool(host) and (":" not in host or (host.startswith("[") and host.endswith("]")))
    if (not colon or host_is_sane) and re.fullmatch(r"[0-9]{1,5}", digits, re.ASCII):
        port = int(digits)
        if 1 <= port <= MAX_PORT:
            return str(port)
    raise InvalidValue(
        f"expected {BOOTSTRAP}, a port, HOST:PORT or {DEFAULT_NAME}, not {text!r}",
        f"{BOOTSTRAP} is the listener of --listen; each broker has its own port",
    )


def check_topic(name: str) -> None:
    """Kafka's rules and messages (org.apache.kafka.common.internals.Topic)."""
    if name in {".", ".."}:
        raise InvalidValue("Topic name is invalid: '.' or '..' is not allowed")
    if len(name) > _MAX_TOPIC_NAME:
        raise InvalidValue(
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {_MAX_TOPIC_NAME}"
        )
    if not _TOPIC_NAME.fullmatch(name):
        hint = "a prefix with * is only allowed in a resource-group" if name.endswith("*") else None
        raise InvalidValue(
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' "
            "and '-'",
            hint,
        )


def _check_total(value: object) -> None:
    if value is True or value in _TOTAL_WORDS:
        return
    hint = "the total has no name: write total=true, and its limits as separate keys"
    if isinstance(value, str | int | float) and re.match(r"[0-9.]+", str(value)):
        hint += f", as in total=true,producer_byte_rate={value}"
    raise InvalidValue(f"expected total=true, not {value!r}", hint)
