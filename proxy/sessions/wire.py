"""The interface between a pump and a socket. The plain wire exposes the socket's own methods; `tls_wire` adds TLS.

Call `remove_reader` and `remove_writer` before `close`; otherwise libuv aborts the process.
"""

import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import Any, Final

#: The values of tcpi_state, the first byte of Linux's TCP_INFO, while the peer has not ended its stream: established,
#: ended by this side (FIN_WAIT1, FIN_WAIT2), or unknown.
_TCP_OPEN: Final = frozenset({b"\x01", b"\x04", b"\x05", b""})
_TCP_CLOSE: Final = b"\x07"
#: tcpi_bytes_acked and tcpi_bytes_received of TCP_INFO, since Linux 4.1.
_TRAFFIC_AT: Final = 120
_unpack_traffic: Final = Struct("=QQ")
#: tcpi_unacked, and tcpi_notsent_bytes of TCP_INFO, since Linux 4.6.
_unpack_unsent: Final = Struct("=24xI116xI")


class Wire:
    """A plaintext connection. Each has one reader and one writer at a time.

    ``recv_into(buffer, size)``   like a socket's: returns how many bytes were read, 0 at the end of the stream
    ``send(data)``                like a socket's: returns how many bytes were taken
    Both raise BlockingIOError if nothing can be read or taken now, and OSError if the connection is broken.
    """

    __slots__ = (
        "_is_read",
        "_is_written",
        "_loop",
        "_sock",
        "buffers",
        "fd",
        "recv_into",
        "send",
        "server_name",
    )

    recv_into: Callable[[Any, int], int]
    send: Callable[[Any], int]
    #: Whether `recv_into` has more bytes that were received earlier, which the event loop does not report.
    buffers: bool
    #: What a byte costs in addition to its way through the kernel, in quarters of a nanosecond.
    byte_cost = 0
    #: The host name in the client's TLS handshake (SNI), neither checked nor normalized; None: it has no name.
    server_name: str | None

    def __init__(self, loop: AbstractEventLoop, sock: socket.socket) -> None:
        self._loop = loop
        self._sock = sock
        self._is_read = False
        self._is_written = False
        self.buffers = False
        self.server_name = None
        self.fd = sock.fileno()
        self.recv_into = sock.recv_into
        self.send = sock.send

    def open(self, done: Callable[[], None], failed: Callable[[str, str], None]) -> None:
        """Call `done` when bytes can be read and sent, or `failed` with a reason and a sentence. Neither if closed."""
        done()

    @property
    def peer_certificate(self) -> bytes | None:
        """The peer's certificate, as DER, if it was verified."""
        return None

    def when_readable(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever something can be read, until `stop_reading`."""
        self._is_read = True
        self._loop.add_reader(self.fd, callback)

    def stop_reading(self) -> None:
        if self._is_read:
            self._is_read = False
            self._loop.remove_reader(self.fd)

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever something can be written, until `stop_writing`."""
        self._is_written = True
        self._loop.add_writer(self.fd, callback)

    def stop_writing(self) -> None:
        if self._is_written:
            self._is_written = False
            self._loop.remove_writer(self.fd)

    def shutdown(self) -> None:
        """Send nothing more, so that the peer reads the end of the stream."""
        with suppress(OSError):  # the connection has gone, and the next read reports that
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Leave the loop and close the socket."""
        self.stop_reading()
        self.stop_writing()
        self._sock.close()

    @property
    def peer_has_gone(self) -> bool:
        """Whether the peer has ended its stream, or closed or reset the connection, even if data before that has not
        been read. TCP cannot tell an ended stream from a closed connection.
        """
        return tcp_info(self._sock, 1) not in _TCP_OPEN

    @property
    def traffic_bytes(self) -> int | None:
        """How many bytes have been received from the peer or acknowledged by it since the connection was opened. None
        on systems other than Linux, and on kernels that do not count them.
        """
        size = _TRAFFIC_AT + _unpack_traffic.size
        fields = tcp_info(self._sock, size)
        return sum(_unpack_traffic.unpack_from(fields, _TRAFFIC_AT)) if len(fields) == size else None

    @property
    def is_flushed(self) -> bool:
        """Whether the peer has received everything that was sent. False if the system does not report it."""
        fields = tcp_info(self._sock, _unpack_unsent.size)
        return len(fields) == _unpack_unsent.size and not any(_unpack_unsent.unpack(fields))

    @property
    def is_broken(self) -> bool:
        """Whether the connection has ended in both directions."""
        return tcp_info(self._sock, 1) == _TCP_CLOSE


def tcp_info(sock: socket.socket, size: int) -> bytes:
    """The first `size` bytes of Linux's tcp_info (0.5 us), or fewer; empty on other systems."""
    option: int | None = getattr(socket, "TCP_INFO", None)
    return b"" if option is None else sock.getsockopt(socket.IPPROTO_TCP, option, size)
