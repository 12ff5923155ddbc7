"""Asks a page of a proxy, the way `curl` does."""

from collections.abc import Callable
from contextlib import suppress

from simulation.kernel import Kernel
from simulation.network import Network, SimSocket

HOST = "10.0.4.1"
SECONDS = 30.0


def ask(network: Network, host: str, port: int, path: str, answered: Callable[[str], object]) -> None:
    """Calls `answered` with the body of the page, once, if it comes."""
    sock = SimSocket(network, HOST)
    received = bytearray()
    has_asked = False

    def on_ready() -> None:
        nonlocal has_asked
        if not has_asked and sock.peer is not None:
            has_asked = True
            head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
            sock.send(head.encode())
        try:
            while data := sock.recv(65_536):
                received.extend(data)
        except OSError:
            return
        sock.close()
        answered(received.partition(b"\r\n\r\n")[2].decode())

    sock.on_ready = on_ready
    with suppress(BlockingIOError):
        sock.connect((host, port))


def get(kernel: Kernel, network: Network, host: str, port: int, path: str) -> str:
    """The body of the page; empty if there is none within `SECONDS`. Time passes."""
    found: list[str] = []
    ask(network, host, port, path, found.append)
    kernel.run(SECONDS, lambda: bool(found))
    return found[0] if found else ""
