"""In which state of `proxy.observability.wait_clock` a connection pair is now, and which bound holds it."""

from proxy.enforcement import report
from proxy.observability.wait_clock import BROKER, CLIENT, DATA, LIMIT, PROXY, SLOW_READER, Key, key_of
from proxy.sessions.pair import ConnectionPair
from proxy.sessions.pump_set import IN_FLIGHT, LOGIN, MEMORY, RESPONSE_MEMORY, WRITE_BACKPRESSURE
from proxy.streams.held_request import HeldRequest

_STATES = {report.MEMORY: PROXY, report.IN_FLIGHT: BROKER}


def bound_of(pair: ConnectionPair) -> str:
    """The bound of the proxy for which the client is not read: a reason of `proxy.enforcement.report`; "": none."""
    if (pair.requests.paused | pair.responses.paused) & (MEMORY | RESPONSE_MEMORY):
        return report.MEMORY
    # While the proxy or the client logs in, no request may begin: then their number is no bound.
    return report.IN_FLIGHT if pair.requests.paused & IN_FLIGHT and pair.connection.max_in_flight else ""


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
    bound = bound_of(pair)
    if bound:  # what is in flight waits for the broker, and all else behind it
        return _STATES[bound], report.BOUNDS[bound], True
    if (pair.requests.paused | pair.responses.paused) & LOGIN:
        return PROXY, None, True
    if pair.requests.paused & WRITE_BACKPRESSURE:
        return BROKER, None, True
    if responses.in_flight:
        return DATA if responses.in_flight[0][1].may_last_ns and not is_late else BROKER, None, False
    return (DATA if isinstance(responses.current, HeldRequest) else CLIENT), None, False
