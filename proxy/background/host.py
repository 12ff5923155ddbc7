"""What the proxy uses of its machine, besides the event loop and files: clocks, randomness, sockets and names.

One `Host` is given to the server when it is made. `simulation` has another one, in virtual time.
"""

import errno
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import Any

Clock = Callable[[], int]
#: Of connections that nobody accepted yet.
BACKLOG = 4_096


def tcp_socket(family: int) -> socket.socket:
    """A TCP socket that does not block."""
    return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)


def listening_socket(
    address: tuple[str, int], new_socket: Callable[[int], socket.socket] = tcp_socket, *, reuse_port: bool = False
) -> socket.socket:
    """A non-blocking socket that is bound and listens. `*` and `[::]` mean all interfaces, for IPv6 and IPv4 whatever
    the host's net.ipv6.bindv6only is; without IPv6, for IPv4 only. Raises OSError.
    """
    host, port = address
    if host in {"*", "::"}:
        try:
            return _listening(new_socket(socket.AF_INET6), ("::", port), reuse_port=reuse_port)
        except OSError as error:
            if error.errno not in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}:
                raise
            return _listening(new_socket(socket.AF_INET), ("0.0.0.0", port), reuse_port=reuse_port)  # noqa: S104 - was asked for
    family, _, _, _, at = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return _listening(new_socket(family), at, reuse_port=reuse_port)


def _listening(sock: socket.socket, at: tuple[Any, ...], *, reuse_port: bool) -> socket.socket:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
        # On Linux, accepted sockets inherit both options, which saves two system calls for each connection.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if at[0] == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(at)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


@dataclass(frozen=True, slots=True)
class Host:
    """All clocks return nanoseconds.

    clock           monotonic: of quotas and timeouts
    work_clock      CPU time of the thread
    wall_clock      since 1970, UTC
    random          for pauses, ids and salts
    name            the host's name
    new_socket      a TCP socket of an address family that does not block
    addresses_of    like `socket.getaddrinfo`; blocks
    descriptors     the limit on open files; None: there is none
    """

    clock: Clock = time.monotonic_ns
    work_clock: Clock = time.thread_time_ns
    wall_clock: Clock = time.time_ns
    random: Random = field(default_factory=SystemRandom)
    name: str = field(default_factory=socket.gethostname)
    new_socket: Callable[[int], socket.socket] = tcp_socket
    addresses_of: Callable[..., list[Any]] = socket.getaddrinfo
    descriptors: int | None = None
