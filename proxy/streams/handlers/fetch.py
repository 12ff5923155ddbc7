"""Fetch and ShareFetch: a request waits while its limits are in debt, and asks for its share of what is left; the
response passes its limits as it arrives, read by read.

The response contains the throttle time; node endpoints in it are hidden while it streams by, and its record bytes are
counted where usage is counted by topic. A ShareFetch request always passes, since it acknowledges records; only its
response waits.
"""

from struct import Struct
from typing import Final, final

from protocol.apis import FETCH, SHARE_FETCH
from protocol.fetch import FetchResponseWalk, lower_fetch_budget, lower_share_budget
from protocol.records_walk import RecordsWalk
from protocol.request_header import RequestHeader
from protocol.share import ShareFetchResponseWalk
from protocol.throttle_time import raise_throttle
from protocol.walk import FrameWalk
from proxy.enforcement.identity import NS_PER_MS, Client
from proxy.enforcement.report import NOTIFY
from proxy.observability.topic_traffic import OTHER_TOPICS
from proxy.streams.connection import Connection
from proxy.streams.fetch_ledger import equal_share, fetch_budget
from proxy.streams.memory import READ_SIZE
from proxy.streams.request import Handler, Kind, Request, Requests
from proxy.streams.response_stream import CAREFUL_READ_SIZE, LONGEST_FETCH_NS, ResponseStream
from proxy.streams.steps import DELAY_RESPONSE, HOLD, NEED, PASS
from quotas.admission.client_limits import ClientLimits
from quotas.admission.frame import in_order, worst_debt
from quotas.admission.limit import Limit

#: First version with broker addresses in responses (KIP-951).
FIRST_WITH_NODE_ENDPOINTS: Final = 16

#: Responses up to this size count as empty: they contain no batch.
EMPTY_RESPONSE: Final = 512
#: Length, correlation id, tag buffer and throttle time of a response: all that is read and changed before the walk.
_MOST_NEEDED: Final = 4 + 4 + 1 + 4
_max_bytes = Struct(">4xi").unpack_from


@final
class FetchRequest(Request):
    """A fetch, from its request to the end of its response. The client that sent it is charged, whatever client ids
    follow on this connection.

    shares   the limits in which it counts as open; None: it does not, any more
    unread   bytes of the response that have not been read for its charges; before it arrives, what it may have: while
             the request waits `Connection.last_batch`, then its `max_bytes`, or 0 if that was not lowered
    is_told  the client has been told of the debt that the response leaves, or there is none
    """

    __slots__ = ("is_told", "shares", "unread")

    may_last_ns = LONGEST_FETCH_NS

    def __init__(self, kind: Kind, client: Client, last_batch: int) -> None:
        super().__init__(kind, client, 0)
        self.shares: ClientLimits | None = client.limits
        client.limits.fetches += 1
        self.unread = last_batch
        self.is_told = False

    # ---- the request

    def admit(self, requests: Requests, pos: int, end: int, now_ns: int) -> int:
        connection, kind, limits = requests.connection, self.kind, self.client.limits
        if requests.current is self:  # it was held here
            self.drop_replaced(connection)
        elif kind.api_key == SHARE_FETCH:
            connection.has_share_session = True
            kind.handler.count(requests, now_ns)
        else:
            self.charges = in_order(dict.fromkeys(limits.fetch.limits, 0) | dict.fromkeys(limits.requests.limits, 1))
        if self.charges and not self.pass_limits(connection, 0, 0, now_ns):
            requests.current = self
            return HOLD
        requests.current = None
        self.unread = 0
        if limits.fetch.limits and connection.context.measures.enforces:
            self.unread = fetch_budget(limits, now_ns)
            _lower_budget(requests.buf, pos, kind, self.unread)
        return requests.forward(kind, self, pos, end)

    # ---- the response

    def respond(self, responses: ResponseStream, pos: int, end: int, length: int, now_ns: int) -> int:
        kind, arrived = self.kind, end - pos
        if arrived < _MOST_NEEDED and arrived < 4 + length:
            responses.want = _MOST_NEEDED - arrived
            return NEED
        if not self.size:
            self._begin_response(responses.connection, 4 + length, now_ns)
        if not self.is_told:
            if self._pass_read(responses, max(0, self.size - arrived), now_ns) == HOLD:
                return HOLD
            self._tell(responses.connection, now_ns)
        if self.delay is not None and responses.postpone(self.delay, now_ns) != PASS:
            return DELAY_RESPONSE
        lag = responses.connection.identity.lag
        if lag.is_due and kind.api_key == FETCH:
            lag.read(responses.buf, pos + 4, end, kind.version, now_ns)
        read_to = pos + self.size - self.unread
        throttle_ms = responses.throttle_ms(now_ns)
        if throttle_ms:
            raise_throttle(responses.buf, pos + 4, read_to, kind.header.api, kind.version, throttle_ms)
        walk = _walk_over(kind, length, counts_records=self.client.entity.topics is not None)
        if walk is None:
            return responses.begin_charged(pos, read_to, length, now_ns)
        return responses.begin_walk(walk, pos, read_to, length, now_ns)

    def _begin_response(self, connection: Connection, size: int, now_ns: int) -> None:
        """The response has arrived, in part: its size is known."""
        client = self.client
        connection.last_batch = size if size > self.unread + self.unread // 8 + EMPTY_RESPONSE else 0
        self.size = self.unread = size
        self._leave_share()
        entity = client.entity
        entity.fetch_requests += 1
        entity.fetch_bytes += size  # of which its walk counts the bytes of a partition as soon as their length is there
        if self.counted_by is not None:
            connection.context.measures.report.exceeded(client, self.counted_by, size)

    @property
    def holds_response(self) -> bool:
        return self.is_held  # in flight it does not wait with its request

    def pass_more(self, responses: ResponseStream, left: int, now_ns: int) -> int:
        return self._pass_read(responses, left, now_ns)

    def _pass_read(self, responses: ResponseStream, left: int, now_ns: int) -> int:
        """Charge what has arrived; `left` bytes have not. `PASS`, or `HOLD`: the response waits for a limit."""
        connection, client = responses.connection, self.client
        # The limits may have been replaced since the last read: what comes now is charged to those in use.
        if client.limits.generation != connection.context.registry.generation:
            client.refresh(now_ns)
        limits = client.limits.fetch
        read, self.unread = self.unread - left, left
        if self.charges:  # it was held here
            read = self.charges[0][1]
            self.drop_replaced(connection)
            room = 0
        elif not read:  # the walk has more to do with what was charged
            return PASS
        else:
            room = limits.spend(read, now_ns)
            if room < 0:
                self.charges, room = in_order(dict.fromkeys(limits.limits, read)), 0
        if self.charges and not self.pass_limits(connection, read, left + read, now_ns):
            responses.read_size = CAREFUL_READ_SIZE
            return HOLD
        if room < READ_SIZE:
            # Close to the limit less is read, so that a hold keeps little in memory; but a response that has taken its
            # limit into debt goes on to its end.
            responses.read_size = CAREFUL_READ_SIZE
            responses.want = CAREFUL_READ_SIZE + (min(left, room) if room else left)
        return PASS

    def _tell(self, connection: Connection, now_ns: int) -> None:
        """The first bytes pass: the throttle time in them is the debt as if all had passed. A delay is only for what
        has passed: what comes after it is charged then, and holds the next fetch.
        """
        self.is_told = True
        limits, measures = self.client.limits, connection.context.measures
        owing = [worst_debt(limits.requests.limits, now_ns)]
        for each in limits.fetch.limits:
            more = self.unread if measures.mode_of(each, self.reply) == NOTIFY else 0
            owing.append((each.algorithm.debt_ns(now_ns, more), each))
        for wait_ns, limit in owing:
            if limit is not None and wait_ns and now_ns + wait_ns > self.debt_until_ns:
                self.debt, self.debt_until_ns = limit, now_ns + wait_ns
        self.leave_debt(connection, now_ns)

    def queued(self, limit: Limit, units: int, read: int, left: int) -> int:
        if self.size:
            return left
        return units or self.unread or equal_share(self.client.limits)

    def on_walked(self, responses: ResponseStream) -> None:
        walk, traffic = responses.walk, self.client.entity.topics
        if isinstance(walk, RecordsWalk) and traffic is not None:
            topics = responses.connection.context.topics
            for topic, size in walk.take():
                traffic[topics.name_of(topic) or OTHER_TOPICS].fetch_bytes += size

    def on_end(self, responses: ResponseStream, now_ns: int) -> None:
        walk, limit = responses.walk, self.counted_by
        if isinstance(walk, ShareFetchResponseWalk) and limit is not None:
            lock_ms = walk.lock_timeout_ms
            if 0 < lock_ms * NS_PER_MS < 2 * self.held_ns:
                report = responses.connection.context.measures.report
                report.lock_at_risk(self.client, limit, self.held_ns, lock_ms, now_ns)
        self.end(responses.connection, now_ns)

    # ---- its end

    def cancel(self, responses: ResponseStream, now_ns: int) -> None:
        self.close(responses.connection, now_ns)

    def close(self, connection: Connection, now_ns: int) -> None:
        self._leave_share()
        super().close(connection, now_ns)

    def _leave_share(self) -> None:
        """It is no longer open."""
        if self.shares is not None:
            self.shares.fetches -= 1
            self.shares = None


@final
class Fetch(Handler):
    """Begins a fetch."""

    def admit(self, requests: Requests, kind: Kind, pos: int, end: int, now_ns: int) -> int:
        connection = requests.connection
        request = FetchRequest(kind, connection.identity.client, connection.last_batch)
        return request.admit(requests, pos, end, now_ns)


def _lower_budget(buf: bytearray, pos: int, kind: Kind, budget: int) -> None:
    """Lower what the request at `pos` asks for, where its version says how much."""
    header = kind.header
    if header.budget_offset is None:
        return
    if kind.api_key != SHARE_FETCH:
        lower_fetch_budget(buf, pos + header.budget_offset, budget)
    elif not _only_renews(buf, pos, header, header.budget_offset):
        lower_share_budget(buf, pos + header.budget_offset, budget)


def _only_renews(buf: bytearray, pos: int, header: RequestHeader, budget_at: int) -> bool:
    """Whether a ShareFetch request only renews locks (KIP-1222). Brokers refuse it with a `max_bytes` other than 0."""
    renewal_at = header.renewal_offset
    return renewal_at is not None and buf[pos + renewal_at] != 0 and _max_bytes(buf, pos + budget_at)[0] == 0


def _walk_over(kind: Kind, length: int, *, counts_records: bool) -> FrameWalk | None:
    """The walk that hides the node endpoints of a response and counts its records; None: there is nothing to do."""
    if kind.api_key == SHARE_FETCH:
        return ShareFetchResponseWalk(kind.version, length, counts_records=counts_records)
    if counts_records or kind.version >= FIRST_WITH_NODE_ENDPOINTS:
        return FetchResponseWalk(kind.version, length, counts_records=counts_records)
    return None
