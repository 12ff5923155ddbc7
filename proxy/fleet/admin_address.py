"""Where the admin port of a member can be reached: what a member advertises, and what others make of it."""

import asyncio
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from proxy.background.threads import OutsideThreads
from proxy.config.addresses import Address, format_address, ip_literal, is_wildcard
from proxy.config.config import Config
from proxy.config.values import parse_address
from quotas.fleet.record import MAX_FACT_LENGTH, Facts
from quotas.fleet.roster import OwnFacts
from quotas.problems import InvalidValue

FACT: Final = "admin"
_AGAIN_SECONDS: Final = 60.0


async def advertise(facts: OwnFacts, config: Config, port: int) -> None:
    """Advertise `--fleet-admin-address`, or the address of `--metrics-listen`. If that is every interface, it is this
    host's address towards the bootstrap servers: in Kubernetes, the pod's.
    """
    listen = config.observability.metrics_listen[0]
    address = config.fleet.admin_address or (listen, port)
    if is_wildcard(address[0]):
        threads, loop = OutsideThreads("admin_address"), asyncio.get_running_loop()
        family = socket.AF_INET if ":" not in listen else socket.AF_UNSPEC
        while True:
            host = await loop.run_in_executor(threads, own_host, config.bootstrap_servers, family)
            if host:
                break
            await asyncio.sleep(_AGAIN_SECONDS)
        address = host, port
    text = format_address(address)
    if len(text) <= MAX_FACT_LENGTH:
        facts[FACT] = text


def own_host(servers: Iterable[Address], family: socket.AddressFamily) -> str:
    """The address of this host on the way to the first of these servers that can be resolved; "" if none can. Nothing
    is sent, but a resolver may take long.
    """
    for host, port in servers:
        with suppress(OSError, UnicodeError):
            found, *_, target = socket.getaddrinfo(host, port, family, socket.SOCK_DGRAM)[0]
            with socket.socket(found, socket.SOCK_DGRAM) as sock:
                sock.connect(target)
                return str(sock.getsockname()[0])
    return ""


def address_of(facts: Facts) -> Address | None:
    """What a member has advertised, if someone else may connect to it. Anyone who can write to the topic can write
    anything there.
    """
    text = facts.get(FACT)
    try:
        address = parse_address(text) if isinstance(text, str) and text.isprintable() else None
    except InvalidValue:
        return None
    return None if address is None or not may_be_asked(address[0]) else address


def may_be_asked(host: str) -> bool:
    """Not an address that means every interface or several hosts, and not a link-local one, where clouds answer with
    credentials.
    """
    literal = ip_literal(host)
    literal = getattr(literal, "ipv4_mapped", None) or literal
    return not is_wildcard(host) and (literal is None or not (literal.is_link_local or literal.is_multicast))
