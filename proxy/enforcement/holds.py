"""The held frames of all connections, by the limit that each waits for, and the reservations that may lapse.

Each limit has a fair queue (`quotas.admission.fair_queue`). This module has no timers: the shell has one for each limit
with waiters, and calls `next` when the debt is paid; it calls `lapse` ten times a second.
"""

from collections.abc import Iterable
from typing import Final

from proxy.enforcement.data_frame import DataFrame, FrameEvent
from proxy.enforcement.identity import NS_PER_MS
from quotas.admission.limit import Limit
from quotas.admission.passage import Passage, earned

#: A reservation lapses after this time, unless as many of its bytes have passed as the fastest of its limits earns, and
#: these at least. At the others, which earn less, nobody waits for it longer either.
LAPSE_NS: Final = 1_000_000_000
LEAST_PORTION: Final = 32_768
#: Most reservations that one call checks.
_CHECKED_AT_ONCE: Final = 1_000


class Delay:
    """A delayed response.

    limit                the limit in debt
    since_ns, until_ns   from the decision to its end; 0: at once
    is_shown             the response contains the delay as throttle time, for clients that do not wait for it again
    """

    __slots__ = ("is_shown", "limit", "since_ns", "throttle_time_ms", "until_ns")

    def __init__(self, limit: Limit, since_ns: int, throttle_time_ms: int, *, is_shown: bool) -> None:
        self.limit = limit
        self.since_ns = since_ns
        self.throttle_time_ms = throttle_time_ms
        self.until_ns = since_ns + throttle_time_ms * NS_PER_MS
        self.is_shown = is_shown


class Holds:
    """Shared by all connections. `changed`: limits with waiters that may be due at another time than before."""

    __slots__ = ("_reserving", "changed", "limits")

    def __init__(self) -> None:
        #: Limits with waiters.
        self.limits: dict[Limit, None] = {}
        self.changed: dict[Limit, None] = {}
        #: When each was checked last, and its bytes then; the oldest first.
        self._reserving: dict[Passage, tuple[int, int]] = {}

    # ---- queues

    def add(self, frame: DataFrame) -> None:
        """The frame waits for its limit from now on. One that could not keep a reservation keeps its place."""
        limit = frame.limit
        if limit is not None:
            limit.enqueue(frame, frame.units, is_first=frame.ticket.at_limit is limit)
            if limit not in self.limits:
                self.limits[limit] = None
                self.changed[limit] = None

    def remove(self, frame: DataFrame) -> None:
        """Remove a frame that was dropped or reached its deadline."""
        limit = frame.limit
        if limit is not None:
            limit.waiters.discard(frame)
            self._drop_if_empty(limit)

    def next(self, limit: Limit, now_ns: int) -> DataFrame | None:
        """Remove the next frame from the queue and return it; None while the limit is in debt, or without waiters."""
        waiters = limit.waiters
        if not waiters.waiting or limit.debt_ns(now_ns):
            return None
        frame: DataFrame = waiters.pop()
        self._drop_if_empty(limit)
        return frame

    def take_all(self, limit: Limit) -> list[DataFrame]:
        """Empty the queue of a limit, and return its frames in order."""
        found: list[DataFrame] = limit.waiters.take_all()
        self._drop_if_empty(limit)
        return found

    def credit_returned(self, limits: Iterable[Limit]) -> None:
        """Reservations of these limits were released: their waiters may be due sooner."""
        for limit in limits:
            if limit.waiters.waiting:
                self.changed[limit] = None

    def end(self, frame: DataFrame, event: FrameEvent) -> None:
        """The frame has passed, or never will: release what it has reserved."""
        if frame.passage is not None:
            self.release(frame.passage)
        if frame.ticket.reserved:
            self.credit_returned(frame.ticket.reserved)
            frame.ticket.release()
        frame.on(event)

    def _drop_if_empty(self, limit: Limit) -> None:
        if not limit.waiters.waiting:
            self.limits.pop(limit, None)
            self.changed[limit] = None

    # ---- reservations

    def reserve(self, passage: Passage, now_ns: int) -> None:
        """It may lapse from now on. `release` it in any case."""
        self._reserving[passage] = now_ns, passage.left_bytes

    def release(self, passage: Passage) -> None:
        """Release what it reserves, if it has not lapsed."""
        self._reserving.pop(passage, None)
        passage.end()
        self.credit_returned(passage.left)

    def lapse(self, now_ns: int) -> None:
        """Release reservations for what has not arrived within a second: others do not wait for it any longer."""
        reserving = self._reserving
        for _ in range(min(len(reserving), _CHECKED_AT_ONCE)):
            passage, (since_ns, bytes_then) = next(iter(reserving.items()))
            if now_ns - since_ns < LAPSE_NS:
                return
            left, left_bytes = passage.left, passage.left_bytes
            if bytes_then - left_bytes < max(LEAST_PORTION, *earned(left, left_bytes, LAPSE_NS), 0):
                self.release(passage)
            else:
                del reserving[passage]
                self.reserve(passage, now_ns)
