"""What passes the proxies, seen from the wires: bytes of data by client, and how fast; beside it, what may pass."""

from collections.abc import Callable
from struct import unpack_from
from typing import Final

from simulation.kafka import FETCH, PRODUCE
from simulation.kernel import SECOND
from simulation.network import SimSocket

LENGTH_BYTES: Final = 4
"""In front of a frame; the proxy does not count it."""
_REQUEST_BYTES: Final = 14
"""Length, api, version, correlation id, and the length of the client id."""
_MOST_NAME: Final = 64
MOST_BYTES: Final = 100_000_000
"""A longer frame is a lie."""


NO_LIMIT: Final = 1e15


class Open:
    """Connections of which a frame may wait. `most`: how many of them were open at once."""

    def __init__(self) -> None:
        self.most = 0
        self._lines: dict[Line, None] = {}

    def begun(self, line: "Line") -> None:
        """A frame of this one may wait from now on."""
        if line not in self._lines:
            self._lines = {each: None for each in (*self._lines, line) if not each.sock.is_closed}
            self.most = max(self.most, len(self._lines))


class Bound:
    """What passed of one limit: in any interval T, by `clock`, at most `rate * T`, and `worst` above it.

    fastest   the highest rate so far, which the burst is of; `slowest`: the lowest
    total     all that passed
    longest   the longest frame that was charged
    lines     the connections that had something to pass: each may be late with a chunk
    """

    def __init__(self, clock: Callable[[], int], rate: float, lines: "Open | None" = None) -> None:
        self._clock = clock
        self.lines = lines or Open()
        self.rate = self.fastest = self.slowest = rate
        self.level = self.worst = 0.0
        self.total = self.longest = 0
        self._at_ns = clock()

    def add(self, units: int, line: "Line | None" = None) -> None:
        now_ns = self._clock()
        self.level = level = max(0.0, self.level - (now_ns - self._at_ns) * self.rate / SECOND) + units
        self._at_ns = now_ns
        self.total += units
        if level > self.worst:
            self.worst = level
        self.longest = max(self.longest, units if line is None else line.longest)

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
    """One direction of a connection, cut into frames. `begins(self)` is called with each one that has data, and
    `passed(self, bytes)` for each part of it.

    client_id, correlation
              of the latest frame
    longest   what passed of the longest frame with data, whatever was announced; `announced`: that
    """

    is_request = True
    client_id = ""
    correlation = 0

    def __init__(
        self, sock: SimSocket, passed: "Callable[[Line, int], object]", begins: "Callable[[Line], object]"
    ) -> None:
        self.sock = sock
        self._passed, self._begins = passed, begins
        self.longest = self.announced = 0
        self.is_broken = False
        self._head = b""
        self._left = self._length = 0
        self._is_data = False

    @property
    def frame_bytes(self) -> int:
        """The announced length of the latest frame."""
        return self._length

    @property
    def unfinished_bytes(self) -> int:
        """What has passed of a frame with data whose rest did not come."""
        return self._length - self._left if self._left and self._is_data else 0

    @property
    def left_bytes(self) -> int:
        """What has not passed yet of a frame with data that has begun to."""
        return self._left if self._is_data else 0

    def feed(self, data: bytes) -> None:
        at = 0
        while at < len(data) and not self.is_broken:
            if not self._left:
                before = len(self._head)
                head = self._head + data[at : at + _REQUEST_BYTES + _MOST_NAME - before]
                size = self._read(head)
                if size > len(head) or self.is_broken:
                    self._head = head
                    return
                self._head = b""
                [self._length] = unpack_from(">i", head)
                self._left = self._length + LENGTH_BYTES
                if self._is_data:
                    self.announced = max(self.announced, self._length)
                    self._begins(self)
                self._pass(size, LENGTH_BYTES)
                at += size - before
            else:
                size = min(self._left, len(data) - at)
                self._pass(size)
                at += size

    def _pass(self, size: int, uncounted: int = 0) -> None:
        self._left -= size
        size -= uncounted
        if self._is_data:
            self.longest = max(self.longest, self._length - self._left)
            self._passed(self, size)

    def _read(self, head: bytes) -> int:
        """Look at the beginning of a frame: whether it carries data. Returns how many bytes of it are needed."""
        raise NotImplementedError


class Requests(Line):
    """The client id is that of the latest request."""

    def __init__(
        self, sock: SimSocket, passed: Callable[[Line, int], object], begins: Callable[[Line], object]
    ) -> None:
        super().__init__(sock, passed, begins)
        self.apis: dict[int, int] = {}

    def _read(self, head: bytes) -> int:
        if len(head) < _REQUEST_BYTES:
            return _REQUEST_BYTES
        length, api, _, correlation, size = unpack_from(">ihhih", head)
        end: int = _REQUEST_BYTES + max(0, size)
        if not 10 <= length <= MOST_BYTES or size > min(_MOST_NAME, length - 10):
            self.is_broken = True
        elif len(head) >= end:
            self.correlation = correlation
            self.apis[correlation] = api
            self.client_id = head[_REQUEST_BYTES:end].decode(errors="replace")
            self._is_data = api == PRODUCE
        return end


class Responses(Line):
    """To `requests`."""

    is_request = False

    def __init__(
        self,
        sock: SimSocket,
        passed: Callable[[Line, int], object],
        begins: Callable[[Line], object],
        requests: Requests,
    ) -> None:
        super().__init__(sock, passed, begins)
        self._requests = requests

    @property
    def client_id(self) -> str:  # type: ignore[override]
        return self._requests.client_id

    def _read(self, head: bytes) -> int:
        if len(head) >= 8:
            [self.correlation] = unpack_from(">i", head, 4)
            self._is_data = self._requests.apis.pop(self.correlation, None) == FETCH
        return 8
