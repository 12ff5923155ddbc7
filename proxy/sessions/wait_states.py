"""In which state of `proxy.observability.wait_clock` a connection pair is now."""

from proxy.observability.wait_clock import BROKER, CLIENT, DATA, LIMIT, PROXY, SLOW_READER, Key, key_of
from proxy.sessions.pair import ConnectionPair
from proxy.sessions.pump_set import LOGIN, MEMORY, RESPONSE_MEMORY, WRITE_BACKPRESSURE
from proxy.streams.held_request import HeldRequest

_PROXY = MEMORY | RESPONSE_MEMORY | LOGIN


def turn(pair: ConnectionPair, now_ns: int, *, is_late: bool) -> None:
    """Count what has passed, and the state that the pair is in from now on. `is_late`: the broker does not answer."""
    requests, responses, waits = pair.request_stream, pair.response_stream, pair.connection.waits
    in_flight = responses.in_flight
    if len(in_flight) == 1 and requests.remaining:
        waits.sent(now_ns)
    ended_ns = 0 if in_flight or responses.remaining else responses.taken_ns or now_ns
    state, key, stands = _state_of(pair, is_late=is_late)
    waits.turn(state, now_ns, ended_ns, key, stands=stands)


def _state_of(pair: ConnectionPair, *, is_late: bool) -> tuple[int, Key | None, bool]:
    """The state, its limit, and whether it lasts until the pumps report another wait."""
    requests, responses = pair.request_stream, pair.response_stream
    held = responses.held or requests.held
    if isinstance(held, HeldRequest):
        return LIMIT, key_of(held.limit), True
    if responses.delay is not None:
        return LIMIT, key_of(responses.delay.limit), True
    if pair.responses.paused & WRITE_BACKPRESSURE:
        return SLOW_READER, None, True
    if (pair.requests.paused | pair.responses.paused) & _PROXY:
        return PROXY, None, True
    if pair.requests.paused & WRITE_BACKPRESSURE:
        return BROKER, None, True
    if responses.in_flight:
        return DATA if responses.in_flight[0][1].may_last_ns and not is_late else BROKER, None, False
    return (DATA if isinstance(responses.current, HeldRequest) else CLIENT), None, False
