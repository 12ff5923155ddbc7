"""Addresses: a host and a port, as text and as a value."""

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = tuple[str, int]
"""A host (name or IP literal, without brackets) and a TCP port."""

Network = IPv4Network | IPv6Network


def ip_literal(host: str) -> IPv4Address | IPv6Address | None:
    """The address, which may be in brackets, as some brokers advertise it; None: the host is a name."""
    try:
        return ip_address(host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host)
    except ValueError:
        return None


def server_name(host: str) -> str:
    """The host as TLS knows it, for the server name of a handshake and the names of a certificate; also to compare
    hosts. The name to resolve is `host` itself.

    A trailing dot only keeps a resolver from trying search domains, a zone (`%eth0`) only chooses an interface, and an
    IPv4 address may be written as an IPv6 one. None of them is in certificates.
    """
    name = host.removesuffix(".").lower()
    literal = ip_literal(name)
    if literal is None:
        return name
    return str(getattr(literal, "ipv4_mapped", None) or literal).partition("%")[0]


def is_loopback(host: str) -> bool:
    """Whether it is `localhost` or one of its addresses."""
    address = ip_literal(name := server_name(host))
    return name == "localhost" if address is None else address.is_loopback


def is_wildcard(host: str) -> bool:
    """Whether the host means every interface: a socket can listen on it, but not connect to it (*, [::], 0.0.0.0)."""
    host = host.removesuffix(".")
    address = ip_literal(host)
    if address is None:
        return host in {"", "*"} or _is_zero(host)
    return (getattr(address, "ipv4_mapped", None) or address).is_unspecified is True


def _is_zero(host: str) -> bool:
    """The way resolvers read addresses: 0, 0.0, 0x0."""
    try:
        return socket.inet_aton(host) == bytes(4)
    except (OSError, UnicodeError):
        return False


def is_of_this_host(host: str) -> bool:
    """Whether an IP literal is that of an interface here: then packets to it have the same source, or a loopback one.
    Nothing is sent. (Binding it would also succeed for other addresses with net.ipv4.ip_nonlocal_bind.)
    """
    address = ip_literal(server_name(host))
    if address is None:
        return False
    try:
        with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.connect((str(address), 9))
            source = ip_literal(sock.getsockname()[0])
    except OSError:  # there is no route to it
        return False
    return source is not None and (source == address or source.is_loopback)


def format_address(address: Address) -> str:
    """`host:port`, with an IPv6 literal in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unmapped(host: str) -> str:
    """An IPv4 address without the `::ffff:` that a socket for both families puts before it."""
    return host.removeprefix("::ffff:") if "." in host else host
