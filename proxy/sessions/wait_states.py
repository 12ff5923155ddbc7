"""The state of `proxy.observability.client_times` that a connection pair is in."""

from proxy.enforcement import report
from proxy.observability.client_times import BROKER, CLIENT, DATA, LIMIT, PROXY, SLOW_READER, Key, key_of
from proxy.sessions.pair import ConnectionPair
from proxy.sessions.pump_set import LOGIN, WRITE_BACKPRESSURE

_STATES = {report.MEMORY: PROXY, report.IN_FLIGHT: BROKER}


def observe(pair: ConnectionPair, now_ns: int, *, is_late: bool) -> None:
    """Report the state that the pair is in now to its observer. `is_late`: the broker does not answer in time."""
    requests, responses = pair.request_stream, pair.response_stream
    in_flight = responses.in_flight
    if len(in_flight) == 1 and requests.remaining:
        requests.sent(now_ns)
    ended_ns = 0 if in_flight or responses.remaining else responses.taken_ns or now_ns
    state, key, stands = _state_of(pair, is_late=is_late)
    pair.connection.observer.enter(state, now_ns, ended_ns, key, stands=stands)


def _state_of(pair: ConnectionPair, *, is_late: bool) -> tuple[int, Key | None, bool]:
    """The state, its limit, and whether the state lasts until the pumps report another wait."""
    requests, responses = pair.request_stream, pair.response_stream
    held = responses.held or requests.held
    if held is not None:
        return LIMIT, key_of(held.limit), True
    if responses.delay is not None:
        return LIMIT, key_of(responses.delay.limit), True
    if pair.responses.paused & WRITE_BACKPRESSURE:
        return SLOW_READER, None, True
    bound = pair.bound
    if bound:  # requests in flight wait for the broker, and everything else waits behind them
        return _STATES[bound], report.BOUNDS[bound], True
    if (pair.requests.paused | pair.responses.paused) & LOGIN:
        return PROXY, None, True
    if pair.requests.paused & WRITE_BACKPRESSURE:
        return BROKER, None, True
    first = responses.in_flight[0][1] if responses.in_flight else responses.current
    if first is None:
        return CLIENT, None, False
    return (DATA if first.may_last_ns and not is_late else BROKER), None, False
