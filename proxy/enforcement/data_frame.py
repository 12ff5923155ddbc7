"""The life of a data frame that is held, or that does not arrive whole, as a table.

    NEW        at the boundary: nothing of it was forwarded             the request stream has it
    HELD       waits for a limit                                       the limit's queue has it, the pump its bytes
    RELEASED   out of the queue: decided again                         the request stream
    PASSING    what has arrived is forwarded, what has not is reserved the request stream
    DONE       forwarded to its end, or answered by the proxy
    DROPPED    its connection was closed

A reservation lapses if nothing arrives: then the rest asks for another one. A frame that passes whole in one read has
no such object. `proxy.enforcement.holds` has the queues, `quotas.admission` the reservations.
"""

from abc import abstractmethod
from collections.abc import Mapping
from enum import IntEnum, auto
from types import MappingProxyType
from typing import Final, Protocol, final

from quotas.admission.limit import Limit, Ticket
from quotas.admission.passage import Passage


# Ints, since an Enum's hash is a call in Python.
class Life(IntEnum):
    """The states of a data frame: see the table above."""

    NEW = auto()
    HELD = auto()
    RELEASED = auto()
    PASSING = auto()
    DONE = auto()
    DROPPED = auto()


class FrameEvent(IntEnum):
    """What moves a data frame from one state to the next.

    IN_DEBT      a limit holds it
    RELEASE      its turn, or its deadline, has come, or the limits have changed
    ADMITTED     it passes as far as it has arrived
    END          its last byte was forwarded, or the proxy has answered it; or it begins anew when more of it arrives
    CLOSE        its connection was closed
    """

    IN_DEBT = auto()
    RELEASE = auto()
    ADMITTED = auto()
    END = auto()
    CLOSE = auto()


_L = Life
_E = FrameEvent

TRANSITIONS: Final[Mapping[Life, Mapping[FrameEvent, Life]]] = MappingProxyType(
    {
        _L.NEW: {_E.IN_DEBT: _L.HELD, _E.ADMITTED: _L.PASSING, _E.END: _L.DONE, _E.CLOSE: _L.DROPPED},
        _L.HELD: {_E.RELEASE: _L.RELEASED, _E.CLOSE: _L.DROPPED},
        _L.RELEASED: {_E.IN_DEBT: _L.HELD, _E.ADMITTED: _L.PASSING, _E.END: _L.DONE, _E.CLOSE: _L.DROPPED},
        _L.PASSING: {_E.IN_DEBT: _L.HELD, _E.ADMITTED: _L.PASSING, _E.END: _L.DONE, _E.CLOSE: _L.DROPPED},
        _L.DONE: {},
        _L.DROPPED: {},
    }
)


class FrameOwner(Protocol):
    """The connection of a held frame, as the queues see it."""

    __slots__ = ()

    @abstractmethod
    def release(self, frame: "DataFrame") -> None:
        """Decide the frame again: it is `RELEASED`."""

    @abstractmethod
    def read_on(self) -> None:
        """Read what has arrived, unless a frame of the connection is held."""


@final
class DataFrame:
    """One data frame.

    size       its bytes, without the length field
    answered   whether the broker responds to it: not to acks=0
    limit      the limit that holds it; `units`: its amount there
    since_ns   when its present hold began, at the first limit; `held_ns`: of the holds before
    counted_by the limit that counts its holds: the first; None: it was not held, or they have been counted
    until_ns   when it passes even if the limit is in debt; 0: never
    ticket     what it keeps while it waits for one limit after another
    passage    its reservation; None: nothing of it passes yet
    rest       what it is charged for the `rest_bytes` that are not reserved
    late       what was found in it last, after it began to pass; also in `passage` or `rest`
    owner      its connection, while it is held
    """

    __slots__ = (
        "answered",
        "counted_by",
        "held_ns",
        "late",
        "limit",
        "owner",
        "passage",
        "rest",
        "rest_bytes",
        "since_ns",
        "size",
        "state",
        "ticket",
        "units",
        "until_ns",
    )

    def __init__(self, size: int, *, answered: bool) -> None:
        self.state = Life.NEW
        self.size = size
        self.answered = answered
        self.limit: Limit | None = None
        self.units = 0
        self.since_ns = 0
        self.held_ns = 0
        self.counted_by: Limit | None = None
        self.until_ns = 0
        self.ticket = Ticket()
        self.passage: Passage | None = None
        self.rest: dict[Limit, int] = {}
        self.rest_bytes = 0
        self.late: Mapping[Limit, int] = {}
        self.owner: FrameOwner | None = None

    def on(self, event: FrameEvent) -> None:
        """Go to the state that the table gives. KeyError: a defect of this program."""
        self.state = TRANSITIONS[self.state][event]

    def hold(self, limit: Limit, units: int, now_ns: int) -> None:
        """A limit holds it, perhaps after another one."""
        if self.state is not Life.RELEASED:
            self.since_ns = now_ns
        if self.counted_by is None:
            self.counted_by = limit
        self.limit, self.units = limit, units
        self.on(FrameEvent.IN_DEBT)

    def pass_on(self, passage: Passage, now_ns: int) -> None:
        """It passes; `passage`: the reservation of what has not arrived."""
        if self.state is Life.RELEASED:
            self.held_ns += now_ns - self.since_ns
        self.ticket.release()
        self.passage = passage
        self.on(FrameEvent.ADMITTED)

    @property
    def reserved_bytes(self) -> int:
        """How many of its bytes may pass without asking again."""
        passage = self.passage
        return passage.left_bytes if passage is not None and passage.is_reserved else 0

    def lapse(self) -> None:
        """Its reservation was released: what is left of it belongs to the rest."""
        passage, self.passage = self.passage, None
        if passage is not None:
            self._add_to_rest(passage.left)
            self.rest_bytes += passage.left_bytes

    def add(self, amounts: Mapping[Limit, int], now_ns: int) -> None:
        """More was found late in it. What was found before has arrived, so it is charged now: a frame of many topics
        keeps few of their limits.
        """
        passage, rest = self.passage, self.rest
        for limit, units in self.late.items():
            part = min(units, rest.get(limit, 0))
            if part:
                limit.algorithm.record(part, now_ns)
                rest[limit] -= part
            if not rest.get(limit, 1):
                del rest[limit]
            if passage is not None:
                passage.charge(limit, units - part, now_ns)
        self.late = amounts
        if passage is not None and not self.rest_bytes:
            passage.add(amounts)
        else:
            self._add_to_rest(amounts)

    def _add_to_rest(self, amounts: Mapping[Limit, int]) -> None:
        rest = self.rest
        for limit, units in amounts.items():
            rest[limit] = rest.get(limit, 0) + units

    def portion(self, size: int) -> dict[Limit, int]:
        """What the next `size` bytes of the rest are charged."""
        if size >= self.rest_bytes:
            return dict(self.rest)
        return {limit: units * size // self.rest_bytes for limit, units in self.rest.items()}

    def take(self, portion: Mapping[Limit, int], size: int) -> None:
        """This portion is reserved from now on."""
        for limit, units in portion.items():
            self.rest[limit] -= units
        self.rest_bytes -= size
