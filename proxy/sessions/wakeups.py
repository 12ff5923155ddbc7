"""Releases what limits hold, with one timer for each limit that has waiters, and ends delays of responses."""

from asyncio import AbstractEventLoop, Handle, TimerHandle
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from proxy.enforcement.delay import Delay
from proxy.streams.limited_request import HoldOwner, LimitedRequest
from quotas.admission.limit import Limit
from quotas.time_units import NS_PER_MS

#: The longest time for which held requests are released at once. Then the loop serves others for a millisecond or more.
LONGEST_PASS_NS: Final = 5_000_000
#: The most requests that are decided again, and the most queues that are emptied, in that time.
MOST_AT_ONCE: Final = 100
#: How many reads a connection needs to its next decision: the rest of its frame, the next header, the next chunk.
READS_TO_NEXT_FRAME: Final = 3


class Wakeups:
    """Shared by all sessions of one event loop."""

    def __init__(self, loop: AbstractEventLoop, clock: Callable[[], int]) -> None:
        self._loop = loop
        self._clock = clock
        #: For each limit with waiters, a timer, and the time for which it is set, when the debt should have been paid.
        self._timers: dict[Limit, TimerHandle] = {}
        self._due_ns: dict[Limit, int] = {}
        #: The connection of each held request.
        self._owners: dict[LimitedRequest, HoldOwner] = {}
        #: Of those that are not held for longer than until a certain time.
        self._ends: dict[LimitedRequest, TimerHandle] = {}
        self._delays: dict[Delay, TimerHandle] = {}
        #: Requests that must be decided again as soon as possible.
        self._asking_again: deque[LimitedRequest] = deque()
        #: Limits whose queues must be decided again after these requests.
        self._changed_limits: dict[Limit, None] = {}
        self._next_pass: Handle | None = None

    def add(self, request: LimitedRequest, owner: HoldOwner, until_ns: int = 0) -> None:
        """The request is held now, and is in the queue of its limit. `until_ns`: when it is decided again even if it is
        not due; 0: never.
        """
        self._owners[request] = owner
        if until_ns:
            self._ends[request] = self._after(until_ns - self._clock(), self._end_hold, request)
        limit = request.limit
        if limit is not None and limit not in self._timers:
            self._arm(limit)

    def forget(self, request: LimitedRequest) -> None:
        """The request will not pass: remove it from its queue."""
        if self._owner_of(request) is not None:
            self._leave_queue(request)

    def _end_hold(self, request: LimitedRequest) -> None:
        """It has been held for long enough."""
        self._leave_queue(request)
        self._release(request, READS_TO_NEXT_FRAME)

    def _leave_queue(self, request: LimitedRequest) -> None:
        limit = request.limit
        if limit is not None:
            limit.waiters.discard(request)
            if not limit.waiters.waiting:
                self._disarm(limit)

    def _owner_of(self, request: LimitedRequest) -> HoldOwner | None:
        """The connection of a request whose hold ends now."""
        timer = self._ends.pop(request, None)
        if timer is not None:
            timer.cancel()
        return self._owners.pop(request, None)

    def limits_changed(self) -> None:
        """The limits or the mode have changed: decide all held requests again, those of each limit in order."""
        self._ask_again(self._timers)

    def rate_changed(self, limit: Limit) -> None:
        """The rate of this limit has changed, so its waiters are due at another time. A timer that is too early now is
        not touched until it fires, which halves the cost of a rate that changes four times a second.
        """
        if limit in self._timers:
            now_ns = self._clock()
            wait_ns = limit.debt_ns(now_ns)
            if now_ns + wait_ns < self._due_ns[limit]:
                self._set_timer(limit, wait_ns, now_ns)

    def limits_with_waiters(self) -> Iterable[Limit]:
        """The limits for which something waits. Do not keep the result, which changes."""
        return self._timers

    # ---- delays

    def delay(self, delay: Delay, end: Callable[[], None]) -> None:
        """Call `end` when the delay has passed."""
        self._delays[delay] = self._after(delay.until_ns - self._clock(), self._end_delay, delay, end)

    def forget_delay(self, delay: Delay) -> None:
        """The delay has ended, and its response may pass."""
        delay.until_ns = 0
        timer = self._delays.pop(delay, None)
        if timer is not None:
            timer.cancel()

    def _end_delay(self, delay: Delay, end: Callable[[], None]) -> None:
        if delay.until_ns > self._clock():
            self.delay(delay, end)
        else:
            self.forget_delay(delay)
            end()

    # ---- inside

    def _arm(self, limit: Limit) -> None:
        now_ns = self._clock()
        self._set_timer(limit, limit.debt_ns(now_ns), now_ns)

    def _set_timer(self, limit: Limit, wait_ns: int, now_ns: int) -> None:
        self._disarm(limit)
        self._due_ns[limit] = now_ns + wait_ns
        self._timers[limit] = self._after(wait_ns, self._pass, limit)

    def _disarm(self, limit: Limit) -> None:
        timer = self._timers.pop(limit, None)
        if timer is not None:
            timer.cancel()
            del self._due_ns[limit]

    def _after(self, wait_ns: int, callback: Callable[..., None], *arguments: object) -> TimerHandle:
        # The loop's timers count in milliseconds. A late timer costs nothing, because the bucket keeps filling.
        wait_ms = max(1, -(-wait_ns // NS_PER_MS))
        return self._loop.call_later(wait_ms / 1000, callback, *arguments)

    def _pass(self, limit: Limit) -> None:
        """The debt should be paid. Release a frame of each waiter, until there is debt again or the time is used up."""
        now_ns = self._clock()
        ends_ns = now_ns + LONGEST_PASS_NS
        while self._serve_round(limit, now_ns):
            now_ns = self._clock()
            if now_ns >= ends_ns:
                self._dissolve(limit, now_ns)
                break
        # Set the timer only now, because requests that come back during the pass do not need one.
        if limit.waiters.waiting:
            self._arm(limit)
        else:
            self._disarm(limit)

    def _serve_round(self, limit: Limit, now_ns: int) -> bool:
        """Release the next waiter in the queue. Returns whether there was one."""
        if not limit.waiters.waiting or limit.debt_ns(now_ns):
            return False
        has_room = limit.has_room_for_all(now_ns)  # before its frame is charged
        # The connection reads its next frame now, so that it is back in the queue before the next waiter is released,
        # because the queue is fair only among its members: if a session with small frames came back in the loop's next
        # round, it would pass only one small frame for each large frame of another session.
        #
        # If the limit has room for all waiters, the connection reads on in a slice of its own instead, and only frames
        # that it has read already come back, so the queue empties. Otherwise clients that never stop sending would
        # queue for each other forever, a frame at a time, however little of the limit they use. The queue is not
        # dropped before that, because a connection may have read hundreds of frames before its limit went into debt,
        # and would use all of the room.
        self._release(limit.waiters.pop(), 0 if has_room else READS_TO_NEXT_FRAME)
        return True

    def _dissolve(self, limit: Limit, now_ns: int) -> None:
        """Empty a queue that is too long for one pass, if the limit has room for all of it. With passes alone it would
        never become empty, because released waiters come back to its end before the next pass.
        """
        if limit.waiters.waiting and not limit.debt_ns(now_ns) and limit.has_room_for_all(now_ns):
            self._ask_again((limit,))

    def _ask_again(self, limits: Iterable[Limit]) -> None:
        """Empty the queues of these limits, and decide their requests again."""
        self._changed_limits.update(dict.fromkeys(limits))
        if self._next_pass is None:
            self._ask_some_again()

    def _ask_some_again(self) -> None:
        """Decide at most `MOST_AT_ONCE` requests and limits, for the time of one pass; the rest in the next round."""
        # A queue is emptied only when all requests of the previous one have been decided again.
        requests, limits = self._asking_again, self._changed_limits
        ends_ns = self._clock() + LONGEST_PASS_NS
        for _ in range(MOST_AT_ONCE):
            if requests:
                self._release(requests.popleft(), 0)
            elif limits:
                limit = next(iter(limits))
                del limits[limit]
                requests.extend(limit.waiters.take_all())
                self._disarm(limit)  # it was set before the change
            else:
                break
            if self._clock() >= ends_ns:
                break
        self._next_pass = self._loop.call_soon(self._ask_some_again) if requests or limits else None

    def _release(self, request: LimitedRequest, reads: int) -> None:
        """Decide the request again, if it is still held."""
        owner = self._owner_of(request)
        if owner is not None and request.is_held:
            request.on_release(self._clock())
            owner.release(request, reads)
