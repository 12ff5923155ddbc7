"""The state of `proxy.observability.client_times` that a connection pair is in, and the bound that stops its reads."""

from proxy.enforcement import report
from proxy.observability.client_times import BROKER, CLIENT, DATA, LIMIT, PROXY, SLOW_READER, Key, key_of
from proxy.sessions.pair import ConnectionPair
from proxy.sessions.pump_set import IN_FLIGHT, LOGIN, MEMORY, RESPONSE_MEMORY, WRITE_BACKPRESSURE

_STATES = {report.MEMORY: PROXY, report.IN_FLIGHT: BROKER}


def bound_of(pair: ConnectionPair) -> str:
    """The bound of the proxy that stops reading from the client: a reason of `proxy.enforcement.report`, or ""."""
    if (pair.requests.paused | pair.responses.paused) & (MEMORY | RESPONSE_MEMORY):
        return report.MEMORY
    # While the proxy or the client logs in, no request may begin, so the number of requests is not the reason.
    return report.IN_FLIGHT if pair.requests.paused & IN_FLIGHT and pair.connection.max_in_flight else ""


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
    bound = bound_of(pair)
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
