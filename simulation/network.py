"""TCP in virtual time: what a socket of Linux does to the one who calls it.

A byte that is sent arrives after the delay of its connection, in order, and then waits in the receiver's buffer. A send
takes what there is room for, or a part of it; a read returns what has arrived, or a part of it. Closing a socket with
unread data, and sending to a closed one, resets the connection.
"""

import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from struct import Struct
from typing import Any, Final

from simulation.kernel import MS, Kernel, nothing

Address = tuple[str, int]
FIRST_FD: Final = 1 << 20
"""Above each real descriptor, so that a real call fails."""
FIRST_PORT: Final = 32_768
_ESTABLISHED, _CLOSE, _CLOSE_WAIT, _FIN_WAIT = 1, 7, 8, 4
_info: Final = Struct("=B23xI92xQQ8xI")
_PEEK: Final = int(socket.MSG_PEEK)


def _error(code: int) -> OSError:
    """Of the class that stands for the code, like BlockingIOError."""
    return OSError(code, os.strerror(code))


class Channel:
    """One direction of a connection. `arrived`: what the receiver has not read yet."""

    __slots__ = (
        "arrived", "arrives_ns", "delay_ns", "ends", "has_ended", "in_flight", "network", "receiver", "sender", "total",
    )  # fmt: skip

    def __init__(self, sender: "SimSocket", receiver: "SimSocket", delay_ns: int) -> None:
        self.network, self.sender, self.receiver, self.delay_ns = sender.network, sender, receiver, delay_ns
        self.arrived = bytearray()
        self.in_flight = self.arrives_ns = self.total = 0
        self.ends = self.has_ended = False

    @property
    def room(self) -> int:
        return self.network.buffer_bytes - len(self.arrived) - self.in_flight

    def send(self, data: bytes) -> None:
        self.total += len(data)
        self.in_flight += len(data)
        self._then(partial(self._arrive, data))

    def end(self) -> None:
        """The end of the stream is behind its data."""
        if not self.ends:
            self.ends = True
            self._then(self._end)

    def reset(self) -> None:
        """At once: data on the way is lost."""
        self.ends = True
        kernel = self.network.kernel
        kernel.at(kernel.now_ns + self.delay_ns, partial(self.receiver.fail, errno.ECONNRESET))

    def _then(self, call: Callable[[], object]) -> None:
        kernel = self.network.kernel
        self.arrives_ns = max(self.arrives_ns + 1, kernel.now_ns + self.delay_ns)
        kernel.at(self.arrives_ns, call)

    def _arrive(self, data: bytes) -> None:
        self.in_flight -= len(data)
        receiver = self.receiver
        if receiver.is_closed:
            self.sender.fail(errno.ECONNRESET)
        elif not receiver.error:
            self.arrived += data
            receiver.on_ready()

    def _end(self) -> None:
        self.has_ended = True
        self.receiver.on_ready()


class SimSocket:
    """As `socket.socket`, as far as asyncio and the proxy use it; it never blocks.

    on_ready   called when it may have become readable or writable
    on_sent    called with what a send has taken; for checkers
    """

    family, type, proto = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP

    def __init__(self, network: "Network", host: str, family: int = socket.AF_INET) -> None:
        if family != socket.AF_INET:
            raise _error(errno.EAFNOSUPPORT)
        self.network = network
        self.host = host
        self.fd = network.new_fd(host)
        self.name: Address = (host, 0)
        self.peer: SimSocket | None = None
        self.peer_name: Address | None = None
        self.incoming: Channel | None = None
        self.outgoing: Channel | None = None
        self.backlog: deque[SimSocket] | None = None
        self.error = 0
        self.is_closed = False
        self.on_ready: Callable[[], object] = nothing
        self.on_sent: Callable[[bytes], object] | None = None
        network.owners.get(host, nothing)(self)

    # ---- what asyncio asks

    def fileno(self) -> int:
        return -1 if self.is_closed else self.fd

    def gettimeout(self) -> float:
        return 0.0

    def setblocking(self, is_blocking: bool) -> None:
        pass

    def setsockopt(self, *_: Any) -> None:
        pass

    def getsockname(self) -> Address:
        return self.name

    def getpeername(self) -> Address:
        if self.peer_name is None:
            raise _error(errno.ENOTCONN)
        return self.peer_name

    def getsockopt(self, level: int, option: int, size: int = 0) -> int | bytes:
        if level == socket.SOL_SOCKET and option == socket.SO_ERROR:
            error, self.error = self.error, 0
            return error
        if level == socket.IPPROTO_TCP and option == socket.TCP_INFO:
            incoming, outgoing = self.incoming, self.outgoing
            if incoming is None or outgoing is None:
                return _info.pack(_CLOSE, 0, 0, 0, 0)[:size]
            state = _ESTABLISHED
            if self.error:
                state = _CLOSE
            elif incoming.has_ended:
                state = _CLOSE_WAIT
            elif outgoing.ends:
                state = _FIN_WAIT
            acked = outgoing.total - outgoing.in_flight
            return _info.pack(state, int(outgoing.in_flight > 0), acked, incoming.total - incoming.in_flight, 0)[:size]
        return 0

    # ---- listening and connecting

    def bind(self, address: Address) -> None:
        self.name = self.network.bind(self, address)

    def listen(self, _backlog: int = 0) -> None:
        self.backlog = deque()

    def accept(self) -> tuple["SimSocket", Address]:
        if not self.backlog:
            raise _error(errno.EAGAIN)
        sock = self.backlog.popleft()
        assert sock.peer_name is not None  # noqa: S101 - connected
        return sock, sock.peer_name

    def connect(self, address: Address) -> None:
        self.network.connect(self, address[:2])
        raise _error(errno.EINPROGRESS)

    # ---- data

    @property
    def is_readable(self) -> bool:
        if self.is_closed:
            return False
        if self.backlog is not None:
            return bool(self.backlog)
        incoming = self.incoming
        return bool(self.error) or (incoming is not None and bool(incoming.arrived or incoming.has_ended))

    @property
    def is_writable(self) -> bool:
        outgoing = self.outgoing
        if self.is_closed:
            return False
        return bool(self.error) or (outgoing is not None and outgoing.room > 0)

    def recv(self, size: int, flags: int = 0) -> bytes:
        incoming = self._connected(self.incoming)
        arrived = incoming.arrived
        if not arrived:
            if self.error:
                raise _error(self.error)
            if incoming.has_ended:
                return b""
            raise BlockingIOError(errno.EAGAIN, "nothing has arrived")
        network = self.network
        size = network.drawn(min(size, len(arrived)))
        data = bytes(arrived) if size == len(arrived) else bytes(arrived[:size])
        if not flags & _PEEK:
            was_full = incoming.room <= 0
            del arrived[:size]
            if was_full:
                network.kernel.at(network.kernel.now_ns + network.delay_ns[0], incoming.sender.notify)
        return data

    def recv_into(self, buffer: Any, size: int = 0) -> int:
        data = self.recv(size or len(buffer))
        memoryview(buffer)[: len(data)] = data
        return len(data)

    def send(self, data: Any, _flags: int = 0) -> int:
        outgoing = self._connected(self.outgoing)
        if self.error:
            error, self.error = self.error, errno.EPIPE
            raise _error(error)
        if outgoing.ends:
            raise _error(errno.EPIPE)
        network = self.network
        size = min(len(data), outgoing.room)
        if size <= 0:
            raise BlockingIOError(errno.EAGAIN, "buffers are full")
        size = network.drawn(size)
        sent = bytes(memoryview(data)[:size])
        if self.on_sent is not None:
            self.on_sent(sent)
        outgoing.send(sent)
        return size

    def sendmsg(self, buffers: Any) -> int:
        return self.send(b"".join(buffers))

    def shutdown(self, _how: int) -> None:
        self._connected(self.outgoing).end()

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.on_ready, self.on_sent = nothing, None
        self.network.release(self)
        incoming, outgoing = self.incoming, self.outgoing
        if incoming is None or outgoing is None:
            return
        if incoming.arrived or self.error:
            outgoing.reset()
        else:
            outgoing.end()

    def abort(self) -> None:
        """Close it with a reset."""
        if self.outgoing is not None and not self.is_closed:
            self.outgoing.reset()
        self.close()

    def notify(self) -> None:
        self.on_ready()

    def fail(self, error: int) -> None:
        if not self.is_closed and not self.error:
            self.error = error
            self.on_ready()

    def _connected(self, channel: Channel | None) -> Channel:
        if self.is_closed:
            raise _error(errno.EBADF)
        if channel is None:
            raise _error(errno.ENOTCONN)
        return channel


class Network:
    """All hosts. `silent`: addresses that do not answer a connection.

    delay_ns      from the least to the most time that a connection's bytes travel; each connection draws its own
    buffer_bytes  what may be on the way or unread in one direction
    partial       the share of reads and writes that are cut short
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.silent: set[str] = set()
        #: By host: what is called with each socket that it gets.
        self.owners: dict[str, Callable[[Any], object]] = {}
        #: Called with both ends of each new connection.
        self.on_connection: Callable[[SimSocket, SimSocket], object] = nothing
        self.delay_ns = (MS // 10, MS)
        self.buffer_bytes = 262_144
        self.partial = 0.0
        self._listeners: dict[Address, SimSocket] = {}
        self._ports = FIRST_PORT
        self._free_fds: dict[str, list[int]] = {}
        self._open_fds: dict[str, int] = {}

    # ---- names, descriptors and ports

    def addresses_of(self, host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        """Like `socket.getaddrinfo`, where no host has a name."""
        if not host[0].isdigit():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    def new_fd(self, host: str) -> int:
        """The lowest that is free, as in Linux: a number is soon used again."""
        free = self._free_fds.setdefault(host, [])
        self._open_fds[host] = self._open_fds.get(host, 0) + 1
        return heappop(free) if free else FIRST_FD + self._open_fds[host]

    def open_sockets(self, host: str) -> int:
        return self._open_fds.get(host, 0)

    def release(self, sock: SimSocket) -> None:
        self._open_fds[sock.host] -= 1
        heappush(self._free_fds[sock.host], sock.fd)
        if sock.backlog is not None:
            self._listeners.pop(sock.name, None)
            for waiting in sock.backlog:
                waiting.abort()

    def bind(self, sock: SimSocket, address: Address) -> Address:
        host, port = address
        if not port:
            self._ports += 1
            port = self._ports
        if (host, port) in self._listeners:
            raise _error(errno.EADDRINUSE)
        self._listeners[host, port] = sock
        return host, port

    # ---- connections

    def connect(self, sock: SimSocket, address: Address) -> None:
        delay_ns = self.kernel.random.randint(*self.delay_ns)
        self._ports += 1
        sock.name = (sock.host, self._ports)

        def arrive() -> None:
            if sock.is_closed or address[0] in self.silent:
                return
            listener = self._listeners.get(address)
            if listener is None or listener.backlog is None:
                self.kernel.at(self.kernel.now_ns + delay_ns, partial(sock.fail, errno.ECONNREFUSED))
                return
            there = SimSocket(self, listener.host)
            there.name, there.peer_name = address, sock.name
            sock.peer_name = address
            sock.peer, there.peer = there, sock
            sock.outgoing = there.incoming = Channel(sock, there, delay_ns)
            there.outgoing = sock.incoming = Channel(there, sock, delay_ns)
            self.on_connection(sock, there)
            listener.backlog.append(there)
            listener.on_ready()
            self.kernel.at(self.kernel.now_ns + delay_ns, sock.notify)

        self.kernel.at(self.kernel.now_ns + delay_ns, arrive)

    def drawn(self, size: int) -> int:
        """How much of this a call reads or writes."""
        random = self.kernel.random
        return random.randint(1, size) if size > 1 and self.partial and random.random() < self.partial else size
