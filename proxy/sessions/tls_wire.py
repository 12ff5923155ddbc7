"""TLS between a pump and a socket: a handshake by turns, then a wire that decrypts and encrypts.

`SSLSocket` reads one record at a time, and a client sends each request in a record of its own. So one read goes on
until nothing is left or no other record fits, to save wake-ups. Only a read that fills the buffer leaves some behind.

A send is taken as a whole or not at all: OpenSSL remembers what it has encrypted, so the next send must begin with the
same bytes, and may go on with more. `Pump.pending` does that.
"""

import errno
import socket
import ssl
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, final

from proxy.sessions.turns import Turns
from proxy.sessions.wire import Wire
from proxy.tls import TlsContexts, failure_of

#: After a read found no second record: reads without asking for one. Asking in vain costs 2 us.
_READS_WITHOUT_MORE: Final = 3
#: Records of one read, which may be of one byte each, and the time of one besides that of its bytes.
_RECORDS_AT_ONCE: Final = 64
_RECORD_NS: Final = 5_000
_LARGEST_RECORD: Final = 16_384
#: Bytes that a client may send after its handshake failed, before it has read why.
_MAX_DISCARDED: Final = 262_144

Failed = Callable[[str, str], None]


class TlsWire(Wire):
    """A connection with TLS, after `open`. `host`: the server's name, with which its certificate must fit; None: this
    side is the server.
    """

    __slots__ = ("_context", "_end", "_handshake", "_host", "_is_shut", "_read", "_skips", "_tls", "_turns", "buffers")

    byte_cost = 4

    _tls: ssl.SSLSocket
    _read: Any

    def __init__(
        self,
        loop: AbstractEventLoop,
        sock: socket.socket,
        turns: Turns,
        context: ssl.SSLContext,
        host: str | None = None,
    ) -> None:
        super().__init__(loop, sock)
        self._turns = turns
        self._context = context
        self._host = host
        self._handshake: Handshake | None = None
        #: What the read after next returns or raises: the end of the stream, which the last read has found already.
        self._end: int | OSError | None = None
        self._skips, self.buffers = 0, False
        #: The end of the stream was sent, or there is none to send.
        self._is_shut = True
        self.recv_into = self._recv_into
        self.send = self._send

    def open(self, done: Callable[[], None], failed: Failed) -> None:
        self._handshake = Handshake(self, self._turns, done, failed)
        if self._host is None:
            self.when_readable(self._handshake.on_ready)
        else:
            self._turns.wait_for_handshake(self._handshake)

    def step(self) -> None:
        """A step of the handshake. Raises OSError, ssl.SSLWantReadError and ssl.SSLWantWriteError among them, and
        EOFError for a client that ended its stream without a byte.
        """
        if not self.has_begun:
            if self.is_server and not self._sock.recv(1, socket.MSG_PEEK):
                raise EOFError
            self._sock = self._tls = self._context.wrap_socket(
                self._sock, server_side=self.is_server, server_hostname=self._host, do_handshake_on_connect=False
            )
            self._read = self._tls.read
        self._tls.do_handshake()
        self._handshake = None
        self._is_shut = False

    def is_opened_by(self, handshake: "Handshake") -> bool:
        """Whether this handshake is under way: the wire has not been closed."""
        return self._handshake is handshake

    @property
    def is_server(self) -> bool:
        return self._host is None

    @property
    def has_begun(self) -> bool:
        """Whether a first step was taken."""
        return isinstance(self._sock, ssl.SSLSocket)

    def discard(self) -> int:
        """Read encrypted bytes and drop them; their number, 0 at the end of the stream. Raises OSError."""
        return len(socket.socket.recv(self._sock, _LARGEST_RECORD))

    @property
    def peer_certificate(self) -> bytes | None:
        return self._tls.getpeercert(binary_form=True)

    # ---- reading and writing

    def _recv_into(self, buffer: Any, size: int) -> int:
        end = self._end
        if end is not None:
            if isinstance(end, OSError):
                raise end
            return end
        try:
            got: int = self._read(size, buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        if self._skips and got < _LARGEST_RECORD:
            self._skips -= 1
        elif got and size - got >= _LARGEST_RECORD:
            return self._read_on(memoryview(buffer), got, size - _LARGEST_RECORD)
        self.buffers = got == size
        return got

    def _read_on(self, view: memoryview, got: int, size: int) -> int:
        """Read after the first `got` bytes, while a whole record has room. Returns the number of all."""
        self._skips, self.buffers = _READS_WITHOUT_MORE, False
        count = 0
        try:
            while got <= size and count < _RECORDS_AT_ONCE:
                count += 1
                more = self._read(_LARGEST_RECORD, view[got:])
                if not more:
                    self._end, self.buffers = 0, True
                    break
                self._skips = 0
                got += more
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            self._end, self.buffers = error, True
        self._turns.used_ns += count * _RECORD_NS
        return got

    def pending(self) -> int:
        return self._tls.pending() if self._end is None else 1

    def _send(self, data: Any) -> int:
        if self._is_shut:  # `SSLSocket` would send plaintext
            raise BrokenPipeError(errno.EPIPE, "the end of the stream was sent")
        try:
            return self._tls.write(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    # ---- the end

    def shutdown(self) -> None:
        """Send no more. What is read later is decrypted as before: `SSLSocket.shutdown` would end that."""
        self._notify()
        with suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_WR)

    def close(self) -> None:
        self._handshake = None
        self.stop_reading()
        self.stop_writing()
        self._notify()
        super().close()

    def _notify(self) -> None:
        """Send TLS's own end of the stream, once. Without it OpenSSL 3 reports a cut connection to the peer."""
        if not self._is_shut:
            self._is_shut = True
            with suppress(OSError, ValueError):  # it waits for the peer's own end; the connection may be broken
                self._tls.unwrap()
                self._end, self.buffers = 0, True


@final
class Handshake:
    """The handshake of a wire: a `Turn`, but no subclass, since that one is compiled and this module is not. Each step
    is an expensive turn: a server's takes 0.6 to 1.4 ms.

    A client whose handshake fails is read, unparsed, until it ends its stream: to close a socket with unread bytes
    would reset the connection, and the client would not see the alert.
    """

    __slots__ = ("_discarded", "_done", "_failed", "_failure", "_turns", "_wire", "is_heavy")

    def __init__(self, wire: TlsWire, turns: Turns, done: Callable[[], None], failed: Failed) -> None:
        self._wire = wire
        self._turns = turns
        self._done = done
        self._failed = failed
        self._failure = ("", "")
        self._discarded = 0
        self.is_heavy = True

    def on_ready(self) -> None:
        """The socket can be read, or written to."""
        self._wire.stop_reading()
        self._wire.stop_writing()
        if self._turns.may_begin(self):
            self.on_turn()
        else:
            self._turns.wait_for_handshake(self)

    def on_turn(self) -> None:
        if not self._wire.is_opened_by(self):
            return
        started_ns = self._turns.clock()
        try:
            self._wire.step()
        except EOFError:
            self._failed("", "")
        except (ssl.SSLWantReadError, BlockingIOError):
            self._wire.when_readable(self.on_ready)
        except ssl.SSLWantWriteError:
            self._wire.when_writable(self.on_ready)
        except (OSError, ValueError) as error:  # ValueError: a name that cannot stand in a certificate
            self._fail(error)
        else:
            self._done()
        self._turns.used(self, self._turns.clock() - started_ns)

    def _fail(self, error: OSError | ValueError) -> None:
        wire = self._wire
        self._failure = failure_of(error, is_server=wire.is_server)
        if wire.is_server and wire.has_begun:
            wire.shutdown()
            wire.when_readable(self._on_discard)
        else:
            self._failed(*self._failure)

    def _on_discard(self) -> None:
        try:
            size = self._wire.discard()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        self._discarded += size
        if not size or self._discarded > _MAX_DISCARDED:
            self._wire.stop_reading()
            self._failed(*self._failure)


@final
class Wires:
    """Makes the wires of new connections, with the contexts that are in force then."""

    __slots__ = ("_contexts", "_loop", "_turns")

    def __init__(self, loop: AbstractEventLoop, turns: Turns, contexts: TlsContexts) -> None:
        self._loop = loop
        self._turns = turns
        self._contexts = contexts

    def to_client(self, sock: socket.socket) -> Wire:
        context = self._contexts.from_clients
        return Wire(self._loop, sock) if context is None else TlsWire(self._loop, sock, self._turns, context)

    def to_broker(self, sock: socket.socket, host: str) -> Wire:
        context = self._contexts.to_brokers
        return Wire(self._loop, sock) if context is None else TlsWire(self._loop, sock, self._turns, context, host)
