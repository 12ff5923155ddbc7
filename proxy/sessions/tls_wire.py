"""TLS between a pump and a socket: a handshake in slices, then a wire that decrypts and encrypts.

OpenSSL reads from memory instead of the socket, and receives only as much as one slice may take: on its own, it would
keep reading for as long as records without data arrive (TLS 1.3's KeyUpdate). The wire receives and sends many records
at once.

A byte counts as sent when its record has left. If the socket takes only a part of a record, the rest is kept, so the
next send must begin with the same bytes, but may have more. `Writer.pending` ensures that.
"""

import socket
import ssl
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, final

from proxy.files.tls import TlsContexts, failure_of
from proxy.sessions.slices import Slices
from proxy.sessions.wire import Wire
from proxy.streams.memory import aligned

#: The most records of one read, which may have one byte each, and what a record costs in addition to its bytes.
_RECORDS_AT_ONCE: Final = 64
_RECORD_NS: Final = 3_000
#: How much OpenSSL is given at once: the largest record, with its header.
_LARGEST_RECORD: Final = 16_384 + 320
#: The most bytes of one `recv`, and the most that are encrypted for one `send`.
_AT_ONCE: Final = 262_144
#: How many bytes a client may send after its handshake has failed, before it has read the alert.
_MAX_DISCARDED: Final = 262_144

Failed = Callable[[str, str], None]


class TlsWire(Wire):
    """A connection with TLS, after `open`. `host`: the server's name, which its certificate must match; None: this side
    is the server.

    handshake   None once it has succeeded, or when the wire is closed
    _rest       encrypted bytes that OpenSSL has not received
    _unsent     encrypted bytes that the socket did not take. They are the first `_owed` bytes of the next send
    _end        how the stream ended, after the bytes that the last read returned
    """

    __slots__ = ("_context", "_end", "_host", "_owed", "_rest", "_shared", "_tls", "_unsent", "handshake")

    byte_cost = 4

    def __init__(self, shared: "Wires", sock: socket.socket, context: ssl.SSLContext, host: str | None = None) -> None:
        super().__init__(shared.loop, sock)
        self._shared = shared
        self._context = context
        self._host = host
        self._tls: Any = None
        self.handshake: Handshake | None = None
        self._rest = self._unsent = b""
        self._owed = 0
        self._end: OSError | None = None
        self.recv_into = self._recv_into
        self.send = self._send

    def open(self, done: Callable[[], None], failed: Failed) -> None:
        self.handshake = Handshake(self, self._shared.slices, done, failed)
        if self.is_server:
            self.when_readable(self.handshake.on_ready)
        else:
            self._shared.slices.wait_for_handshake(self.handshake)

    def step(self) -> None:
        """Take one step of the handshake. Raises OSError, including ssl.SSLWantReadError and ssl.SSLWantWriteError, and
        EOFError if the client ended its stream without sending a byte.
        """
        shared = self._shared
        with suppress(BlockingIOError):
            received = self._sock.recv(_LARGEST_RECORD)
            if not received:
                raise ConnectionResetError if self.has_begun or not self.is_server else EOFError
            self._rest += received
        if not self.has_begun:
            self._tls = self._context.wrap_bio(shared.incoming, shared.outgoing, self.is_server, self._host)
        is_done = is_sent = False
        # All wires share both BIOs, so what OpenSSL has not read is taken out again, and what it wrote is sent or kept.
        shared.incoming.write(self._rest)
        try:
            self._tls.do_handshake()
            is_done = True
        except ssl.SSLWantReadError:
            pass
        finally:
            self._rest = shared.incoming.read()
            with suppress(OSError):  # the next step reports it
                is_sent = self._flush()
        # Whether it is done or not, first send what the peer is waiting for; otherwise both sides would wait.
        if not is_sent:
            raise ssl.SSLWantWriteError
        if not is_done:
            raise ssl.SSLWantReadError
        self.handshake = None
        self.server_name = getattr(self._tls, "server_name", None)
        self.buffers = bool(self._rest)  # the peer's first data may have arrived with its last message

    @property
    def is_server(self) -> bool:
        return self._host is None

    @property
    def has_begun(self) -> bool:
        """Whether a first step has been taken."""
        return self._tls is not None

    def discard(self) -> int:
        """Read encrypted bytes and drop them. Returns their number, 0 at the end of the stream. Raises OSError."""
        return len(self._sock.recv(_LARGEST_RECORD))

    @property
    def peer_certificate(self) -> bytes | None:
        certificate: bytes | None = self._tls.getpeercert(binary_form=True)
        return certificate

    # ---- reading and writing

    def _recv_into(self, buffer: Any, size: int) -> int:
        if self._end is None:
            slices = self._shared.slices
            data: bytes | memoryview = self._rest
            filled = len(data)
            if not self.buffers:
                data = self._shared.received
                filled = self._sock.recv_into(data, size if size < _AT_ONCE else _AT_ONCE)
                if not filled:
                    return 0
            started_ns = slices.clock()
            got, given = self._decrypt(data, filled, buffer, size)
            self._settle(data[given:filled] if given < filled else b"", is_full=got == size)
            if got:
                return got
            # There is nothing for the pump, which would count its slice: only KeyUpdates, tickets, or part of a record.
            slices.used_ns += slices.clock() - started_ns
            slices.begin_round()
        if self._end is None:
            raise BlockingIOError
        if isinstance(self._end, ssl.SSLZeroReturnError):
            return 0
        raise self._end

    def _decrypt(self, data: bytes | memoryview, filled: int, buffer: Any, size: int) -> tuple[int, int]:
        """Decrypt as much of `data[:filled]` as fits into one slice and into `size`. Returns how many bytes are in
        `buffer`, and how many bytes OpenSSL was given.

        The slice ends when OpenSSL finds no data in what it was given, which is at most `_LARGEST_RECORD` bytes.
        """
        incoming, read = self._shared.incoming, self._tls.read
        got = given = count = 0
        try:
            while got < size and count < _RECORDS_AT_ONCE and (given < filled or incoming.pending or not count):
                # Never more than one record's worth, because OpenSSL skips all records that have no data in one call.
                room = _LARGEST_RECORD - incoming.pending
                if room > filled - given:
                    room = filled - given
                if room > 0:
                    given += incoming.write(data[given : given + room])
                more = read(size - got, memoryview(buffer)[got:] if got else buffer)
                if not more:
                    raise ssl.SSLZeroReturnError
                got += more
                count += 1
        except ssl.SSLWantReadError:
            pass
        except OSError as error:
            self._end = error
        self._shared.slices.used_ns += count * _RECORD_NS
        return got, given

    def _settle(self, left: bytes | memoryview, *, is_full: bool) -> None:
        """Empty the BIOs that all wires share: keep what OpenSSL has not read or was not given, and send alerts."""
        incoming, outgoing = self._shared.incoming, self._shared.outgoing
        self._rest = incoming.read() + left if left or incoming.pending else b""
        # OpenSSL answers while it reads, for example a KeyUpdate that requests another, or a wrong record. A peer that
        # floods the proxy with these and reads nothing would otherwise make `_unsent` grow.
        if outgoing.pending and not self._flush():
            self._end = self._end or ConnectionAbortedError("it does not read alerts")
        # OpenSSL has the rest of a decrypted record only if the pump's buffer is full.
        self.buffers = bool(self._rest or self._end or (is_full and self._tls.pending()))

    def _send(self, data: Any) -> int:
        size, taken = len(data), 0
        while taken < size:
            if not self._unsent:  # otherwise these bytes are encrypted already: send the rest of that
                is_all = not taken and size <= _AT_ONCE
                try:
                    self._owed = self._tls.write(data if is_all else data[taken : taken + _AT_ONCE])
                finally:  # even after a failure, so that no other wire sends what it wrote
                    self._unsent = self._shared.outgoing.read()
            if not self._flush():
                break
            taken += self._owed
            self._owed = 0
        return taken

    def _flush(self) -> bool:
        """Send what OpenSSL has encrypted. Returns whether the socket took all of it. Raises OSError."""
        if self._shared.outgoing.pending:
            self._unsent += self._shared.outgoing.read()
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return False
        return not self._unsent

    # ---- the end

    def shutdown(self) -> None:
        self._notify()
        super().shutdown()

    def close(self) -> None:
        self.handshake = None
        self._notify()
        super().close()
        # Break references to this object: those of its methods, and of the traceback of a kept error.
        self.recv_into, self.send = self._sock.recv_into, self._sock.send
        self._end = None

    def _notify(self) -> None:
        """Send TLS's own end of stream, without which OpenSSL 3 reports a truncated connection to the peer."""
        if self._tls is not None:
            with suppress(OSError, ValueError):  # it would wait for the peer's own end
                self._tls.unwrap()
            with suppress(OSError):  # the connection may be broken
                self._flush()


@final
class Handshake:
    """The handshake of a wire. It is a `LoopUser` without being a subclass, because that class is compiled and this
    module is not. Each step is an expensive slice: a server's takes 0.6 to 1.4 ms.

    After a failure, what the client sends is read and dropped until it ends its stream: closing a socket with unread
    bytes would reset the connection, and the client would not receive the alert.
    """

    def __init__(self, wire: TlsWire, slices: Slices, done: Callable[[], None], failed: Failed) -> None:
        self._wire = wire
        self._slices = slices
        self._done = done
        self._failed = failed
        self._failure = ("", "")
        self._discarded = 0
        self.is_heavy = True

    def on_ready(self) -> None:
        """Called when the socket can be read or written."""
        self._wire.stop_reading()
        self._wire.stop_writing()
        if self._slices.may_begin(self):
            self.on_slice()
        else:
            self._slices.wait_for_handshake(self)

    def on_slice(self) -> None:
        if self._wire.handshake is not self:  # closed
            return
        started_ns = self._slices.clock()
        try:
            self._wire.step()
        except EOFError:
            self._failed("", "")
        except (ssl.SSLWantReadError, BlockingIOError):
            self._wire.when_readable(self.on_ready)
        except ssl.SSLWantWriteError:
            self._wire.when_writable(self.on_ready)
        except (OSError, ValueError) as error:  # ValueError: a host name that no certificate can contain
            self._fail(error)
        else:
            self._done()
        self._slices.used(self, self._slices.clock() - started_ns)

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
    """Creates the wires of new connections, with the TLS contexts that are in force, and has what all wires share.

    OpenSSL reads from `incoming` and writes to `outgoing`. Both are empty between two calls of a wire. `received`: the
    buffer for a socket's bytes.
    """

    def __init__(self, loop: AbstractEventLoop, slices: Slices, contexts: TlsContexts) -> None:
        self.loop = loop
        self.slices = slices
        self._contexts = contexts
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.received = memoryview(aligned(_AT_ONCE))

    def to_client(self, sock: socket.socket) -> Wire:
        context = self._contexts.from_clients
        return Wire(self.loop, sock) if context is None else TlsWire(self, sock, context)

    def to_broker(self, sock: socket.socket, host: str) -> Wire:
        context = self._contexts.to_brokers
        return Wire(self.loop, sock) if context is None else TlsWire(self, sock, context, host)
