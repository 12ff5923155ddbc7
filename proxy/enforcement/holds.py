"""The held frames of all connections, by the limit that each waits for.

Each limit has a fair queue (`quotas.admission.fair_queue`). This module has no timers: the shell has one for each limit
with waiters, calls `next` when it fires, and sets it again by `due_ns`.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Final, Protocol

from quotas.admission.limit import Limit, Ticket

NS_PER_MS: Final = 1_000_000


class Hold:
    """A held frame of a connection.

    limit      the limit that it waits for
    size       bytes of the frame
    units      its amount, in the limit's unit
    uncertain  of these, what may turn out not to be charged
    answered   whether the broker responds to it: not to acks=0
    ticket     its charges while it waits for one limit after another
    since_ns   when it was first held
    until_ns   when it passes even if the limit is in debt; 0: never
    waiter     the connection, for the shell
    """

    __slots__ = ("answered", "limit", "since_ns", "size", "ticket", "uncertain", "units", "until_ns", "waiter")

    def __init__(
        self, limit: Limit, size: int, units: int, ticket: Ticket, since_ns: int, *, answered: bool, until_ns: int = 0
    ) -> None:
        self.limit = limit
        self.size = size
        self.units = units
        self.uncertain = 0
        self.answered = answered
        self.ticket = ticket
        self.since_ns = since_ns
        self.until_ns = until_ns
        self.waiter: Waiter | None = None


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


class Waiter(Protocol):
    """A connection with a held frame. `hold`: that frame; None while it is not held."""

    __slots__ = ()

    hold: Hold | None

    @abstractmethod
    def release(self, hold: Hold) -> None:
        """Ask the limits about this frame again: its turn has come."""

    @abstractmethod
    def read_on(self) -> None:
        """Read what has arrived."""


class Overdraft:
    """The charge of a frame that brought limits into debt and has not arrived whole."""

    __slots__ = ()

    @abstractmethod
    def reduce(self, now_ns: int) -> None:
        """Give back what has not arrived: other frames wait for it."""


class Holds:
    """Shared by all connections. `changed`: limits with waiters that may be due at another time than before."""

    __slots__ = ("_overdrafts", "changed", "limits")

    def __init__(self) -> None:
        #: Limits with waiters.
        self.limits: dict[Limit, None] = {}
        self.changed: dict[Limit, None] = {}
        #: The frame that brought a limit into debt, while it has not arrived whole: at most one frame overdraws it.
        self._overdrafts: dict[Limit, Overdraft] = {}

    def add(self, hold: Hold, now_ns: int) -> None:
        """The connection waits from now on. It does not wait for bytes of other frames that have not arrived."""
        limit = hold.limit
        # A frame that had its turn when the credit had been used up keeps its place.
        limit.enqueue(hold, hold.units, uncertain=hold.uncertain, is_first=hold.ticket.turn is limit)
        if limit not in self.limits:
            self.limits[limit] = None
            self.changed[limit] = None
        overdraft = self._overdrafts.pop(limit, None)
        if overdraft is not None:
            overdraft.reduce(now_ns)

    def add_overdraft(self, overdraft: Overdraft, limits: Iterable[Limit], now_ns: int) -> None:
        """A frame has been charged that has not arrived whole; some of these limits may be in debt now."""
        for limit in limits:
            if limit.debt_ns(now_ns):
                self._overdrafts[limit] = overdraft

    def remove_overdraft(self, overdraft: Overdraft, limits: Iterable[Limit]) -> None:
        """That frame has arrived, or never will."""
        for limit in limits:
            if self._overdrafts.get(limit) is overdraft:
                del self._overdrafts[limit]

    def remove(self, hold: Hold) -> None:
        """Remove a hold that was dropped or reached its deadline."""
        limit = hold.limit
        limit.waiters.discard(hold)
        self._drop_if_empty(limit)

    def give_up(self, ticket: Ticket, now_ns: int) -> None:
        """Refund the claims of a frame that will not pass."""
        claimed = tuple(ticket.claims)
        ticket.release(now_ns)
        self.credit_returned(claimed)

    def credit_returned(self, limits: Iterable[Limit]) -> None:
        """Credit was refunded to these limits: their waiters may be due sooner."""
        for limit in limits:
            if limit.waiters.waiting:
                self.changed[limit] = None

    def next(self, limit: Limit, now_ns: int) -> Hold | None:
        """Remove the next frame from the queue and return it; None while the limit is in debt, or without waiters."""
        waiters = limit.waiters
        if not waiters.waiting or limit.debt_ns(now_ns):
            return None
        hold: Hold = waiters.pop()
        self._drop_if_empty(limit)
        return hold

    def take_all(self, limit: Limit) -> list[Hold]:
        """Empty the queue of a limit, and return its frames in order."""
        found: list[Hold] = limit.waiters.take_all()
        self._drop_if_empty(limit)
        return found

    def due_ns(self, limit: Limit, now_ns: int) -> int | None:
        """Nanoseconds until the limit is out of debt; None without waiters."""
        return limit.debt_ns(now_ns) if limit.waiters.waiting else None

    def _drop_if_empty(self, limit: Limit) -> None:
        if not limit.waiters.waiting:
            self.limits.pop(limit, None)
            self.changed[limit] = None
