"""Reads the PROXY header of connections from load balancers before anything else happens to them."""

import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import islice
from typing import Any, Final

from protocol.errors import InvalidProxyHeader
from protocol.proxy_header import MAX_PROXY_HEADER_SIZE, parse_proxy_header
from proxy.config.addresses import format_address, unmapped
from proxy.config.config import Config
from proxy.observability.metrics import PROXY_HEADER_TIMEOUT
from proxy.sessions.faults import Faults
from quotas.time_units import NS_PER_SECOND

#: The most connections that one call of `expire` closes.
EXPIRED_AT_ONCE: Final = 64

Accepted = Callable[[socket.socket, tuple[Any, ...], int, int], None]


@dataclass(slots=True)
class PartialHeader:
    """A connection whose header is incomplete: its address, the proxy's port, and the bytes read so far."""

    peer: tuple[Any, ...]
    port: int
    since_ns: int
    data: bytes = b""


class ProxyHeaders:
    """Calls ``accepted(socket, peer, port, time_ns)`` when the client's address is known, which took `time_ns`.
    Connections that do not come from ``--proxy-protocol-from`` are accepted at once.

    At most `max_waiting` wait for their header, each for at most ``--handshake-timeout``.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        clock: Callable[[], int],
        config: Config,
        faults: Faults,
        accepted: Accepted,
        max_waiting: int,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._faults = faults
        self._accepted = accepted
        self._networks = config.listening.proxy_protocol_from
        self._max_waiting = max_waiting
        self._timeout_ns = int(config.security.handshake_timeout_seconds * NS_PER_SECOND)
        #: In order of arrival.
        self._waiting: dict[socket.socket, PartialHeader] = {}

    def accept(self, client: socket.socket, peer: tuple[Any, ...], port: int) -> None:
        """Take a new non-blocking socket, its peer, and the port on which it arrived."""
        if not self._networks or not self._is_load_balancer(peer[0]):
            self._accepted(client, peer, port, 0)
        elif len(self._waiting) >= self._max_waiting:
            client.close()
            self._faults.rejected("max_connections", _address_of(peer))
        else:
            self._waiting[client] = PartialHeader(peer, port, self._clock())
            self._loop.add_reader(client.fileno(), self._on_readable, client)

    def expire(self, now_ns: int) -> None:
        """Close connections that have waited too long, oldest first, at most `EXPIRED_AT_ONCE` of them."""
        if not self._timeout_ns:
            return
        for client, waiting in list(islice(self._waiting.items(), EXPIRED_AT_ONCE)):
            if now_ns - waiting.since_ns < self._timeout_ns:
                break
            self._drop(client)
            self._faults.rejected(PROXY_HEADER_TIMEOUT, _address_of(waiting.peer))

    def close(self) -> None:
        """Close all connections that wait for their header."""
        for client in list(self._waiting):
            self._drop(client)

    # ---- inside

    def _is_load_balancer(self, host: str) -> bool:
        address = ip_address(unmapped(host))
        return any(address in network for network in self._networks)

    def _on_readable(self, client: socket.socket) -> None:
        """Read the header and nothing after it, because the rest belongs to the session."""
        waiting = self._waiting[client]
        before = len(waiting.data)
        try:
            data = waiting.data + client.recv(MAX_PROXY_HEADER_SIZE - before, socket.MSG_PEEK)
            header = parse_proxy_header(data)
            if header is None:
                if len(data) == before:
                    raise InvalidProxyHeader("end", before) if before else EOFError
                waiting.data = data
            client.recv((len(data) if header is None else header.size) - before)
        except (BlockingIOError, InterruptedError):
            return
        except InvalidProxyHeader as error:
            self._drop(client)
            self._faults.header(_address_of(waiting.peer), error)
            return
        except (OSError, EOFError):  # reset by the load balancer; a health check ends its stream without a byte
            self._drop(client)
            return
        if header is not None:
            self._forget(client)
            taken_ns = self._clock() - waiting.since_ns
            self._accepted(client, header.source or waiting.peer, waiting.port, taken_ns)

    def _forget(self, client: socket.socket) -> None:
        del self._waiting[client]
        self._loop.remove_reader(client.fileno())

    def _drop(self, client: socket.socket) -> None:
        self._forget(client)
        client.close()


def _address_of(peer: tuple[Any, ...]) -> str:
    return format_address((unmapped(peer[0]), peer[1]))
