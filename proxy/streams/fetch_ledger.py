"""What consumers may fetch: the budget and the reservation of each fetch.

The size of a response is known when it arrives, and one client may have several fetches open, at several brokers. So
the request's `max_bytes` is lowered to a share of what is left of the limit, and the fetch reserves what its response
is expected to bring. The response is charged to the client that sent the fetch, and ends the reservation.

What is left is divided by the ready connections of this client: those whose next fetch waits, and those that received a
response in the present second or the one before. So connections that are idle for longer keep nothing from the others.

A connection has one fetch open at a time: a further one waits for the response. A fetch passes only while its limits
are out of debt. So whatever a client sends, at most burst + rate * T + one response for each connection pass in any
time T. Reservations only make this even: brokers return a first record batch whole even if it is larger than
`max_bytes`, and fetches that would overdraw the limit together wait for each other.
"""

from typing import Final, final

from quotas.admission.client_limits import ClientLimits
from quotas.admission.limit_set import LimitSet

#: However little is left, all fetches of a client together may bring what it earns in this time. With less, a consumer
#: at its limit would fetch one batch at a time, thousands of times a second.
SMALLEST_BUDGET_NS: Final = 10_000_000
#: The largest batch that a broker accepts by default (`message.max.bytes`).
LARGEST_BATCH: Final = 1_048_588
#: Responses up to this size count as empty: they contain no batch.
EMPTY_RESPONSE: Final = 512
#: A connection stays ready for one to two periods after a response.
PERIOD_NS: Final = 1_000_000_000

#: In place of the period of a connection's latest response.
_WAITING: Final = -1
_NOT_READY: Final = -2


class FetchLedger:
    """The ready connections of one client."""

    __slots__ = ("_answered", "_answered_before", "_period", "_waiting")

    def __init__(self) -> None:
        self._waiting = 0  # connections whose next fetch waits
        self._period = 0
        self._answered = 0  # connections with a response in the period
        self._answered_before = 0  # in the one before

    def ready(self, now_ns: int) -> int:
        """The number of ready connections: see the module."""
        self.period(now_ns)
        return self._waiting + self._answered + self._answered_before

    def period(self, now_ns: int) -> int:
        """The present period; connections without a response in it or the one before are no longer ready."""
        period = now_ns // PERIOD_NS
        if period > self._period:
            self._answered_before = self._answered if period == self._period + 1 else 0
            self._answered = 0
            self._period = period
        return self._period

    def count(self, state: int, connections: int) -> None:
        """Count connections that wait or had a response in a period, or count fewer.

        state   the period, or a constant in its place
        """
        if state == _WAITING:
            self._waiting += connections
        elif state == self._period:
            self._answered += connections
        elif state == self._period - 1:
            self._answered_before += connections


def ledger_of(limits: ClientLimits) -> FetchLedger:
    """The ledger of a client; all its connections share it."""
    ledger = limits.fetches
    if not isinstance(ledger, FetchLedger):
        ledger = limits.fetches = FetchLedger()
    return ledger


@final
class Fetching:
    """One connection that fetches, in the ledger of its client."""

    __slots__ = ("_batch", "_is_oversize", "_ledger", "_open", "_size", "_state")

    def __init__(self) -> None:
        #: Fetches without a response: more than one if they were sent while no limit applied.
        self._open = 0
        self._ledger: FetchLedger | None = None
        self._state = _NOT_READY
        #: Of the latest response; None: there was none.
        self._size: int | None = None
        #: The size of a batch, at most: of the smallest response, or of the latest one above its budget.
        self._batch = LARGEST_BATCH
        #: The latest response was one batch, and above its budget.
        self._is_oversize = False

    @property
    def is_open(self) -> bool:
        """Whether a fetch waits for its response."""
        return self._open > 0

    def begin(self, limits: ClientLimits) -> None:
        """The connection is to send a fetch as this client, perhaps again after a hold."""
        if self._ledger is None or self._ledger is not limits.fetches:
            self.leave()
            self._ledger = ledger_of(limits)
        if limits.fetch.limits or self._state != _NOT_READY:  # else nothing is shared
            self._become(_WAITING)

    def budget(self, limits: LimitSet, now_ns: int) -> int:
        """The `max_bytes` of its next fetch: its share of what is left."""
        left = max(limits.headroom(now_ns), limits.earned(SMALLEST_BUDGET_NS))
        return max(1, left // self._ready(now_ns))

    def expected(self, asked: int | None, budget: int) -> int:
        """The bytes to reserve for a fetch with this budget.

        asked   the request's own `max_bytes`; None where it has none: no budget bounds its response

        A connection with an empty response before waits for new data: it reserves nothing, or idle consumers would keep
        the limit from the others.
        """
        if self._size is not None and self._size <= EMPTY_RESPONSE:
            return 0
        return max(budget if asked is None else min(budget, asked), self._batch)

    def units(self, limits: LimitSet, now_ns: int) -> int:
        """What its held fetch counts in the queue: the batch that its last response was, or else an equal share."""
        return self._batch if self._is_oversize else max(1, limits.earned(SMALLEST_BUDGET_NS) // self._ready(now_ns))

    def opened(self) -> None:
        """Its fetch is forwarded."""
        self._open += 1
        if self._state != _NOT_READY:
            self._become(_NOT_READY)

    def answered(self, limits: ClientLimits, size: int, budget: int, now_ns: int) -> None:
        """The response to its fetch as this client, of `size` bytes, has arrived. `budget`: 0 if none was set."""
        self._open -= 1
        self._size = size
        self._is_oversize = budget > 0 and size > budget + budget // 8 + EMPTY_RESPONSE
        if self._is_oversize:
            self._batch = size
        elif size > EMPTY_RESPONSE:
            self._batch = min(self._batch, size)
        if self._ledger is not None and self._ledger is limits.fetches and budget and self._state != _WAITING:
            self._become(self._ledger.period(now_ns))

    def leave(self) -> None:
        """The connection is closed, or belongs to another client from now on."""
        self._become(_NOT_READY)
        self._ledger = None

    def _ready(self, now_ns: int) -> int:
        return 1 if self._ledger is None else max(1, self._ledger.ready(now_ns))

    def _become(self, state: int) -> None:
        if self._ledger is not None:
            self._ledger.count(self._state, -1)
            self._ledger.count(state, 1)
        self._state = state
