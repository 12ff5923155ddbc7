"""A Kafka broker that does nothing, as fast as Python can: it must never be what a benchmark measures.

One process, one thread, `select.epoll`. ApiVersions and Metadata are answered one by one. The first Produce or Fetch of
a connection (correlation id 0) turns it into a `CyclicStream`: its client id names the cycles of requests and answers
(`bench.shapes`), so a batch of requests is answered by one `send` of a slice, and request bytes are thrown away unread.
Plain epoll rather than uvloop: at a few connections it is one call less per event.
"""

import gc
import multiprocessing
import select
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from bench import frames
from bench.processes import LOOPBACK, die_with_parent, end_child, pin, receive_word
from bench.shapes import shape_of
from bench.streams import CyclicStream, End, PeerClosedError, end_of

START_SECONDS = 60
_CONTROL_BYTES = 65536
_HANDSHAKE_SECONDS = 5
_HEADER = struct.Struct(">ihhih")


class _Session:
    """One accepted connection: control requests first, then perhaps a cyclic stream."""

    __slots__ = ("_broker", "_control", "_held", "_waits_for_room", "sock", "stream")

    def __init__(self, sock: End, broker: "_Broker") -> None:
        self.sock = sock
        self.stream: CyclicStream | None = None
        self._broker = broker
        self._control = bytearray()
        self._held: list[memoryview] = []
        self._waits_for_room = False

    def readable(self) -> None:
        if self.stream is not None:
            if count := self.stream.receive():
                self.stream.send_frames(count)
            return
        try:
            data = self.sock.recv(_CONTROL_BYTES)
        except BlockingIOError:
            return
        except ConnectionError as error:
            raise PeerClosedError(str(error)) from error
        if not data:
            raise PeerClosedError("end of stream")
        self._control += data
        self._answer_control()

    def writable(self) -> None:
        if self.stream is not None:
            self.stream.flush()
        else:
            self._flush()

    def _answer_control(self) -> None:
        control = self._control
        while self.stream is None and len(control) >= _HEADER.size:
            length, api_key, version, correlation_id, name_length = _HEADER.unpack_from(control)
            if len(control) < _HEADER.size + max(0, name_length):
                return
            client_id = control[_HEADER.size : _HEADER.size + max(0, name_length)].decode()
            if api_key in (frames.PRODUCE, frames.FETCH):
                self._start_stream(client_id, correlation_id)
                return
            if len(control) < length + 4:
                return
            del control[: length + 4]
            if api_key == frames.API_VERSIONS:
                answer = frames.api_versions_answer(version)
            elif api_key == frames.METADATA:
                answer = frames.metadata_answer(self._broker.address, version)
            else:
                raise PeerClosedError(f"API {api_key} is not spoken here")
            self._held.append(memoryview(answer[:4] + struct.pack(">i", correlation_id)))
            self._held.append(memoryview(answer)[8:])
            self._flush()

    def _start_stream(self, client_id: str, correlation_id: int) -> None:
        if correlation_id:
            raise PeerClosedError(f"a cycle starts with correlation id 0, not {correlation_id}")
        shape = shape_of(client_id)
        self.stream = CyclicStream(
            self.sock, self._broker.epoll, shape.requests, shape.answers, one_by_one=shape.one_by_one
        )
        if count := self.stream.took(len(self._control)):
            self.stream.send_frames(count)
        self._control = bytearray()

    def _flush(self) -> None:
        held = self._held
        try:
            while held:
                sent = self.sock.sendmsg(held[:16])
                while held and sent >= len(held[0]):
                    sent -= len(held.pop(0))
                if held:
                    held[0] = held[0][sent:]
        except BlockingIOError:
            pass
        except ConnectionError as error:
            raise PeerClosedError(str(error)) from error
        if bool(held) is not self._waits_for_room:
            self._waits_for_room = bool(held)
            self._broker.epoll.modify(self.sock.fileno(), select.EPOLLIN | (select.EPOLLOUT if held else 0))


class _Broker:
    """The loop of one null broker."""

    def __init__(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        self.address: frames.Address = listener.getsockname()
        self._context = context
        self.epoll = select.epoll()
        self._listener = listener
        self._sessions: dict[int, _Session] = {}

    def serve_forever(self) -> None:
        listener, sessions, epoll = self._listener, self._sessions, self.epoll
        listener.setblocking(False)
        listening = listener.fileno()
        epoll.register(listening, select.EPOLLIN)
        while True:
            for fd, events in epoll.poll(maxevents=512):
                if fd == listening:
                    self._accept()
                    continue
                session = sessions[fd]
                try:
                    if events & select.EPOLLOUT:
                        session.writable()
                    if events & ~select.EPOLLOUT:
                        session.readable()
                except PeerClosedError:
                    del sessions[fd]
                    session.sock.close()

    def _accept(self) -> None:
        try:
            while True:
                sock, _ = self._listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    if self._context is not None:
                        sock.settimeout(_HANDSHAKE_SECONDS)
                        sock = self._context.wrap_socket(sock, server_side=True)
                except OSError:  # a peer that looks whether something listens
                    sock.close()
                    continue
                sock.setblocking(False)
                self._sessions[sock.fileno()] = _Session(end_of(sock), self)
                self.epoll.register(sock.fileno(), select.EPOLLIN)
        except BlockingIOError:
            return


def _serve(listener: socket.socket, core: int | None, ready: Connection, certificate: Path | None) -> None:
    die_with_parent()
    pin(core)
    gc.disable()  # what lives here lives as long as the process, and holds no cycles: a collection is only a pause
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    broker = _Broker(listener, context)
    ready.send("ready")
    broker.serve_forever()


@contextmanager
def null_broker(*, core: int | None = None, port: int = 0, certificate: Path | None = None) -> Iterator[frames.Address]:
    """Run a null broker in a process of its own, as node 0; yields its address once it serves.

    `port`: 0: the kernel chooses. `certificate`: with its key; None: no TLS. Raises PeerError when it does not come up.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    with ours, socket.create_server((LOOPBACK, port), backlog=4096) as listener:
        address: frames.Address = listener.getsockname()
        with theirs:
            process = spawn.Process(target=_serve, args=(listener, core, theirs, certificate), daemon=True)
            process.start()
        try:
            listener.close()
            receive_word(ours, START_SECONDS)
            yield address
        finally:
            end_child(process)
