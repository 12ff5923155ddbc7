"""Sessions and pumps without sockets: wires in memory, and an event loop of which the test runs the rounds."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from proxy.sessions.wire import Wire
from tests.proxy.timers import Timer, Timers


class WorkClock:
    """Real time: each look at it costs `step_ns`."""

    def __init__(self, step_ns: int = 0) -> None:
        self.now_ns = 0
        self.step_ns = step_ns

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns


class Loop(Timers):
    """Callbacks for the next round, and wires that may have something to read. Time passes in `next` only."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.soon: dict[Timer, None] = {}
        self.wires: dict[MemoryWire, None] = {}
        self.asked = 0
        #: Called before callbacks.
        self.before_round: Callable[[], object] = int

    def call_soon(self, call: Callable[..., object], *arguments: object) -> Timer:
        return Timer(0, partial(call, *arguments), self.soon)

    def time(self) -> float:
        return 0.0

    def create_task(self, task: Coroutine[Any, Any, None]) -> None:
        """Nothing is ever looked up."""
        self.asked += 1
        task.close()

    def round(self) -> None:
        """One read for each wire that has something to read."""
        if self.soon:
            self.before_round()
        for timer in list(self.soon):
            if timer in self.soon:
                timer.cancel()
                timer.call()
        for wire in list(self.wires):
            if wire.on_readable is not None and wire.received:
                wire.on_readable()
            else:
                del self.wires[wire]

    def run(self) -> None:
        """Rounds until nothing is to be done before time passes."""
        while self.soon or self.wires:
            self.round()

    def next(self) -> bool:
        self.run()
        is_found = super().next()
        self.run()
        return is_found


class MemoryWire(Wire):
    """A wire of which the test says what it has received, and how much of what is offered it takes.

    reads, sends   how many bytes each has had
    has_end        the peer finds the end of the stream behind what was taken
    """

    peer_has_gone = is_broken = False
    is_flushed = True
    traffic_bytes = None

    def __init__(self, loop: Loop | None = None) -> None:
        #: Those of the loop that may have something to read.
        self._wires: dict[MemoryWire, None] = {} if loop is None else loop.wires
        self.received = bytearray()
        self.taken = bytearray()
        #: What the next `send`s take in all; None: everything.
        self.room: int | None = None
        self.ended = self.has_end = False
        self.broken = False
        self.reads: list[int] = []
        self.sends: list[int] = []
        self.buffers = False
        self.on_readable: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.recv_into = self._recv_into
        self.send = self._send

    def receive(self, data: bytes) -> None:
        self.received += data
        self._wires[self] = None

    def _recv_into(self, buffer: Any, size: int) -> int:
        if self.broken:
            raise ConnectionResetError
        if not self.received:
            if self.ended:
                return 0
            raise BlockingIOError
        got = min(size, len(self.received), len(buffer))
        buffer[:got] = self.received[:got]
        del self.received[:got]
        self.reads.append(got)
        return got

    def _send(self, data: Any) -> int:
        if self.broken:
            raise BrokenPipeError
        sent = len(data) if self.room is None else min(len(data), self.room)
        if not sent:
            raise BlockingIOError
        if self.room is not None:
            self.room -= sent
        self.taken += data[:sent]
        self.sends.append(sent)
        return sent

    def when_readable(self, callback: Callable[[], None]) -> None:
        self.on_readable = callback
        self._wires[self] = None

    def stop_reading(self) -> None:
        self.on_readable = None

    def when_writable(self, callback: Callable[[], None]) -> None:
        self.on_writable = callback

    def stop_writing(self) -> None:
        self.on_writable = None

    def end(self) -> None:
        """Nothing follows what was received."""
        self.ended = True
        if self.on_readable is not None:
            self.on_readable()

    def shutdown(self) -> None:
        self.has_end = True

    def take(self, room: int | None) -> None:
        """So much from now on, of what waits first."""
        self.room = room
        if self.on_writable is not None:
            self.on_writable()

    def close(self) -> None:
        self.on_readable = self.on_writable = None
        del self.recv_into, self.send  # which refer to the wire
