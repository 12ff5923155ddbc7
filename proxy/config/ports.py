"""The ports and hosts of a configuration: their defaults, and that no port is used twice."""

from collections.abc import Mapping, Sequence, Set
from typing import Final

from proxy.config.addresses import Address, format_address, is_wildcard, server_name
from proxy.config.config import ListeningOptions
from proxy.config.connections import ssl_of
from proxy.config.given import Given
from proxy.config.values import MAX_PORT
from quotas.problems import Problem

DEFAULT_BROKER_PORTS: Final = 20

Servers = Mapping[str, tuple[Address, ...]]
"""Addresses of brokers, by the option that they are of."""


def listening_of(given: Given, servers: Servers) -> ListeningOptions:
    """Where clients connect."""
    broker_ports, node_ports = None, dict[int, int]()
    if given.get("sni_host") is not None:
        _check_sni(given)
    if given.wrong.isdisjoint({"listen", "broker_ports", "broker_port"}):
        broker_ports, node_ports = _ports_of(given, servers)
    return given.made(
        ListeningOptions,
        broker_ports=broker_ports,
        node_ports=node_ports,
        advertised_host=_advertised_host_of(given),
        ssl=ssl_of(given),
    )


def _ports_of(given: Given, servers: Servers) -> tuple[range | None, dict[int, int]]:
    """The ports of brokers, or None if the kernel chooses them; and the port of each node that has its own. A port can
    only be used once.
    """
    listen: Address = given.get("listen")
    is_one = given.get("sni_host") is not None
    ports, default = (range(0), "") if is_one else _range_of(given, listen)
    if ports and ports[-1] > MAX_PORT:
        message = f"has fewer than {DEFAULT_BROKER_PORTS} ports after it"
        given.refuse("listen", format_address(listen), message, "give --broker-ports FIRST-LAST")
        return None, {}
    if given.get("reuse_port"):
        _check_shared(given, listen, None if is_one else ports)
    pairs: tuple[tuple[int, int], ...] = given.get("broker_port")
    nodes = dict(reversed(pairs))
    uses: dict[int, str] = {}
    _use(given, given.place("listen", format_address(listen)), [listen[1]], uses)
    of_range = uses.copy()  # that of a node may be one of these
    if ports:
        _use(given, f"--broker-ports {ports[0]}-{ports[-1]}{default}", ports, of_range)
    _use_pairs(given, pairs, nodes, uses)
    uses = of_range | uses
    _check_upstream(given, servers, uses.keys())
    metrics: Address | None = given.get("metrics_listen")
    if metrics and _same_interface(metrics[0], listen[0]):
        _use(given, given.place("metrics_listen", format_address(metrics)), [metrics[1]], uses)
    return ports if ports or is_one else None, nodes


def _use_pairs(given: Given, pairs: Sequence[tuple[int, int]], nodes: dict[int, int], uses: dict[int, str]) -> None:
    """The ports of single nodes."""
    for node, port in pairs:
        place = given.place("broker_port", f"{node}={port}")
        if nodes[node] != port:
            given.problems.append(Problem(place, f"node {node} already has a port: {nodes[node]}"))
        _use(given, place, [port], uses)


def _range_of(given: Given, listen: Address) -> tuple[range | None, str]:
    """The ports of brokers, and what to call them if no option sets them."""
    ports: range | None = given.get("broker_ports")
    if ports is not None or not listen[1]:
        return ports, ""
    ports = range(listen[1] + 1, listen[1] + 1 + DEFAULT_BROKER_PORTS)
    return ports, f" (the default: the {DEFAULT_BROKER_PORTS} ports after the listen port)"


def _check_sni(given: Given) -> None:
    """One port for all brokers, with TLS."""
    sni_host = given.get("sni_host")
    if given.params["ssl_certificate_location"] is None and "ssl_certificate_location" not in given.wrong:
        hint = "give --ssl-certificate-location: the server name of a client's handshake selects the broker"
        given.refuse("sni_host", sni_host, "needs TLS from clients", hint)
    for flag in ("--broker-ports", "--broker-port"):
        if given.params[flag[2:].replace("-", "_")] not in (None, ()):
            given.refuse("sni_host", sni_host, f"and {flag} are both set", "with the first, all brokers have one port")


def _check_shared(given: Given, listen: Address, ports: range | None) -> None:
    """Refuse ports that would differ between processes."""
    for name, value, is_chosen in (
        ("listen", format_address(listen), not listen[1]),
        ("broker_ports", "0", ports is not None and not ports),
    ):
        if is_chosen:
            given.refuse(name, value, "cannot be shared with --reuse-port: the kernel chooses it", "give fixed ports")


def _use(given: Given, place: str, ports: Sequence[int], uses: dict[int, str]) -> None:
    """Add the use of ports, by the place of their option; a problem if one has another. 0: the kernel chooses it."""
    clash = next((port for port in ports if port in uses), None)
    if clash is not None:
        given.problems.append(Problem(place, f"port {clash} is that of {uses[clash]}", "each needs its own"))
    uses.update({port: place for port in ports if port and port not in uses})


def _check_upstream(given: Given, servers: Servers, own_ports: Set[int]) -> None:
    """Refuse a bootstrap server that is this proxy itself: connections would loop."""
    listen: Address = given.get("listen")
    own_hosts = [listen[0], given.get("advertised_host") or listen[0]]
    if is_wildcard(listen[0]):
        own_hosts.append("localhost")
    places = {address: name for name in reversed(list(servers)) for address in servers[name]}
    for (host, port), name in places.items():
        if port in own_ports and any(same_host(host, own) for own in own_hosts):
            hint = "give the real brokers here, and the address of --listen to clients"
            given.refuse(name, format_address((host, port)), "is a port of this proxy itself", hint)


def _advertised_host_of(given: Given) -> str | None:
    """By default the listen host; one that clients can connect to. None: it is not known, or wrong."""
    listen: Address | None = given.get("listen")
    if listen is None:
        return None
    advertised: str | None = given.get("advertised_host")
    if advertised is None:
        if is_wildcard(listen[0]) and given.get("sni_host") is None and given.wrong.isdisjoint(_HOSTS):
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


_HOSTS: Final = frozenset({"advertised_host", "sni_host"})
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def _same_interface(one: str, other: str) -> bool:
    """Whether the same port cannot be bound on both."""
    return is_wildcard(one) or is_wildcard(other) or same_host(one, other)


def same_host(one: str, other: str) -> bool:
    names = {server_name(one), server_name(other)}
    return len(names) == 1 or names <= _LOOPBACK_NAMES
