"""The life of a connection pair: states, events and transitions.

    CONNECTING   no broker has been reached yet
    OPEN         both sides are connected
    DRAINING     the proxy shuts down, or the connection has reached its largest age: no request begins, and requests in
                 flight are answered. What else the client sends is dropped, because it gets no response and will send
                 it again, except data that needs no response (acks=0), which passes
    LINGERING    all responses have been sent, and so has the end of the stream, so the client will close its side soon.
                 The proxy does not close first: closing a socket with unread bytes resets the connection, and the
                 client could lose its last responses
    FLUSHING     the client has ended its stream: what it sent (above all, acks=0 data) is forwarded, and it receives
                 the responses in flight. Then the proxy ends its stream to the broker, which ends its own when it has
                 read everything
    CLOSED       both sockets are closed

Only reads report that a stream ended or failed. A write that fails changes no state: its bytes are dropped, and the
peer is read to the end, because it may have sent something before. While the client does not take bytes, the broker is
not read, so when the broker's stream ends, its last response has been forwarded.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class State(Enum):
    CONNECTING = "connecting"
    OPEN = "open"
    DRAINING = "draining"
    LINGERING = "lingering"
    FLUSHING = "flushing"
    CLOSED = "closed"


class Event(Enum):
    BROKER_CONNECTED = "a broker has been reached"
    CLIENT_ENDED = "the client ended its stream, or its connection broke"
    DRAIN = "the proxy ends, or the connection is old enough"
    PROGRESS = "something that was under way has finished"
    OVER = "no broker can be reached, the broker ended its stream, a time is over, or what one side sent is refused"


_S = State
_E = Event

TRANSITIONS: Final[Mapping[State, Mapping[Event, tuple[State, State]]]] = {
    # The next state while data or requests are under way, and the next state otherwise. Other events change nothing.
    _S.CONNECTING: {
        _E.BROKER_CONNECTED: (_S.OPEN, _S.OPEN),
        _E.CLIENT_ENDED: (_S.CLOSED, _S.CLOSED),
        _E.DRAIN: (_S.CLOSED, _S.CLOSED),
        _E.OVER: (_S.CLOSED, _S.CLOSED),
    },
    _S.OPEN: {
        _E.CLIENT_ENDED: (_S.FLUSHING, _S.CLOSED),
        _E.DRAIN: (_S.DRAINING, _S.DRAINING),
        _E.OVER: (_S.CLOSED, _S.CLOSED),
    },
    _S.DRAINING: {
        _E.CLIENT_ENDED: (_S.FLUSHING, _S.CLOSED),
        _E.PROGRESS: (_S.DRAINING, _S.LINGERING),
        _E.OVER: (_S.CLOSED, _S.CLOSED),
    },
    _S.LINGERING: {
        _E.CLIENT_ENDED: (_S.FLUSHING, _S.CLOSED),
        _E.OVER: (_S.CLOSED, _S.CLOSED),
    },
    _S.FLUSHING: {_E.OVER: (_S.CLOSED, _S.CLOSED)},
    _S.CLOSED: {},
}


def next_state(state: State, event: Event, *, is_busy: bool) -> State:
    """The state after `event`. `is_busy`: whether data or requests are under way that closing now could lose."""
    while_busy, when_idle = TRANSITIONS[state].get(event, (state, state))
    return while_busy if is_busy else when_idle
