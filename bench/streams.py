"""One end of a connection that carries a cycle of frames each way: the same code in the load and the null broker.

Raw non-blocking sockets on `select.epoll`. Incoming bytes are thrown away inside the kernel (`MSG_TRUNC` on TCP, see
tcp(7)), so that reading a megabyte costs this end nothing and the thing measured is the peer in the middle.
"""

import select
import socket
import ssl
from collections.abc import Sequence

from bench.shapes import Cycle

#: Most bytes taken from a socket at once. Nothing is ever written into the buffer behind it.
RECEIVE_BYTES = 1 << 20
_DISCARD = bytearray(RECEIVE_BYTES)


class PeerClosedError(Exception):
    """The other end closed, or reset, a connection that should have gone on."""


class TlsEnd:
    """A non-blocking TLS socket with those methods of a plain one that this package calls. Reads go on until nothing is
    left: the event loop does not report what OpenSSL has decrypted.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self.fileno, self.close = sock.fileno, sock.close

    def recv_into(self, buffer: bytearray, size: int, flags: int = 0) -> int:
        """Bytes that were read, of which only the last remain in the buffer."""
        total = 0
        try:
            while more := self._sock.recv_into(buffer, RECEIVE_BYTES):
                total += more
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not total:
                raise BlockingIOError from None
        except ssl.SSLError as error:
            raise ConnectionError(str(error)) from error
        return total

    def recv(self, size: int) -> bytes:
        """One record."""
        try:
            return self._sock.recv(size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLError as error:
            raise ConnectionError(str(error)) from error

    def send(self, data: bytes | memoryview) -> int:
        """All bytes, or BlockingIOError: then the same come again."""
        try:
            return self._sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLError as error:
            raise ConnectionError(str(error)) from error

    def sendmsg(self, parts: Sequence[memoryview]) -> int:
        """As `send`."""
        return self.send(b"".join(parts))


End = socket.socket | TlsEnd


def end_of(sock: socket.socket) -> End:
    """What streams read and write: the socket itself, or with TLS around it."""
    return TlsEnd(sock) if isinstance(sock, ssl.SSLSocket) else sock


class CyclicStream:
    """Counts the whole frames of the cycle `incoming` as they arrive, and sends frames of the cycle `outgoing`.

    `frames` counts the frames that came in; `owed` are the bytes still to be sent. `one_by_one` gives each frame a
    `send` of its own in place of one for all that are due.
    """

    __slots__ = (
        "_epoll",
        "_incoming",
        "_one_by_one",
        "_outgoing",
        "_outgoing_data",
        "_position",
        "_received",
        "_sent_frames",
        "_waits_for_room",
        "frames",
        "owed",
        "sock",
    )

    def __init__(
        self, sock: End, epoll: select.epoll, incoming: Cycle, outgoing: Cycle, *, one_by_one: bool = False
    ) -> None:
        self.sock = sock
        self._epoll = epoll
        self._incoming = incoming
        self._outgoing = outgoing
        self._outgoing_data = memoryview(outgoing.data)
        self._one_by_one = one_by_one
        self._received = 0
        self._sent_frames = 0
        self._position = 0
        self._waits_for_room = False
        self.frames = 0
        self.owed = 0

    def receive(self) -> int:
        """Take what is there; the number of frames that became whole. Raises PeerClosedError."""
        try:
            received = self.sock.recv_into(_DISCARD, 0, socket.MSG_TRUNC)
        except BlockingIOError:
            return 0
        except ConnectionError as error:
            raise PeerClosedError(str(error)) from error
        if not received:
            raise PeerClosedError("end of stream")
        return self.took(received)

    def took(self, received: int) -> int:
        """Account for `received` bytes that were read elsewhere; the number of frames that became whole."""
        self._received += received
        before, self.frames = self.frames, self._incoming.frames_in(self._received)
        return self.frames - before

    def send_frames(self, count: int) -> None:
        """Send `count` more frames, now or as soon as the socket takes them. Raises PeerClosedError."""
        for part in [1] * count if self._one_by_one else [count]:
            first = self._sent_frames
            self._sent_frames = first + part
            self.owed += self._outgoing.bytes_in(first + part) - self._outgoing.bytes_in(first)
            if not self._waits_for_room:
                self.flush()

    def flush(self) -> None:
        """Send what is owed, as far as the socket takes it; epoll reports when there is room again."""
        outgoing, position = self._outgoing_data, self._position
        try:
            while self.owed:
                sent = self.sock.send(outgoing[position : position + self.owed])
                self.owed -= sent
                position += sent
                if position == len(outgoing):
                    position = 0
        except BlockingIOError:
            pass
        except ConnectionError as error:
            raise PeerClosedError(str(error)) from error
        finally:
            self._position = position
        if bool(self.owed) is not self._waits_for_room:
            self._waits_for_room = bool(self.owed)
            events = select.EPOLLIN | (select.EPOLLOUT if self.owed else 0)
            self._epoll.modify(self.sock.fileno(), events)
