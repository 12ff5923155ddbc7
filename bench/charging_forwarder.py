"""The least that a proxy with limits can cost in Python: it forwards bytes, reads the heads of frames, and charges.

A peer of `bench.against_haproxy`: what the proxy costs above it is its caution. This one never holds, tells nobody,
changes no response, keeps nothing but the limits' levels, and takes every frame for well-formed. With `one` it charges
the client's bytes each way, with `all` what `bench.peers.all_limits` names: bytes and requests of the client and of the
total, and of each topic the bytes and records of the batches whose heads stand in the first chunk of a request.

It blocks while a peer takes no bytes, so it is not for use.
"""

import socket
import struct
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic_ns

import uvloop

from proxy.streams.memory import READ_SIZE, aligned

_PRODUCE, _FETCH = 0, 1
#: Units a nanosecond, and the burst of a second.
_RATE, BURST = 100, 100_000_000_000
_unpack_request = struct.Struct(">ihhih").unpack_from
_unpack_response = struct.Struct(">ii").unpack_from
#: Of a batch: attributes up to and without the producer id are skipped; the producer id, the number of records.
_unpack_batch = struct.Struct(">q6xi").unpack_from
_REQUEST_HEAD, _RESPONSE_HEAD, _BEFORE_PRODUCER_ID = 14, 8, 43
#: The index of a partition, the length of its records, and the head of its batch; a topic has no fewer.
_PARTITION_HEAD = 70


class Bucket:
    """The level of one limit: it may go below zero, but nothing here checks that."""

    __slots__ = ("last_ns", "level")

    def __init__(self) -> None:
        self.level = BURST
        self.last_ns = 0

    def charge(self, amount: int, now_ns: int) -> None:
        level = self.level + (now_ns - self.last_ns) * _RATE
        self.last_ns = now_ns
        self.level = (level if level < BURST else BURST) - amount


class Limits:
    """The buckets of one client or topic: `bytes` and `number` of what it sends, `fetched` bytes."""

    __slots__ = ("bytes", "fetched", "number")

    def __init__(self) -> None:
        self.bytes, self.number, self.fetched = Bucket(), Bucket(), Bucket()


class Books:
    """All limits of the process."""

    def __init__(self, *, charges_all: bool) -> None:
        self.charges_all = charges_all
        self.clients: dict[bytes, Limits] = {}
        self.topics: dict[bytes, Limits] = {}
        self.total = Limits()
        self.producer_ids: set[int] = set()

    def charge_requests(self, client: Limits, size: int, number: int, now_ns: int) -> None:
        client.bytes.charge(size, now_ns)
        if self.charges_all:
            client.number.charge(number, now_ns)
            self.total.bytes.charge(size, now_ns)
            self.total.number.charge(number, now_ns)

    def charge_fetched(self, client: Limits, size: int, now_ns: int) -> None:
        client.fetched.charge(size, now_ns)
        if self.charges_all:
            self.total.fetched.charge(size, now_ns)

    def charge_topics(self, buffer: bytearray, pos: int, end: int, version: int, now_ns: int) -> None:
        """Charge the batches of the Produce request whose body begins at `pos`, of a flexible version."""
        pos += 1 + 6  # no transactional id; acks, timeout
        topics, pos = _varint(buffer, pos)
        for _ in range(topics - 1):
            if end - pos < _PARTITION_HEAD:
                return
            if version < 13:
                size, pos = _varint(buffer, pos)
                size -= 1
            else:
                size = 16
            name = bytes(buffer[pos : pos + size])
            pos += size
            limits = self.topics.get(name)
            if limits is None:
                limits = self.topics[name] = Limits()
            partitions, pos = _varint(buffer, pos)
            record_bytes = records = 0
            for _ in range(partitions - 1):
                if end - pos < _PARTITION_HEAD:
                    break
                size, pos = _varint(buffer, pos + 4)
                size -= 1
                producer_id, count = _unpack_batch(buffer, pos + _BEFORE_PRODUCER_ID)
                if producer_id >= 0:
                    self.producer_ids.add(producer_id)
                record_bytes += size
                records += count
                pos += size + 1
            limits.bytes.charge(record_bytes, now_ns)
            limits.number.charge(records, now_ns)
            pos += 1


def _varint(buffer: bytearray, pos: int) -> tuple[int, int]:
    """An unsigned varint, and where it ends."""
    value = shift = 0
    while True:
        byte = buffer[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, pos
        shift += 7


class Pair:
    """One client and its connection to the broker."""

    def __init__(self, loop: uvloop.Loop, buffer: bytearray, books: Books, client: socket.socket, port: int) -> None:
        self._loop, self._buffer, self._books, self._client = loop, buffer, books, client
        self._view = memoryview(buffer)
        self._broker = socket.create_connection(("127.0.0.1", port))
        #: Whether the response of each request in flight is charged.
        self._in_flight: deque[bool] = deque()
        #: The client id of the latest request as it was sent, and its limits.
        self._tail, self._limits = b"", Limits()
        for sock in (client, self._broker):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.add_reader(client.fileno(), self._pump(client, self._broker, self._read_requests, _REQUEST_HEAD))
        loop.add_reader(self._broker.fileno(), self._pump(self._broker, client, self._read_responses, _RESPONSE_HEAD))

    def _pump(
        self, source: socket.socket, sink: socket.socket, read: Callable[[int, int], int], head: int
    ) -> Callable[[], None]:
        recv_into, send, buffer, view = source.recv_into, sink.send, self._buffer, self._view
        #: Bytes of the current frame that have not arrived; the beginning of a head that has not arrived whole.
        left, kept = 0, b""

        def on_readable() -> None:
            nonlocal left, kept
            try:
                if kept:
                    buffer[: len(kept)] = kept
                    size = recv_into(view[len(kept) :])
                else:
                    size = recv_into(buffer, READ_SIZE)
                end = len(kept) + size
                whole = read(left, end)
                left, kept = (whole - end, b"") if whole >= end else (0, bytes(view[whole:end]))
                end, sent = min(end, whole), 0
                while sent < end:
                    with suppress(BlockingIOError):
                        sent += send(view[sent:end])
            except BlockingIOError:
                return
            except OSError:
                size = 0
            if not size:
                self._close()

        return on_readable

    def _read_requests(self, pos: int, end: int) -> int:
        """Read the heads of the requests from `pos` on, and charge what has arrived. Returns where the next begins."""
        buffer, tail, in_flight, books = self._buffer, self._tail, self._in_flight, self._books
        size, number, now_ns = min(pos, end), 0, monotonic_ns()
        while end - pos >= _REQUEST_HEAD:
            length, api, version, _, id_size = _unpack_request(buffer, pos)
            if not buffer.startswith(tail, pos + 12) or not tail:
                self._tail = tail = bytes(buffer[pos + 12 : pos + _REQUEST_HEAD + id_size])
                limits = self._books.clients.get(tail)
                if limits is None:
                    limits = books.clients[tail] = Limits()
                self._limits = limits
            in_flight.append(api == _FETCH)
            number += 1
            frame_end = pos + 4 + length
            if api == _PRODUCE:
                size += min(frame_end, end) - pos - 4
                if books.charges_all:
                    books.charge_topics(buffer, pos + 13 + len(tail), end, version, now_ns)
            pos = frame_end
        books.charge_requests(self._limits, size, number, now_ns)
        return pos

    def _read_responses(self, pos: int, end: int) -> int:
        """The same for responses."""
        buffer, in_flight = self._buffer, self._in_flight
        size = min(pos, end)
        while end - pos >= _RESPONSE_HEAD:
            frame_end = pos + 4 + _unpack_response(buffer, pos)[0]
            if in_flight.popleft():
                size += min(frame_end, end) - pos
            pos = frame_end
        if size:
            self._books.charge_fetched(self._limits, size, monotonic_ns())
        return pos

    def _close(self) -> None:
        for sock in (self._client, self._broker):
            self._loop.remove_reader(sock.fileno())
            sock.close()


def forward(listen_port: int, broker_port: int, *, charges_all: bool) -> None:
    """Serve until it is killed."""
    loop = uvloop.new_event_loop()
    listener = socket.create_server(("127.0.0.1", listen_port), backlog=4096)
    listener.setblocking(False)
    buffer, books = aligned(READ_SIZE), Books(charges_all=charges_all)

    def accept() -> None:
        with suppress(BlockingIOError):
            while True:
                Pair(loop, buffer, books, listener.accept()[0], broker_port)

    loop.add_reader(listener.fileno(), accept)
    loop.run_forever()


if __name__ == "__main__":
    forward(int(sys.argv[1]), int(sys.argv[2]), charges_all=sys.argv[3] == "all")
