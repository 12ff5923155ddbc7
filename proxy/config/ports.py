"""The ports and hosts of a configuration: their defaults, and that no port is used twice."""

from typing import Final

from proxy.config.config import Address, format_address, is_wildcard
from proxy.config.given import Given
from proxy.config.values import MAX_PORT
from quotas.problems import Problem

DEFAULT_BROKER_PORTS: Final = 20

_Use = tuple[str, range]
"""The place of an option, and its ports."""


def ports_of(given: Given, servers: tuple[Address, ...]) -> tuple[range | None, dict[int, int]] | None:
    """The ports of brokers, None: the kernel chooses them, and the port of each node with one of its own. None: there
    are too few ports. Each port must have one use; `servers` are the bootstrap servers.
    """
    listen: Address = given.get("listen")
    ports: range | None = given.get("broker_ports")
    default = ""
    if ports is None and listen[1] > 0:
        ports = range(listen[1] + 1, listen[1] + 1 + DEFAULT_BROKER_PORTS)
        default = f" (the default: the {DEFAULT_BROKER_PORTS} ports after the listen port)"
        if ports[-1] > MAX_PORT:
            message = f"has fewer than {DEFAULT_BROKER_PORTS} ports after it"
            given.refuse("listen", format_address(listen), message, "give --broker-ports FIRST-LAST")
            return None
    pairs: tuple[tuple[int, int], ...] = given.get("broker_port")
    nodes = dict(reversed(pairs))
    uses = [(given.place("listen", format_address(listen)), _one(listen[1]))]
    in_range: list[_Use] = []
    if ports:
        in_range = [(f"--broker-ports {ports[0]}-{ports[-1]}{default}", ports)]
        given.problems += _taken(in_range[0], uses)
    for node, port in pairs:  # it may be one of the range
        use = (given.place("broker_port", f"{node}={port}"), _one(port))
        if nodes[node] != port:
            given.problems.append(Problem(use[0], f"node {node} has a port already: {nodes[node]}"))
        given.problems += _taken(use, uses)
        uses.append(use)
    uses += in_range
    _check_upstream(given, servers, {port for _, each in uses for port in each})
    metrics: Address | None = given.get("metrics_listen")
    if metrics and _same_interface(metrics[0], listen[0]):
        given.problems += _taken((given.place("metrics_listen", format_address(metrics)), _one(metrics[1])), uses)
    return ports or None, nodes


def _one(port: int) -> range:
    """Empty for port 0: the kernel chooses it."""
    return range(port, port + 1) if port else range(0)


def _taken(use: _Use, others: list[_Use]) -> list[Problem]:
    """A problem if one of these ports has another use."""
    place, ports = use
    clashes = [(port, other) for other, theirs in others for port in theirs if port in ports]
    return [Problem(place, f"port {port} is that of {other}", "each needs its own") for port, other in clashes[:1]]


def _check_upstream(given: Given, servers: tuple[Address, ...], own_ports: set[int]) -> None:
    """Refuse a bootstrap server that is this proxy itself: connections would loop."""
    listen: Address = given.get("listen")
    own_hosts = [listen[0], given.get("advertised_host") or listen[0]]
    if is_wildcard(listen[0]):
        own_hosts.append("localhost")
    of_usage: tuple[Address, ...] = given.get("usage_bootstrap_servers") or ()
    for name, addresses in (("bootstrap_servers", servers), ("usage_bootstrap_servers", of_usage)):
        for host, port in addresses:
            if port in own_ports and any(_same_host(host, own) for own in own_hosts):
                hint = "give the real brokers here, and the address of --listen to clients"
                given.refuse(name, format_address((host, port)), "is a port of this proxy itself", hint)


def advertised_host_of(given: Given) -> str:
    """By default the listen host; one that clients can connect to."""
    listen: Address = given.get("listen")
    advertised: str | None = given.get("advertised_host")
    if advertised is None:
        if is_wildcard(listen[0]) and "advertised_host" not in given.wrong:
            given.refuse(
                "listen",
                format_address(listen),
                "needs --advertised-host HOST",
                "responses name this host as that of every broker, and a client cannot connect to "
                f"{listen[0]!r}: give the host name or IP address by which clients reach this proxy",
            )
        return listen[0]
    if is_wildcard(advertised):
        hint = "give the host name or IP address by which clients reach this proxy"
        given.refuse("advertised_host", advertised, "is not an address that clients can connect to", hint)
    return advertised


_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def _same_interface(one: str, other: str) -> bool:
    """Whether the same port cannot be bound on both."""
    return is_wildcard(one) or is_wildcard(other) or _same_host(one, other)


def _same_host(one: str, other: str) -> bool:
    return one.lower() == other.lower() or {one.lower(), other.lower()} <= _LOOPBACK_NAMES
