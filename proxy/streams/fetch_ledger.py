"""What open fetches have reserved.

The size of a response is known when it arrives, and one client may have several fetches open, at several brokers. So a
fetch reserves bytes before it is forwarded, and is reconciled when the response header arrives:

    reserve   the request's `max_bytes` is lowered to a share of what is left of the limit, and that share is charged
    settle    the response's size is charged in place of the reservation
    cancel    the connection is closed: the reservation is given back

What is left is divided by the ready connections of this client: those whose next fetch waits, and those that received a
response in the present second or the one before. So connections that are idle for longer keep nothing from the others.

Brokers return a first record batch whole even if it is larger than `max_bytes`; so a fetch reserves at least the size
of such a batch of this client lately, and while none has arrived the largest batch that a broker accepts by default.
Thus at most one fetch overdraws a limit, by one batch.
"""

from typing import Final, final

from quotas.admission.client_limits import ClientLimits
from quotas.admission.decision import Decision
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
    """The fetches of one client, over all its connections.

    open     fetches whose response has not arrived
    batch    bytes of the smallest response lately; an upper bound while none has arrived
    latest   bytes of the latest response; None while none has arrived
    """

    __slots__ = ("_answered", "_answered_before", "_period", "_waiting", "batch", "latest", "open")

    def __init__(self) -> None:
        self.open = 0
        self.batch = LARGEST_BATCH
        self.latest: int | None = None
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

    def learn(self, size: int, budget: int) -> None:
        """Record a response of `size` bytes to a fetch for at most `budget` bytes.

        An empty one contains no batch. But fetches that wait for new data must not block each other, so each empty
        response makes the next reservation smaller.
        """
        self.latest = size
        if size <= EMPTY_RESPONSE:
            self.batch //= 4
        elif size >= budget:
            self.batch = size
        else:
            self.batch = min(self.batch, size)


def ledger_of(limits: ClientLimits) -> FetchLedger:
    """The ledger of a client; all its connections share it."""
    ledger = limits.fetches
    if not isinstance(ledger, FetchLedger):
        ledger = limits.fetches = FetchLedger()
    return ledger


@final
class Reservation:
    """What one open fetch was charged before its response.

    limits      were charged `amount` bytes at `charged_ns`
    budget      the `max_bytes` that was forwarded
    """

    __slots__ = ("amount", "budget", "charged_ns", "fetching", "ledger", "limits")

    def __init__(self, fetching: "Fetching", ledger: FetchLedger, limits: LimitSet, now_ns: int) -> None:
        self.fetching = fetching
        self.ledger = ledger
        self.limits = limits
        self.amount = 0
        self.budget = 0
        self.charged_ns = now_ns

    def plan(self, asked: int | None) -> int:
        """The bytes to charge: the fetch's share of what is left, or a batch if that is more.

        Sets `budget`. `asked`: the request's own `max_bytes`; None where it has none: no budget bounds its response, so
        it reserves the size of the latest one, within its share, and at first its share of all connections.
        """
        limits, ledger = self.limits, self.ledger
        left = max(limits.headroom(self.charged_ns), limits.earned(SMALLEST_BUDGET_NS))
        ready = max(1, ledger.ready(self.charged_ns))
        self.budget = max(1, left // ready)
        if asked is None:
            latest = left // (ready + ledger.open) if ledger.latest is None else ledger.latest
            return max(min(self.budget, latest), ledger.batch)
        return max(1, min(self.budget, asked), ledger.batch)

    def open(self) -> None:
        """The fetch is forwarded."""
        self.ledger.open += 1
        self.fetching.opened()

    def settle(self, limits: LimitSet, size: int, now_ns: int, *, is_charged: bool = True) -> Decision:
        """Charge the `size` bytes of the response in place of the reservation. Returns the debt that is left.

        limits       the client's limits now
        is_charged   False: charge nothing, in a dry run that has enough debt
        """
        ledger = self.ledger
        ledger.open -= 1
        if self.limits.limits:
            self.fetching.answered(ledger, now_ns)
        ledger.learn(size, self.budget)
        if not is_charged:
            size = 0
        reserved = self.amount
        if limits is not self.limits and limits.limits != self.limits.limits:
            self._give_back(reserved, now_ns)
            reserved = 0
        if size < reserved:
            self._give_back(reserved - size, now_ns)
            reserved = size
        return limits.settle(size, reserved, now_ns)

    def cancel(self, now_ns: int) -> None:
        """No response arrives: give back what was charged."""
        self.ledger.open -= 1
        self._give_back(self.amount, now_ns)

    def _give_back(self, amount: int, now_ns: int) -> None:
        if amount:
            self.limits.refund(amount, self.charged_ns, now_ns)


@final
class Fetching:
    """One connection that fetches, in the ledger of its client."""

    __slots__ = ("_state", "ledger")

    def __init__(self) -> None:
        self.ledger: FetchLedger | None = None
        self._state = _NOT_READY

    def begin(self, limits: ClientLimits, now_ns: int) -> Reservation:
        """The connection is to send a fetch as this client: begin its reservation, again if the fetch was held."""
        ledger = self.ledger
        if ledger is None or ledger is not limits.fetches:
            self.leave()
            ledger = self.ledger = ledger_of(limits)
        if limits.fetch.limits or self._state != _NOT_READY:  # else nothing is shared
            self._become(_WAITING)
        return Reservation(self, ledger, limits.fetch, now_ns)

    def opened(self) -> None:
        """Its fetch is forwarded."""
        if self._state != _NOT_READY:
            self._become(_NOT_READY)

    def answered(self, ledger: FetchLedger, now_ns: int) -> None:
        """A response to its fetch in this ledger has arrived."""
        if ledger is self.ledger and self._state != _WAITING:
            self._become(ledger.period(now_ns))

    def leave(self) -> None:
        """The connection is closed, or belongs to another client from now on."""
        self._become(_NOT_READY)
        self.ledger = None

    def _become(self, state: int) -> None:
        if self.ledger is not None:
            self.ledger.count(self._state, -1)
            self.ledger.count(state, 1)
        self._state = state
