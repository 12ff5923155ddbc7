"""The life of a request that carries data, and how it passes its limits: the one place that charges it.

    PASSING   the bytes that have arrived pass, or are about to
    HELD      it waits in the queue of a limit; nothing more is read from its connection
    REFUSED   its bytes are discarded as they arrive, and the proxy answers it when the last one has arrived
    OVER      its last byte was forwarded or discarded, or its connection was closed

A Produce request passes its limits on its way to the broker. A fetch waits for its limits before it is sent, and its
response is charged on its way to the client, so HELD then stops reading from the broker. `quotas.admission.frame` has
the rule, and `proxy.sessions.wakeups` the timers that end a hold.
"""

from abc import abstractmethod
from collections.abc import Mapping
from enum import IntEnum, auto
from types import MappingProxyType
from typing import Final, Protocol

from proxy.enforcement.delay import Delay
from proxy.enforcement.identity import Client
from proxy.enforcement.throttle_actions import Reply
from proxy.streams.connection import Connection
from proxy.streams.pending import Pending
from quotas.admission.frame import Charge, decide, next_number
from quotas.admission.limit import Limit
from quotas.admission.topic_thresholds import count_throttled
from quotas.limit_kinds import PRODUCER_IDS_RATE, REQUEST_RATE

#: The largest debt that a dry run adds to. Data that waited longer would expire in its client before it is sent (Java's
#: `delivery.timeout.ms`), and after a change of the limits, a dry run shows their effect within this time.
MOST_DRY_RUN_DEBT_NS: Final = 120_000_000_000
#: Limits whose amounts do not grow with the bytes of a frame.
_COUNTED_ONCE: Final = frozenset({REQUEST_RATE, PRODUCER_IDS_RATE})


# Ints, because the hash of an Enum is a function call in Python.
class Life(IntEnum):
    """The states of a request, as in the table above."""

    PASSING = auto()
    HELD = auto()
    REFUSED = auto()
    OVER = auto()


class LifeEvent(IntEnum):
    """The events that move a request from one state to the next.

    WAIT      a limit holds it
    RELEASE   it is next in the queue, or the limits have changed, so it is decided again
    REFUSE    the proxy will answer it with an error
    END       its last byte has passed or was discarded
    CLOSE     its connection was closed
    """

    WAIT = auto()
    RELEASE = auto()
    REFUSE = auto()
    END = auto()
    CLOSE = auto()


_L = Life
_E = LifeEvent

TRANSITIONS: Final[Mapping[Life, Mapping[LifeEvent, Life]]] = MappingProxyType(
    {
        _L.PASSING: {_E.WAIT: _L.HELD, _E.REFUSE: _L.REFUSED, _E.END: _L.OVER, _E.CLOSE: _L.OVER},
        _L.HELD: {_E.RELEASE: _L.PASSING, _E.CLOSE: _L.OVER},
        _L.REFUSED: {_E.END: _L.OVER, _E.CLOSE: _L.OVER},
        _L.OVER: {_E.CLOSE: _L.OVER},
    }
)


class HoldOwner(Protocol):
    """The connection of a held request, as the queues see it."""

    @abstractmethod
    def release(self, request: "LimitedRequest", reads: int) -> None:
        """Decide the request again, which is no longer `HELD`. Unless it is held again, read from its connection
        `reads` more times.
        """


class LimitedRequest(Pending):
    """A request that carries data: the base of Produce and Fetch requests.

    reply          how its response can slow its client down
    client         the client that sent it, and is charged
    number         the number of its frame, by which limits recognize it
    size           the size of the frame in bytes; 0: not known yet
    charges        the charges of the latest chunk that have not been made
    limit          the limit where it waits, or which has just released it; None: neither
    served         the limits in whose queues it has waited
    counted_by     the limit that it waited for first, which counts its holds; None: it has not been held
    since_ns       when its current hold began
    held_ns        how long its earlier holds lasted
    debt           of the limits that it leaves in debt, the one that takes longest to pay, or None
    debt_until_ns  when that debt will be paid
    delay          the delay of its response, or None
    """

    __slots__ = (
        "charges",
        "client",
        "counted_by",
        "debt",
        "debt_until_ns",
        "delay",
        "held_ns",
        "limit",
        "number",
        "reply",
        "served",
        "since_ns",
        "size",
        "state",
    )

    def __init__(self, client: Client, reply: Reply, size: int) -> None:
        self.client = client
        self.reply: Final = reply
        self.size = size
        self.number: Final = next_number()
        self.state = Life.PASSING
        self.charges: list[Charge] = []
        self.limit: Limit | None = None
        self.served: list[Limit] = []
        self.counted_by: Limit | None = None
        self.since_ns = self.held_ns = self.debt_until_ns = 0
        self.debt: Limit | None = None
        self.delay: Delay | None = None

    @property
    def is_answered(self) -> bool:
        """Whether the broker responds: not to acks=0."""
        return self.reply is not Reply.NONE

    @property
    def is_held(self) -> bool:
        return self.state is Life.HELD

    @property
    def holds_response(self) -> bool:
        """Whether its response, or the rest of it, waits for a limit."""
        return False

    @property
    def hold(self) -> tuple[Limit, int, int] | None:
        """The limit for which it waits, since when, and its size in the queue. None: it is not held."""
        limit = self.limit
        return None if limit is None or not self.is_held else (limit, self.since_ns, limit.waiters.size_of(self))

    def on(self, event: LifeEvent) -> None:
        """Change to the state that the table gives for this event."""
        self.state = TRANSITIONS[self.state][event]

    # ---- passing limits

    def pass_limits(self, connection: Connection, chunk: int, left: int, now_ns: int) -> bool:
        """Charge the latest chunk, limit by limit, as far as it passes. Returns False if the request is held now.

        chunk   its size in bytes; 0 if the charges are not for bytes
        left    how many bytes of the frame have not passed, including this chunk

        For example, with the limits of the client, a group and the total, where the group is in debt:

            charges     client 500 kB    group 500 kB                        total 500 kB
            `decide`    passes           must wait                           is not asked
            enforced    is charged       HELD in its queue, uncharged        uncharged
            dry run     is charged       is charged, counts as throttled     is charged
        """
        charges, self.charges = self.charges, []
        passed, limit, wait_ns = decide(charges, self.number, self.limit, now_ns)
        self._charge(charges[:passed], now_ns)
        if limit is None:
            self.limit = None
            return True
        if self.counted_by is None:  # only once for each request
            self.counted_by = limit
            topics = self.topics_at(connection, limit, now_ns)
            connection.context.actions.found_debt(
                connection.identity, self.client, limit, wait_ns, self.size, topics, now_ns
            )
        if connection.context.actions.enforces:
            self.charges = charges[passed:]
            self._wait(connection, limit, wait_ns, chunk, left, now_ns)
            return False
        self._go_past(charges[passed:], now_ns)
        return True

    def _charge(self, charges: list[Charge], now_ns: int) -> None:
        """Charge these limits, which the chunk passes."""
        for limit, units in charges:
            # Set before the charge, so that the frame may continue if this chunk takes the limit into debt.
            limit.last_charged_by = self.number
            if limit in self.served and limit is not self.limit:  # a limit that held it has counted it
                count_throttled(limit, units, now_ns)
            debt_ns = limit.charge(units, now_ns)
            if debt_ns and now_ns + debt_ns > self.debt_until_ns and self.owes(limit):
                self.debt, self.debt_until_ns = limit, now_ns + debt_ns

    def _wait(self, connection: Connection, limit: Limit, wait_ns: int, chunk: int, left: int, now_ns: int) -> None:
        """Wait in the queue of this limit, with the rest of the frame, in the limit's unit."""
        units = self.charges[0][1]
        if limit is not self.limit:
            count_throttled(limit, units, now_ns)
        queued = self.queued(limit, units, chunk, left)
        connection.context.actions.notify_held(connection.identity, limit, wait_ns, self.reply, queued, now_ns)
        self.limit, self.since_ns = limit, now_ns
        self.on(LifeEvent.WAIT)
        limit.enqueue(self, queued, is_first=limit in self.served)

    def _go_past(self, charges: list[Charge], now_ns: int) -> None:
        """In a dry run, charge the limits that would hold the chunk, too, so that their debt is what it would be if the
        limit were enforced and the client sent the same data at the same times.
        """
        for limit, units in charges:
            _, would_hold, wait_ns = decide([(limit, units)], self.number, self.limit, now_ns)
            if would_hold is None:
                self._charge([(limit, units)], now_ns)
                continue
            count_throttled(limit, units, now_ns)
            if wait_ns < MOST_DRY_RUN_DEBT_NS:
                limit.algorithm.record(units, now_ns)
            else:
                limit.uncharged += units
        self.limit = None

    def queued(self, limit: Limit, units: int, chunk: int, left: int) -> int:
        """The size of the frame's rest in the queue of a limit that charges `units` for this chunk."""
        return units * left // chunk if chunk and limit.name not in _COUNTED_ONCE else units

    def owes(self, limit: Limit) -> bool:
        """Whether the client should wait for the debt of this limit."""
        return True

    def topics_at(self, connection: Connection, limit: Limit, now_ns: int) -> tuple[str, ...]:
        """The topics of the latest chunk whose records count for this limit. None if it counts the request itself."""
        return ()

    def drop_replaced(self, connection: Connection) -> None:
        """Remove the charges of limits that were replaced during a hold, so that these do not count the chunk. New
        limits count starting with the next chunk, and the first limit on topics, records or producer ids starting with
        the next request.
        """
        is_in_use = connection.context.registry.is_in_use
        self.charges = [each for each in self.charges if is_in_use(each[0])]
        if not self.charges:
            self.limit = None

    # ---- the ends of holds and of frames

    def on_release(self, now_ns: int) -> None:
        """Record the end of a hold. The request has left the queue, and is decided again."""
        self.held_ns += now_ns - self.since_ns
        if self.limit is not None and self.limit not in self.served:
            self.served.append(self.limit)
        self.on(LifeEvent.RELEASE)

    def leave_debt(self, connection: Connection, now_ns: int) -> None:
        """Notify the client, once, of the debt that the frame leaves, unless its limit is gone since. All of the frame
        passes.
        """
        limit, wait_ns = self.debt, self.debt_until_ns - now_ns
        if limit is not None and wait_ns > 0 and connection.context.registry.is_in_use(limit):
            is_counted = self.counted_by is not None
            self.counted_by = self.counted_by or limit
            self.delay = connection.context.actions.debt_left(
                connection.identity, self.client, limit, wait_ns, self.reply, now_ns, is_counted=is_counted
            )

    def end(self, connection: Connection, now_ns: int, event: LifeEvent = LifeEvent.END) -> None:
        """End the request, whose last byte has passed or was discarded. Its holds count as one throttle."""
        if self.counted_by is not None and self.state is not Life.OVER and (self.served or self.state is Life.HELD):
            connection.context.actions.report.released(self.client, self.counted_by, self.held_ns, now_ns)
        self.on(event)

    def close(self, connection: Connection, now_ns: int) -> None:
        """End the request without its last byte, because its connection was closed or it was dropped."""
        if self.is_held and self.limit is not None:
            self.limit.waiters.discard(self)
            self.held_ns += now_ns - self.since_ns
        self.end(connection, now_ns, LifeEvent.CLOSE)
