"""Fetch and ShareFetch: the request's budget is lowered to what is left of the limit, the response's size is charged.

See `fetch_ledger` for reservations. The response contains the throttle time; node endpoints in it are hidden while it
streams by, and its record bytes are counted where usage is counted by topic.
"""

from collections.abc import Mapping
from struct import Struct
from typing import Final, final

from protocol.apis import SHARE_FETCH
from protocol.fetch import (
    FetchRequestWalk,
    FetchResponseWalk,
    check_consumer_fetch,
    is_plain_fetch_request,
    lower_fetch_budget,
)
from protocol.records_walk import RecordsWalk
from protocol.request_header import unpack_prefix
from protocol.share import ShareFetchResponseWalk
from protocol.throttle_time import raise_throttle, throttle_needs
from protocol.walk import FrameWalk
from proxy.enforcement.holds import Delay
from proxy.observability.topic_traffic import OTHER_TOPICS, TopicTraffic
from proxy.streams.connection import Awaited, Connection, Handler, RequestKind, Requests, Responses, Stream
from proxy.streams.fetch_ledger import Reservation
from proxy.streams.handlers.data import MOST_DRY_RUN_DEBT_NS, DataHandler
from proxy.streams.produce_usage import name_of
from proxy.streams.steps import DELAY_RESPONSE, NEED, PASS
from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.limit import Limit

#: A share consumer acknowledges with its next ShareFetch, and the records that it acquired are locked for 30 s by
#: default (`group.share.record.lock.duration.ms`, KIP-932): a hold takes a third of that at most.
LONGEST_SHARE_HOLD_NS: Final = 10_000_000_000
#: First version with broker addresses in responses (KIP-951), and first one with the replica id at the request's end.
FIRST_WITH_NODE_ENDPOINTS: Final = 16
FIRST_WITH_REPLICA_STATE: Final = 15

#: Length, correlation id, tag buffer and throttle time of a response: all that is read and changed before the walk.
_MOST_NEEDED: Final = 4 + 4 + 1 + 4
#: min_bytes and max_bytes of a request.
_max_bytes = Struct(">ii").unpack_from


@final
class OpenFetch(Awaited):
    """A fetch in flight, and its reservation until the response settles it.

    held_by   the limit that it found in debt; None: it found none
    traffic   where the records of its response are counted, once that has arrived; None: they are not counted
    """

    __slots__ = ("held_by", "is_settled", "kind", "reservation", "traffic")

    def __init__(self, handler: Handler, kind: RequestKind, reservation: Reservation) -> None:
        super().__init__(handler)
        self.kind = kind
        self.reservation = reservation
        self.held_by: Limit | None = None
        self.is_settled = False
        self.traffic: dict[str, TopicTraffic] | None = None

    def cancel(self, now_ns: int) -> None:
        if self.is_settled:
            return
        self.reservation.cancel(now_ns)
        self.handler.context.holds.credit_returned(self.reservation.limits.limits)


@final
class Fetch(DataHandler):
    """See the module."""

    __slots__ = ()

    # ---- requests

    def admit(self, requests: Requests, kind: RequestKind, pos: int, end: int, now_ns: int) -> int:
        header = kind.header
        is_share = kind.api_key == SHARE_FETCH
        if not is_share:
            check_consumer_fetch(requests.buf, pos + header.body_offset, kind.version)
        limits = requests.connection.identity.limits
        reservation = requests.connection.fetching.begin(limits, now_ns)
        fetch = OpenFetch(self, kind, reservation)
        if limits.fetch.limits or limits.requests.limits:
            step = self._reserve(requests, fetch, pos, now_ns)
            if step != PASS:
                return step
        reservation.open()
        requests.awaited = fetch
        if not is_share and kind.version >= FIRST_WITH_REPLICA_STATE:
            length = unpack_prefix(requests.buf, pos)[0]
            body_start, frame_end = pos + header.body_offset, pos + 4 + length
            if frame_end > end or not is_plain_fetch_request(requests.buf, body_start, frame_end):
                requests.walk = FetchRequestWalk(kind.version, length, header.body_offset - 4)
                requests.walked_to = body_start
        return PASS

    def _reserve(self, requests: Requests, fetch: OpenFetch, pos: int, now_ns: int) -> int:
        """Ask the limits, charge the reservation, and lower the request's `max_bytes`. Returns `PASS` or `HOLD`."""
        kind, reservation, turn = fetch.kind, fetch.reservation, requests.connection.turn
        limits = reservation.limits
        fetch.held_by = None if turn is None else turn.limit
        budget_at = kind.header.budget_offset
        asked = None if budget_at is None else _max_bytes(requests.buf, pos + budget_at)[1]
        if asked == 0 and _only_renews(requests.buf, pos, kind):
            self.count(requests, now_ns)
            return PASS
        amount = reservation.plan(asked) if limits.limits else 0
        decision, amounts = self.ask(requests, limits, amount, now_ns)
        if decision.admitted:
            reservation.amount = amount
        elif turn is None:
            fetch.held_by = decision.limit
        step = self._act_on(requests, kind, decision, amount, amounts, now_ns)
        if step == PASS and budget_at is not None and limits.limits and self.context.measures.enforces:
            lower_fetch_budget(requests.buf, pos + budget_at, reservation.budget)
        return step

    def _act_on(
        self,
        requests: Requests,
        kind: RequestKind,
        decision: Decision,
        size: int,
        amounts: Mapping[Limit, int] | None,
        now_ns: int,
    ) -> int:
        """As `act`; a ShareFetch is not held for longer than its locks allow."""
        if decision.admitted:
            return PASS  # its debt is known when its response arrives
        if kind.api_key != SHARE_FETCH:
            return self.act(requests, kind, decision, size, amounts, now_ns)
        turn = requests.connection.turn
        # It may be held again, by another limit or at new rates: the deadline stays.
        until_ns = now_ns + LONGEST_SHARE_HOLD_NS if turn is None or not turn.until_ns else turn.until_ns
        if now_ns < until_ns:
            return self.act(requests, kind, decision, size, amounts, now_ns, until_ns)
        requests.connection.identity.limits.requests.charge(1, now_ns)
        return PASS

    def expected(self, connection: Connection, limit: Limit, units: int) -> int:
        """Bytes as in the latest response of the client: a reservation is for the most that it may bring."""
        ledger = connection.fetching.ledger
        if ledger is None or limit not in connection.identity.limits.fetch.limits:
            return units
        return min(units, ledger.latest or 0)

    # ---- responses

    def respond(self, responses: Responses, awaited: Awaited, pos: int, end: int, length: int, now_ns: int) -> int:
        assert isinstance(awaited, OpenFetch)  # noqa: S101 - for the type checker
        kind = awaited.kind
        if end - pos < _MOST_NEEDED:
            needed = throttle_needs(kind.header.api, kind.version)
            if end - pos < 4 + min(needed, length):
                responses.want = 4 + needed - (end - pos)
                return NEED
        if not awaited.is_settled:
            awaited.is_settled = True
            identity = responses.connection.identity
            if identity.generation != identity.registry.generation:
                identity.refresh(now_ns)
            delay = self._settle(responses, awaited, length + 4, now_ns)
            if delay is not None and responses.postpone(delay, now_ns) != PASS:
                return DELAY_RESPONSE
        throttle_ms = responses.throttle_ms(now_ns)
        if throttle_ms:
            frame_end = min(end, pos + 4 + length)
            raise_throttle(responses.buf, pos + 4, frame_end, kind.header.api, kind.version, throttle_ms)
        walk = _walk_over(kind, length, counts_records=awaited.traffic is not None)
        if walk is None:
            return responses.begin(pos, end, length)
        return responses.begin_walk(walk, pos, end, length, now_ns)

    def on_walked(self, stream: Stream, now_ns: int) -> None:
        walk, fetch = stream.walk, stream.current
        if isinstance(walk, RecordsWalk) and isinstance(fetch, OpenFetch) and fetch.traffic is not None:
            for topic, size in walk.take():
                fetch.traffic[name_of(self.context, topic) or OTHER_TOPICS].fetch_bytes += size

    def _settle(self, responses: Responses, fetch: OpenFetch, size: int, now_ns: int) -> Delay | None:
        """Charge the response. Returns its delay."""
        delay = None
        connection = responses.connection
        identity = connection.identity
        entity = identity.entity
        entity.fetch_bytes += size
        entity.fetch_requests += 1
        fetch.traffic = entity.topics
        reservation, held_by, measures = fetch.reservation, fetch.held_by, self.context.measures
        limits = identity.limits.fetch
        is_charged = True
        if held_by is not None:
            measures.report.exceeded(identity.client, held_by, size)
            is_charged = measures.enforces or limits.check(now_ns).wait_ns < MOST_DRY_RUN_DEBT_NS
        decision = reservation.settle(limits, size, now_ns, is_charged=is_charged)
        of_requests = identity.limits.requests
        if of_requests.limits:
            decision = _worse(decision, of_requests.check(now_ns))
        if decision is not ADMITTED:
            delay = self.leave_debt(connection, decision, fetch.kind, now_ns, was_held=held_by is not None)
        if identity.notice.limit in limits.limits:  # a notice may count reservations that have been refunded since
            identity.notice.renew(identity.registry, now_ns)
        if size < reservation.amount:
            holds = self.context.holds
            holds.credit_returned(reservation.limits.limits)
            if holds.changed:
                connection.attention = True
        return delay


def _only_renews(buf: bytearray, pos: int, kind: RequestKind) -> bool:
    """Whether a request for 0 bytes is a ShareFetch that only renews locks, whose response has no records (KIP-1222).

    Any other brings a batch. Brokers refuse the flag with a `max_bytes` other than 0.
    """
    renewal_at = kind.header.renewal_offset
    return renewal_at is not None and buf[pos + renewal_at] != 0


def _worse(of_bytes: Decision, of_requests: Decision) -> Decision:
    """The longer wait, with all limits that are in debt."""
    if not of_requests.wait_ns:
        return of_bytes
    worse = of_bytes if of_bytes.wait_ns > of_requests.wait_ns else of_requests
    return Decision(True, worse.wait_ns, worse.limit, of_bytes.exceeded + of_requests.exceeded)


def _walk_over(kind: RequestKind, length: int, *, counts_records: bool) -> FrameWalk | None:
    """The walk that hides the node endpoints of a response and counts its records; None: there is nothing to do."""
    if kind.api_key == SHARE_FETCH:
        return ShareFetchResponseWalk(kind.version, length, counts_records=counts_records)
    if counts_records or kind.version >= FIRST_WITH_NODE_ENDPOINTS:
        return FetchResponseWalk(kind.version, length, counts_records=counts_records)
    return None
