"""Fetch and ShareFetch: the request's budget is lowered to what is left of the limit, the response's size is charged.

See `fetch_ledger` for budgets. The response contains the throttle time; node endpoints in it are hidden while it
streams by, and its record bytes are counted where usage is counted by topic.
"""

from struct import Struct
from typing import Final, final

from protocol.apis import SHARE_FETCH
from protocol.fetch import FetchResponseWalk, lower_fetch_budget
from protocol.records_walk import RecordsWalk
from protocol.share import ShareFetchResponseWalk
from protocol.throttle_time import raise_throttle
from protocol.walk import FrameWalk
from proxy.enforcement.data_frame import DataFrame
from proxy.enforcement.holds import Delay
from proxy.enforcement.identity import Client
from proxy.observability.topic_traffic import OTHER_TOPICS
from proxy.streams.connection import Stream
from proxy.streams.fetch_ledger import Fetching
from proxy.streams.handler import Awaited, Handler, RequestKind, Requests, Responses
from proxy.streams.handlers.data import MOST_DRY_RUN_DEBT_NS, DataHandler
from proxy.streams.produce_usage import name_of
from proxy.streams.steps import DELAY_RESPONSE, HOLD, NEED, PASS
from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.limit import Limit
from quotas.admission.limit_set import admit_all, debt_of
from quotas.admission.passage import Passage

#: A share consumer acknowledges with its next ShareFetch, and the records that it acquired are locked for 30 s by
#: default (`group.share.record.lock.duration.ms`, KIP-932): a hold takes a third of that at most.
LONGEST_SHARE_HOLD_NS: Final = 10_000_000_000
#: First version with broker addresses in responses (KIP-951).
FIRST_WITH_NODE_ENDPOINTS: Final = 16

#: Length, correlation id, tag buffer and throttle time of a response: all that is read and changed before the walk.
_MOST_NEEDED: Final = 4 + 4 + 1 + 4
#: min_bytes and max_bytes of a request.
_max_bytes = Struct(">ii").unpack_from


@final
class OpenFetch(Awaited):
    """A fetch in flight.

    client     that sent it: it is charged the response, whatever client ids follow on this connection
    budget     the `max_bytes` that was forwarded; 0: it was not lowered
    passage    what it has reserved; None: nothing. Its response is charged in full, so no byte of it passes: it lapses
    held_by    the limit that it found in debt; None: it found none
    """

    __slots__ = ("budget", "client", "fetching", "held_by", "is_settled", "kind", "passage")

    def __init__(self, handler: Handler, kind: RequestKind, client: Client, fetching: Fetching) -> None:
        super().__init__(handler)
        self.kind = kind
        self.client = client
        self.fetching = fetching
        self.budget = 0
        self.passage: Passage | None = None
        self.held_by: Limit | None = None
        self.is_settled = False

    def reserve(self, asked: int | None, frame: DataFrame | None, now_ns: int) -> None:
        """Set the budget, and reserve what the response may bring. `asked`: see `Fetching.expected`; `frame`: held."""
        limits = self.client.limits.fetch
        budget = self.fetching.budget(limits, now_ns)
        if self.handler.context.measures.enforces:
            self.budget = budget
        expected = self.fetching.expected(asked, budget)
        if expected:
            self.passage = Passage(dict.fromkeys(limits.limits, expected), expected)
            self.handler.context.holds.reserve(self.passage, now_ns)
            if frame is not None and frame.limit in limits.limits:
                frame.limit.waiters.took(expected - frame.units)

    def cancel(self, now_ns: int) -> None:
        if self.passage is not None:
            self.handler.context.holds.release(self.passage)


@final
class Fetch(DataHandler):
    """Lowers the budget of each fetch, holds it while a limit is in debt, and charges its response."""

    __slots__ = ()

    # ---- requests

    def admit(self, requests: Requests, kind: RequestKind, pos: int, end: int, now_ns: int) -> int:
        connection = requests.connection
        limits, fetching = connection.identity.limits, connection.fetching
        if fetching.is_open and limits.fetch.limits and self.context.measures.enforces:
            return requests.full()
        fetching.begin(limits)
        fetch = OpenFetch(self, kind, connection.identity.client, fetching)
        if limits.fetch.limits or limits.requests.limits:
            step = self._reserve(requests, fetch, pos, now_ns)
            if step != PASS:
                return step
        fetching.opened()
        requests.awaited = fetch
        return PASS

    def _reserve(self, requests: Requests, fetch: OpenFetch, pos: int, now_ns: int) -> int:
        """Ask the limits, reserve what the response is expected to bring, and lower the request's `max_bytes`.

        Returns `PASS` or `HOLD`.
        """
        kind, frame = fetch.kind, requests.connection.frame
        client = fetch.client.limits
        limits = client.fetch
        budget_at = kind.header.budget_offset
        asked = None if budget_at is None else _max_bytes(requests.buf, pos + budget_at)[1]
        if asked == 0 and _only_renews(requests.buf, pos, kind):
            self.count(requests, now_ns)
            return PASS
        if frame is not None:
            fetch.held_by = frame.counted_by
        amounts = dict.fromkeys(limits.limits, 0) | dict.fromkeys(client.requests.limits, 1)
        decision = admit_all(amounts, now_ns, None if frame is None else frame.ticket)
        if not decision.admitted:
            fetch.held_by = fetch.held_by or decision.limit
            if self._refused(requests, fetch, decision, now_ns):
                return HOLD
            client.requests.charge(1, now_ns)
        if limits.limits:
            fetch.reserve(asked, frame, now_ns)
            if budget_at is not None and fetch.budget:
                lower_fetch_budget(requests.buf, pos + budget_at, fetch.budget)
        return PASS

    def _refused(self, requests: Requests, fetch: OpenFetch, decision: Decision, now_ns: int) -> bool:
        """A fetch finds debt. Returns whether it is held: a ShareFetch no longer than its locks allow."""
        kind, frame, limits = fetch.kind, requests.connection.frame, fetch.client.limits.fetch
        until_ns = 0
        if kind.api_key == SHARE_FETCH:
            until_ns = now_ns + LONGEST_SHARE_HOLD_NS if frame is None or not frame.until_ns else frame.until_ns
            if now_ns >= until_ns:
                return False
        units = fetch.fetching.units(limits, now_ns) if decision.limit in limits.limits else 1
        return self.is_held(requests, kind, decision, 0, units, now_ns, until_ns)

    # ---- responses

    def respond(self, responses: Responses, awaited: Awaited, pos: int, end: int, length: int, now_ns: int) -> int:
        assert isinstance(awaited, OpenFetch)  # noqa: S101 - for the type checker
        kind = awaited.kind
        arrived = end - pos
        if arrived < _MOST_NEEDED and arrived < 4 + length:
            responses.want = _MOST_NEEDED - arrived
            return NEED
        if not awaited.is_settled:
            awaited.is_settled = True
            delay = self._settle(responses, awaited, length + 4, now_ns)
            if delay is not None and responses.postpone(delay, now_ns) != PASS:
                return DELAY_RESPONSE
        throttle_ms = responses.throttle_ms(now_ns)
        if throttle_ms:
            frame_end = min(end, pos + 4 + length)
            raise_throttle(responses.buf, pos + 4, frame_end, kind.header.api, kind.version, throttle_ms)
        walk = _walk_over(kind, length, counts_records=awaited.client.entity.topics is not None)
        if walk is None:
            return responses.begin(pos, end, length)
        return responses.begin_walk(walk, pos, end, length, now_ns)

    def on_walked(self, stream: Stream, now_ns: int) -> None:
        walk = stream.walk
        fetch = stream.current if isinstance(stream, Responses) else None
        traffic = fetch.client.entity.topics if isinstance(fetch, OpenFetch) else None
        if isinstance(walk, RecordsWalk) and traffic is not None:
            for topic, size in walk.take():
                traffic[name_of(self.context, topic) or OTHER_TOPICS].fetch_bytes += size

    def _settle(self, responses: Responses, fetch: OpenFetch, size: int, now_ns: int) -> Delay | None:
        """Charge the response to the client that sent the fetch. Returns its delay."""
        connection, client = responses.connection, fetch.client
        context, identity = self.context, connection.identity
        if client.limits.generation != context.registry.generation:
            client.refresh(now_ns)
        entity = client.entity
        entity.fetch_bytes += size
        entity.fetch_requests += 1
        fetch.fetching.answered(client.limits, size, fetch.budget, now_ns)
        fetch.cancel(now_ns)
        limits, of_requests, measures = client.limits.fetch, client.limits.requests, context.measures
        is_charged = True
        if fetch.held_by is not None:
            measures.report.exceeded(client, fetch.held_by, size)
            is_charged = measures.enforces or limits.check(now_ns).wait_ns < MOST_DRY_RUN_DEBT_NS
        decision = limits.charge(size if is_charged else 0, now_ns)
        if of_requests.limits:
            decision = debt_of(limits.limits + of_requests.limits, now_ns)
        delay = None
        if decision is not ADMITTED:
            was_held = fetch.held_by is not None
            delay = measures.after(identity, client, decision, fetch.kind.reply, now_ns, was_held=was_held)
        if identity.notice.limit in limits.limits:  # a notice may count what was reserved, and has been released
            identity.notice.renew(identity.registry, now_ns)
        if context.holds.changed:
            connection.needs_session = True
        return delay


def _only_renews(buf: bytearray, pos: int, kind: RequestKind) -> bool:
    """Whether a request for 0 bytes is a ShareFetch that only renews locks, whose response has no records (KIP-1222).

    Any other brings a batch. Brokers refuse the flag with a `max_bytes` other than 0.
    """
    renewal_at = kind.header.renewal_offset
    return renewal_at is not None and buf[pos + renewal_at] != 0


def _walk_over(kind: RequestKind, length: int, *, counts_records: bool) -> FrameWalk | None:
    """The walk that hides the node endpoints of a response and counts its records; None: there is nothing to do."""
    if kind.api_key == SHARE_FETCH:
        return ShareFetchResponseWalk(kind.version, length, counts_records=counts_records)
    if counts_records or kind.version >= FIRST_WITH_NODE_ENDPOINTS:
        return FetchResponseWalk(kind.version, length, counts_records=counts_records)
    return None
