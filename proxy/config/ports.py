"""The ports and hosts of a configuration: their defaults, and that no port is used twice.

Each function reads the parsed options in `given`, by name, sets values derived from them, and yields
problems.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from proxy.config.config import Address, format_address, is_wildcard
from proxy.config.option_types import Invalid, place_of
from proxy.config.values import MAX_PORT
from quotas.problems import Problem

DEFAULT_BROKER_PORTS: Final = 20

_Use = tuple[str, range]
"""The place of an option, and its ports."""


def take_ports(ctx: click.Context, given: dict[str, Any]) -> Iterator[Problem]:
    """Set `broker_ports` and `broker_port`, port by node, and check that each port has one use."""
    listen: Address = given["listen"]
    ports: range | None = given.get("broker_ports")
    is_default = ctx.params.get("broker_ports") is None
    if ports is None and listen[1] > 0:
        ports = range(listen[1] + 1, listen[1] + 1 + DEFAULT_BROKER_PORTS)
        if ports[-1] > MAX_PORT:
            message = f"has fewer than {DEFAULT_BROKER_PORTS} ports after it"
            yield Problem(place_of(ctx, "listen", format_address(listen)), message, "give --broker-ports FIRST-LAST")
            return
    given["broker_ports"] = ports or None
    pairs: tuple[tuple[int, int], ...] = given.get("broker_port", ())
    given["broker_port"] = nodes = dict(reversed(pairs))
    uses = [(place_of(ctx, "listen", format_address(listen)), _one(listen[1]))]
    in_range: list[_Use] = []
    if ports:
        default = f" (the default: the {DEFAULT_BROKER_PORTS} ports after the listen port)" if is_default else ""
        in_range = [(f"--broker-ports {ports[0]}-{ports[-1]}{default}", ports)]
        yield from _taken(in_range[0], uses)
    for node, port in pairs:  # it may be one of the range
        use = (place_of(ctx, "broker_port", f"{node}={port}"), _one(port))
        if nodes[node] != port:
            yield Problem(use[0], f"node {node} has a port already: {nodes[node]}")
        yield from _taken(use, uses)
        uses.append(use)
    yield from _check_others(ctx, given, uses + in_range)


def _check_others(ctx: click.Context, given: Mapping[str, Any], uses: list[_Use]) -> Iterator[Problem]:
    yield from _check_upstream(ctx, given, {port for _, each in uses for port in each})
    metrics: Address | None = given.get("metrics_listen")
    if metrics and _same_interface(metrics[0], given["listen"][0]):
        yield from _taken((place_of(ctx, "metrics_listen", format_address(metrics)), _one(metrics[1])), uses)


def _one(port: int) -> range:
    """Empty for port 0: the kernel chooses it."""
    return range(port, port + 1) if port else range(0)


def _taken(use: _Use, others: list[_Use]) -> list[Problem]:
    """A problem if one of these ports has another use."""
    place, ports = use
    clashes = [(port, other) for other, theirs in others for port in theirs if port in ports]
    return [Problem(place, f"port {port} is that of {other}", "each needs its own") for port, other in clashes[:1]]


def _check_upstream(ctx: click.Context, given: Mapping[str, Any], own_ports: set[int]) -> Iterator[Problem]:
    """A bootstrap server that is this proxy itself: connections would loop."""
    listen: Address = given["listen"]
    own_hosts = [listen[0], given.get("advertised_host") or listen[0]]
    if is_wildcard(listen[0]):
        own_hosts.append("localhost")
    found = [(name, *each) for name in ("bootstrap_servers", "usage_bootstrap_servers") for each in given.get(name, ())]
    for name, host, port in found:
        if port in own_ports and any(_same_host(host, own) for own in own_hosts):
            yield Problem(
                place_of(ctx, name, format_address((host, port))),
                "is a port of this proxy itself",
                "give the real brokers here, and the address of --listen to clients",
            )


def take_advertised_host(ctx: click.Context, given: dict[str, Any]) -> Iterator[Problem]:
    """Set `advertised_host`, by default to the listen host, and check that a client can connect to it."""
    listen: Address = given["listen"]
    advertised: str | None = given.get("advertised_host")
    if advertised is None:
        if is_wildcard(listen[0]) and not isinstance(ctx.params.get("advertised_host"), Invalid):
            yield Problem(
                place_of(ctx, "listen", format_address(listen)),
                "needs --advertised-host HOST",
                "responses name this host as that of every broker, and a client cannot connect to "
                f"{listen[0]!r}: give the host name or IP address by which clients reach this proxy",
            )
        given["advertised_host"] = listen[0]
    elif is_wildcard(advertised):
        yield Problem(
            place_of(ctx, "advertised_host", advertised),
            "is not an address that clients can connect to",
            "give the host name or IP address by which clients reach this proxy",
        )


_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def _same_interface(one: str, other: str) -> bool:
    """Whether the same port cannot be bound on both."""
    return is_wildcard(one) or is_wildcard(other) or _same_host(one, other)


def _same_host(one: str, other: str) -> bool:
    return one.lower() == other.lower() or {one.lower(), other.lower()} <= _LOOPBACK_NAMES
