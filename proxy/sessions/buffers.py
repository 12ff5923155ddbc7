"""The one receive buffer of the event loop, and the account of bytes that wait anywhere in this process.

All sockets are read into the same 512 KiB: a read is parsed and sent on before the next one begins, so no payload is
ever copied, except what the other side's socket did not take and what a session must keep past a boundary where it
holds. Those copies are counted here, and the read size shrinks as ``--max-buffered-bytes`` comes near.

Long frames take turns: in one round of the loop they move a bounded number of bytes, first come, first served, so that
a small request never waits behind hundreds of megabytes that happen to be readable at the same moment.
"""

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxy.sessions.pump import Pump

#: One read takes at most this much. The cost of 1 MiB frames stops falling here: with 64, 128, 256, 512 and 1024 KiB it
#: is 1.20, 0.75, 0.62, 0.55 and 0.59 of HAProxy's (`python -m bench --only against_haproxy --scenario "1 MiB"`).
READ_SIZE = 524_288
_SMALLEST_READ_SIZE = 8_192
#: Reads of long frames in one round of the loop: a bound on how long small requests wait behind them.
BULK_READS = 2
#: With this many long frames waiting for their turns it is a crowd: one of them reads in a round, and less at once.
CROWD = 8
CROWD_READ_SIZE = 131_072
#: What others read at once while long frames wait for their turns: they may be about to begin one themselves.
SMALL_READ_SIZE = 4_096


class Buffers:
    """Shared by all sessions of one event loop; nothing here is per session.

    ``read_size`` is what a pump may read at once now; 0 means that memory is used up and reading must wait.
    """

    __slots__ = (
        "_bulk_left",
        "_bulk_queue",
        "_loop",
        "_low_mark",
        "_round_set",
        "_waiting",
        "buffered_bytes",
        "bulk_read_size",
        "data",
        "max_buffered_bytes",
        "paused",
        "read_size",
        "small_reads",
        "view",
    )

    def __init__(self, loop: AbstractEventLoop, max_buffered_bytes: int, paused: dict[str, int]) -> None:
        self._loop = loop
        self.data = bytearray(READ_SIZE)
        self.view = memoryview(self.data)
        self.max_buffered_bytes = max_buffered_bytes
        self.buffered_bytes = 0
        #: How many flows are not being read, by reason.
        self.paused = paused
        self.read_size = READ_SIZE
        self._low_mark = max_buffered_bytes * 3 // 4
        self._bulk_left = BULK_READS
        self._bulk_queue: deque[Pump] = deque()
        self._round_set = False
        #: What a long frame may read at once.
        self.bulk_read_size = READ_SIZE
        #: Long frames wait for their turns.
        self.small_reads = False
        self._waiting: list[Callable[[], None]] = []

    def keep(self, size: int) -> None:
        """Account for ``size`` bytes that were copied aside."""
        self.buffered_bytes += size
        self._adjust()

    def release(self, size: int) -> None:
        """Account for ``size`` bytes that were given back; wakes those that waited for memory when enough is free."""
        self.buffered_bytes -= size
        self._adjust()
        if self._waiting and self.buffered_bytes <= self._low_mark:
            waiting, self._waiting = self._waiting, []
            for resume in waiting:
                resume()

    def when_free(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` once memory is below three quarters of the bound."""
        self._waiting.append(resume)

    def bulk_turn(self, pump: "Pump") -> bool:
        """Whether a pump that moves a long frame may read now; else it rests, and reads when its turn comes."""
        if self._bulk_left:
            self._begin_round()
            self._bulk_left -= 1
            return True
        self.wait_for_turn(pump)
        return False

    def wait_for_turn(self, pump: "Pump") -> None:
        """It is not read until its turn comes, in a later round (`Pump.on_turn`): it moves a long frame, or has read
        more than may be looked at in one go.
        """
        self._begin_round()
        if not pump.queued:
            pump.queued = True
            self._loop.remove_reader(pump.source_fd)
            self._bulk_queue.append(pump)
            self.small_reads = True

    def end_turns(self) -> None:
        """Nobody else who waits has a turn in this round."""
        self._begin_round()
        self._bulk_left = 0

    def _begin_round(self) -> None:
        if not self._round_set:
            self._round_set = True
            self._loop.call_soon(self._next_round)

    def _next_round(self) -> None:
        """A round of the loop later: those that had to wait come first."""
        queue = self._bulk_queue
        crowded = len(queue) >= CROWD
        self._bulk_left = 1 if crowded else BULK_READS
        self.bulk_read_size = CROWD_READ_SIZE if crowded else READ_SIZE
        self._round_set = False
        while queue and self._bulk_left:
            pump = queue.popleft()
            pump.queued = False
            pump.on_turn()
        self.small_reads = bool(queue)
        if queue:
            self._begin_round()

    def _adjust(self) -> None:
        free = self.max_buffered_bytes - self.buffered_bytes
        if free >= self.max_buffered_bytes // 2:
            self.read_size = READ_SIZE
        elif free <= 0:
            self.read_size = 0
        else:
            self.read_size = max(_SMALLEST_READ_SIZE, READ_SIZE * free * 2 // self.max_buffered_bytes)
