"""What the proxy uses of its machine, besides the event loop and files: clocks, randomness, sockets and names.

One `Host` is given to the server when it is made. `simulation` has another one, in virtual time.
"""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import Any

Clock = Callable[[], int]


def tcp_socket(family: int) -> socket.socket:
    """A TCP socket that does not block."""
    return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)


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
    """

    clock: Clock = time.monotonic_ns
    work_clock: Clock = time.thread_time_ns
    wall_clock: Clock = time.time_ns
    random: Random = field(default_factory=SystemRandom)
    name: str = field(default_factory=socket.gethostname)
    new_socket: Callable[[int], socket.socket] = tcp_socket
    addresses_of: Callable[..., list[Any]] = socket.getaddrinfo
