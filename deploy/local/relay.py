"""The tap's own process: forwards bytes between clients and a broker and notes complete data frames.

A process apart, so that neither the test's clients nor its own work move the times it notes. It is told what to do in
lines of JSON on stdin and answers each with one line on stdout; when stdin ends, it ends.

    {"listen": [host, port], "upstream": [host, port]}  ->  {"address": [host, port]}
    {"frames_from": index}  ->  {"frames": [[time_ns, api, size, client_id, connection], ...], "unreadable": count}

A connection with other bytes than Kafka's is forwarded, and counted as unreadable.
"""

import functools
import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from deploy.local.frames import ConnectionMeter, DataFrame, NotKafka

_BUFFER_BYTES = 256 * 1024
_CONNECT_TIMEOUT_SECONDS = 5.0


class Relay:
    """One select loop over stdin, listeners and connections."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))
        self.frames: list[DataFrame] = []
        self.unreadable = 0
        self._connections = 0
        self._commands = bytearray()
        self._ended = False

    def run(self) -> None:
        """Returns when stdin ends."""
        self.selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._read_commands)
        while not self._ended:
            for key, events in self.selector.select():
                act: Callable[[int], None] = key.data
                act(events)

    def _read_commands(self, _events: int) -> None:
        received = os.read(sys.stdin.fileno(), 65536)
        if not received:
            self._ended = True
            return
        self._commands += received
        while b"\n" in self._commands:
            line, _, self._commands = self._commands.partition(b"\n")
            sys.stdout.write(json.dumps(self._answer(json.loads(line))) + "\n")
            sys.stdout.flush()

    def _answer(self, command: dict[str, object]) -> dict[str, object]:
        match command:
            case {"listen": [str(host), int(port)], "upstream": [str(upstream_host), int(upstream_port)]}:
                try:
                    return {"address": self._listen((host, port), (upstream_host, upstream_port))}
                except OSError as error:
                    return {"error": f"cannot listen on {host}:{port}: {error.strerror}"}
            case {"frames_from": int(index)}:
                return {"frames": self.frames[index:], "unreadable": self.unreadable}
            case _:
                return {"error": f"unknown command {command}"}

    def _listen(self, address: tuple[str, int], upstream: tuple[str, int]) -> tuple[str, int]:
        listener = socket.create_server(address, backlog=1024)
        listener.setblocking(False)

        def accept(_events: int) -> None:
            try:
                client = listener.accept()[0]
            except BlockingIOError:
                return
            try:
                broker = socket.create_connection(upstream, timeout=_CONNECT_TIMEOUT_SECONDS)
            except OSError:  # a broker that is down: the client sees a closed connection, as it would without the tap
                client.close()
                return
            Connection(self, self._connections, client, broker)
            self._connections += 1

        self.selector.register(listener, selectors.EVENT_READ, accept)
        host, port = listener.getsockname()
        return host, port


@dataclass(slots=True, eq=False)
class Flow:
    """One direction. It reads from `source` only while `sink` takes all it is given; the rest waits in `pending`."""

    source: socket.socket
    sink: socket.socket
    pending: memoryview = field(default_factory=lambda: memoryview(b""))
    at_end: bool = False


class Connection:
    """Forwards between two sockets until both directions have ended, or either fails."""

    def __init__(self, relay: Relay, number: int, client: socket.socket, broker: socket.socket) -> None:
        self._relay = relay
        self._meter: ConnectionMeter | None = ConnectionMeter(number)
        self._closed = False
        self._up = Flow(client, broker)
        self._down = Flow(broker, client)
        self._ends = {client: (self._up, self._down), broker: (self._down, self._up)}  # reads from it, writes to it
        for end in self._ends:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._watch(end)

    def _on_event(self, end: socket.socket, events: int) -> None:
        if self._closed:  # by an event on its other end, a moment ago
            return
        reading, writing = self._ends[end]
        try:
            if events & selectors.EVENT_WRITE:
                self._send(writing, writing.pending)
            if events & selectors.EVENT_READ and not reading.pending:
                self._read(reading)
        except OSError:
            self._close()
            return
        if self._up.at_end and self._down.at_end and not self._up.pending and not self._down.pending:
            self._close()
            return
        for each in self._ends:
            self._watch(each)

    def _read(self, flow: Flow) -> None:
        try:
            size = flow.source.recv_into(self._relay.buffer)
        except BlockingIOError:
            return
        if size == 0:
            flow.at_end = True
            flow.sink.shutdown(socket.SHUT_WR)
            return
        data = self._relay.buffer[:size]
        self._note(flow, data)
        self._send(flow, data)

    def _send(self, flow: Flow, data: memoryview) -> None:
        try:
            sent = flow.sink.send(data)
        except BlockingIOError:
            sent = 0
        flow.pending = memoryview(bytes(data[sent:]))

    def _note(self, flow: Flow, data: memoryview) -> None:
        if self._meter is None:
            return
        now_ns = time.monotonic_ns()
        try:
            if flow is self._up:
                self._relay.frames += self._meter.to_broker(data, now_ns)
            else:
                self._relay.frames += self._meter.to_client(data, now_ns)
        except NotKafka:
            self._relay.unreadable += 1
            self._meter = None

    def _watch(self, end: socket.socket) -> None:
        """Asks for exactly the events that can move something through this socket."""
        reading, writing = self._ends[end]
        events = 0
        if not reading.pending and not reading.at_end:
            events |= selectors.EVENT_READ
        if writing.pending:
            events |= selectors.EVENT_WRITE
        selector = self._relay.selector
        key = selector.get_map().get(end)
        if key is None:
            if events:
                selector.register(end, events, functools.partial(self._on_event, end))
        elif not events:
            selector.unregister(end)
        elif key.events != events:
            selector.modify(end, events, key.data)

    def _close(self) -> None:
        self._closed = True
        for end in self._ends:
            if end in self._relay.selector.get_map():
                self._relay.selector.unregister(end)
            end.close()


if __name__ == "__main__":
    Relay().run()
