"""The life of a request that carries data, and how it passes its limits: the one place that charges it.

    PASSING   what has arrived of it passes, or is about to
    HELD      waits for a limit, in the limit's queue: no more of it is read, and nothing behind it
    REFUSED   its bytes are discarded as they arrive, and the proxy answers it at its end
    OVER      its last byte was forwarded or discarded, or its connection was closed

A Produce request passes its limits on its way to the broker. A fetch waits for its limits before it is sent, and its
response is charged on its way to the client: HELD then stops what the broker sends. The rule is in
`quotas.admission.frame`; the timers that end a hold are in `proxy.sessions.wakeups`.
"""

from abc import abstractmethod
from collections.abc import Mapping
from enum import IntEnum, auto
from types import MappingProxyType
from typing import Final, Protocol

from proxy.enforcement.delay import Delay
from proxy.enforcement.identity import Client
from proxy.enforcement.measures import Reply
from proxy.streams.connection import Connection
from proxy.streams.response_stream import Pending
from quotas.admission.frame import Charge, decide, next_number
from quotas.admission.limit import Limit
from quotas.admission.topic_thresholds import count_throttled
from quotas.limit_kinds import PRODUCER_IDS_RATE, REQUEST_RATE

#: Largest debt that a dry run adds to. Data that waits for longer expires in its client before it is sent (Java's
#: `delivery.timeout.ms`), and after a change of the limits a dry run shows their effect within this time.
MOST_DRY_RUN_DEBT_NS: Final = 120_000_000_000
#: Limits whose amounts do not grow with the bytes of a frame.
_COUNTED_ONCE: Final = frozenset({REQUEST_RATE, PRODUCER_IDS_RATE})


# Ints, since an Enum's hash is a call in Python.
class Life(IntEnum):
    """The states of a request: see the table above."""

    PASSING = auto()
    HELD = auto()
    REFUSED = auto()
    OVER = auto()


class LifeEvent(IntEnum):
    """What moves a request from one state to the next.

    WAIT      a limit holds it
    RELEASE   its turn has come, or the limits have changed: it is decided again
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
    def release(self, request: "HeldRequest", reads: int) -> None:
        """Decide the request again: it is no longer `HELD`. Unless it is held again, read so many times more from where
        it came.
        """


class HeldRequest(Pending):
    """A request that carries data; the base of Produce and Fetch requests.

    reply        what its response can do against debt
    client       that sent it, and is charged
    number       of its frame, for its limits
    size         bytes of the frame; 0: not known yet
    charges      of the latest read, which it has not passed
    limit        where it waits, or has its turn
    served       limits in whose queue it had its turn
    counted_by   the limit that it waited for first, which counts its holds; None: it was not held
    since_ns     when its present hold began; `held_ns`: of the holds before
    debt         the limit that it leaves in debt for longest, or None; `debt_until_ns`: until when
    delay        of its response, or None
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
    def hold(self) -> tuple[Limit, int, int] | None:
        """The limit where it waits, since when, and its size in the queue there; None: it is not held."""
        limit = self.limit
        return None if limit is None or not self.is_held else (limit, self.since_ns, limit.waiters.size_of(self))

    def on(self, event: LifeEvent) -> None:
        """Go to the state that the table gives."""
        self.state = TRANSITIONS[self.state][event]

    # ---- passing limits

    def pass_limits(self, connection: Connection, read: int, left: int, now_ns: int) -> bool:
        """Charge the latest read, limit by limit, as far as it passes. False: the request is held.

        read   its bytes; 0 where the charges are not for bytes
        left   bytes of the frame that have not passed, this read among them
        """
        charges, self.charges = self.charges, []
        # One round, but for a dry run, which goes on behind each limit that would hold.
        while True:
            passed, limit, wait_ns = decide(charges, self.number, self.limit, now_ns)
            for each, units in charges[:passed]:
                # Set before the charge: if this read takes the limit into debt, its frame may go on.
                each.overdrawn_by = self.number
                if each in self.served and each is not self.limit:  # this one has counted the read when it waited
                    count_throttled(each, units, now_ns)
                debt_ns = each.charge(units, now_ns)
                if debt_ns and now_ns + debt_ns > self.debt_until_ns and self.owes(each):
                    self.debt, self.debt_until_ns = each, now_ns + debt_ns
            if limit is None:
                self.limit = None
                return True
            self._find_debt(connection, limit, wait_ns, now_ns)
            units = charges[passed][1]
            if connection.context.measures.enforces:
                self.charges = charges[passed:]
                if limit is not self.limit:
                    count_throttled(limit, units, now_ns)
                self._wait(connection, limit, wait_ns, self.queued(limit, units, read, left), now_ns)
                return False
            # A dry run charges it all the same, so that the debt is that of an enforced limit whose client sends the
            # same at the same times.
            count_throttled(limit, units, now_ns)
            if wait_ns < MOST_DRY_RUN_DEBT_NS:
                limit.algorithm.record(units, now_ns)
            else:
                limit.uncharged += units
            charges = charges[passed + 1 :]

    def _find_debt(self, connection: Connection, limit: Limit, wait_ns: int, now_ns: int) -> None:
        """A limit in debt, or with waiters, stops a read: counted once for each request."""
        if self.counted_by is None:
            self.counted_by = limit
            topics = self.topics_at(connection, limit, now_ns)
            connection.context.measures.found_debt(
                connection.identity, self.client, limit, wait_ns, self.size, topics, now_ns
            )

    def _wait(self, connection: Connection, limit: Limit, wait_ns: int, queued: int, now_ns: int) -> None:
        """Wait in the queue of this limit, with what is left of the frame in its unit."""
        connection.context.measures.notify_held(connection.identity, limit, wait_ns, self.reply, queued, now_ns)
        self.limit, self.since_ns = limit, now_ns
        self.on(LifeEvent.WAIT)
        limit.enqueue(self, queued, is_first=limit in self.served)

    def queued(self, limit: Limit, units: int, read: int, left: int) -> int:
        """What it counts in the queue of a limit that charges `units` for a read: what is left of its frame."""
        return units * left // read if read and limit.name not in _COUNTED_ONCE else units

    def owes(self, limit: Limit) -> bool:
        """Whether the client is to wait for the debt of this limit."""
        return True

    def topics_at(self, connection: Connection, limit: Limit, now_ns: int) -> tuple[str, ...]:
        """The topics of the latest read whose records count for this limit, if it does not count the request itself."""
        return ()

    def drop_replaced(self, connection: Connection) -> None:
        """The limits may have changed during a hold: those that were replaced do not count the read. New ones count
        from the next read on; the first limit on topics, records or producer ids from the next request on.
        """
        is_in_use = connection.context.registry.is_in_use
        self.charges = [each for each in self.charges if is_in_use(each[0])]

    # ---- the ends of holds and of frames

    def on_release(self, now_ns: int) -> None:
        """It is no longer in the queue where it was held: it is decided again."""
        self.held_ns += now_ns - self.since_ns
        if self.limit is not None and self.limit not in self.served:
            self.served.append(self.limit)
        self.on(LifeEvent.RELEASE)

    def leave_debt(self, connection: Connection, now_ns: int) -> None:
        """All of its frame passes: the client is told once of the debt that it leaves."""
        limit, wait_ns = self.debt, self.debt_until_ns - now_ns
        if limit is not None and wait_ns > 0:
            is_counted = self.counted_by is not None
            self.counted_by = self.counted_by or limit
            self.delay = connection.context.measures.debt_left(
                connection.identity, self.client, limit, wait_ns, self.reply, now_ns, is_counted=is_counted
            )

    def end(self, connection: Connection, now_ns: int) -> None:
        """Its last byte has passed, or was discarded."""
        self._report_holds(connection, now_ns)
        self.on(LifeEvent.END)

    def close(self, connection: Connection, now_ns: int) -> None:
        """Nothing of its frame passes any more: its connection was closed, or it was dropped."""
        if self.state is Life.HELD and self.limit is not None:
            self.limit.waiters.discard(self)
            self.held_ns += now_ns - self.since_ns
        if self.state is not Life.OVER:
            self._report_holds(connection, now_ns)
        self.on(LifeEvent.CLOSE)

    def _report_holds(self, connection: Connection, now_ns: int) -> None:
        """Its holds count as one throttle."""
        if self.counted_by is not None and (self.served or self.state is Life.HELD):
            connection.context.measures.report.released(self.client, self.counted_by, self.held_ns, now_ns)
