"""What passes the proxies, seen from the wires: bytes of data by client, and how fast; beside it, what may pass."""

from collections.abc import Callable
from struct import unpack_from
from typing import Final

from simulation.kafka import FETCH, PRODUCE
from simulation.kernel import SECOND, Kernel
from simulation.network import SimSocket

LENGTH_BYTES: Final = 4
"""In front of a frame; the proxy does not count it."""
_MOST_HEAD: Final = 10 + 64
MOST_BYTES: Final = 100_000_000
"""A longer frame is a lie."""


NO_LIMIT: Final = 1e15


class Bound:
    """What passed of one limit: in any interval T at most `rate * T`, and `worst` above it.

    fastest   the highest rate so far, which the burst is of; `slowest`: the lowest
    total     all that passed
    longest   the longest frame that was charged
    lines     how many connections that passed something were open at once: each may be late with a chunk
    """

    def __init__(self, kernel: Kernel, rate: float) -> None:
        self._kernel = kernel
        self.rate = self.fastest = self.slowest = rate
        self.level = self.worst = 0.0
        self.total = self.longest = self.lines = 0
        self._open: dict[Line, None] = {}
        self._at_ns = kernel.now_ns

    def add(self, units: int, line: "Line | None" = None) -> None:
        now_ns = self._kernel.now_ns
        self.level = max(0.0, self.level - (now_ns - self._at_ns) * self.rate / SECOND) + units
        self._at_ns = now_ns
        self.total += units
        self.worst = max(self.worst, self.level)
        self.longest = max(self.longest, units if line is None else line.longest)
        if line is not None and line not in self._open:
            self._open = {each: None for each in (*self._open, line) if not each.sock.is_closed}
            self.lines = max(self.lines, len(self._open))

    def allow(self, rate: float) -> None:
        """This rate may apply from now on, and the one before as well."""
        self.add(0)
        self.rate, self.slowest = max(self.rate, rate), min(self.slowest, rate)
        if rate != NO_LIMIT:
            self.fastest = max(self.fastest, rate)

    def set_rate(self, rate: float) -> None:
        """Only this rate applies. What passed above the old one has passed; the level goes on."""
        self.add(0)
        self.rate = rate
        if rate == NO_LIMIT:
            self.slowest = rate


class Line:
    """One direction of a connection, cut into frames. `passed(self, bytes)` is called for each part of those with data.

    longest   what passed of the longest frame with data, whatever was announced; `announced`: that
    """

    is_request = True
    client_id = ""

    def __init__(self, sock: SimSocket, passed: "Callable[[Line, int], object]") -> None:
        self.sock = sock
        self._passed = passed
        self.longest = self.announced = 0
        self.is_broken = False
        self._head = bytearray()
        self._left = self._length = 0
        self._is_data = False

    @property
    def unfinished_bytes(self) -> int:
        """What has passed of a frame with data whose rest did not come."""
        return self._length - self._left if self._left and self._is_data else 0

    def feed(self, data: memoryview) -> None:
        at = 0
        while at < len(data) and not self.is_broken:
            if self._left:
                size = min(self._left, len(data) - at)
                self._left -= size
                self._pass(size)
            else:
                size = min(self._needed() - len(self._head), len(data) - at)
                self._head += data[at : at + size]
                if len(self._head) == self._needed() and not self.is_broken:
                    self._begin()
            at += size

    def _begin(self) -> None:
        head, self._head = bytes(self._head), bytearray()
        [self._length] = unpack_from(">i", head)
        passed = len(head) - LENGTH_BYTES
        self._left = self._length - passed
        self._is_data = self._read(head)
        if self._is_data:
            self.announced = max(self.announced, self._length)
        self._pass(passed)

    def _pass(self, size: int) -> None:
        if self._is_data:
            self.longest = max(self.longest, self._length - self._left)
            self._passed(self, size)

    def _needed(self) -> int:
        """How many bytes are looked at."""
        raise NotImplementedError

    def _read(self, head: bytes) -> bool:
        """Whether this frame carries data."""
        raise NotImplementedError


class Requests(Line):
    """The client id is that of the latest request."""

    def __init__(self, sock: SimSocket, passed: Callable[[Line, int], object]) -> None:
        super().__init__(sock, passed)
        self.apis: dict[int, int] = {}

    def _needed(self) -> int:
        """Length, api, version, correlation id, and the length of the client id; then the client id."""
        head = self._head
        if len(head) < 14:
            return 14
        [length], [size] = unpack_from(">i", head), unpack_from(">h", head, 12)
        if not 10 <= length <= MOST_BYTES or size > min(_MOST_HEAD, length - 10):
            self.is_broken = True
        return 14 + max(0, int(size))

    def _read(self, head: bytes) -> bool:
        api, _, correlation = unpack_from(">hhi", head, 4)
        self.apis[correlation] = api
        self.client_id = head[14:].decode(errors="replace")
        return bool(api == PRODUCE)


class Responses(Line):
    """To `requests`."""

    is_request = False

    def __init__(self, sock: SimSocket, passed: Callable[[Line, int], object], requests: Requests) -> None:
        super().__init__(sock, passed)
        self._requests = requests

    @property
    def client_id(self) -> str:  # type: ignore[override]
        return self._requests.client_id

    def _needed(self) -> int:
        return 8

    def _read(self, head: bytes) -> bool:
        [correlation] = unpack_from(">i", head, 4)
        return self._requests.apis.pop(correlation, None) == FETCH
