"""Host names to addresses, for quotas of an `ip` that is written as a name."""

import socket

from proxy.config.values import parse_host
from quotas.problems import Refusal


def addresses_of(name: str) -> list[str]:
    """The addresses of a host as literals, those of IPv4 first (as Java has it by default); none if there are none.

    Blocks while the system's resolver is asked.
    """
    try:
        found = socket.getaddrinfo(parse_host(name), None, type=socket.SOCK_STREAM)
    except (Refusal, OSError, UnicodeError):
        return []
    found.sort(key=lambda info: info[0] != socket.AF_INET)
    return [str(info[4][0]) for info in found]
