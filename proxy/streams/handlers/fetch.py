"""Fetch and ShareFetch. A request waits while its limits are in debt, and then asks for its share of what is left. The
response passes its limits as it arrives, chunk by chunk.

The share shapes the traffic: `max_bytes` is lowered, so that responses are small enough for the rate, and so that a
client's fetches at several brokers share it. It is not a bound; the bound is the response, which is charged as it
passes. What is left is divided by all fetches of the client that are open or waiting, even idle ones, because any of
them may return data at any time.

The response contains the throttle time. Node endpoints in it are hidden while it streams by, and its record bytes are
counted if usage is counted by topic. A ShareFetch request always passes, because it acknowledges records, and only its
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
from proxy.enforcement.identity import Client
from proxy.enforcement.report import NOTIFY
from proxy.observability.topic_traffic import OTHER_TOPICS
from proxy.streams.connection import Connection
from proxy.streams.memory import READ_SIZE
from proxy.streams.pending import CAREFUL_READ_SIZE, LONGEST_FETCH_NS, Responses
from proxy.streams.request import Handler, Kind, Request, Requests
from proxy.streams.steps import DELAY_RESPONSE, HOLD, NEED, PASS
from quotas.admission.client_limits import ClientLimits
from quotas.admission.frame import in_order, worst_debt
from quotas.admission.limit import Limit
from quotas.time_units import NS_PER_MS

#: The first version with broker addresses in responses (KIP-951).
FIRST_WITH_NODE_ENDPOINTS: Final = 16

#: Responses up to this size count as empty, because they contain no batch.
EMPTY_RESPONSE: Final = 512
#: Length, correlation id, tag buffer and throttle time of a response, which are read and changed before the walk.
_MOST_NEEDED: Final = 4 + 4 + 1 + 4
#: However little is left of a limit, all fetches together may return what it earns in this time. With less, a consumer
#: at its limit would fetch one batch at a time, thousands of times a second.
SMALLEST_BUDGET_NS: Final = 10_000_000
_max_bytes = Struct(">4xi").unpack_from


@final
class FetchRequest(Request):
    """A fetch, from its request to the end of its response. The client that sent it is charged, whatever client ids
    follow on this connection.

        request arrives ─▶ waits for limits ─▶ `max_bytes` lowered ─▶ in flight ─▶ response arrives ─▶ its last chunk
        expected = `last_batch`                expected = `max_bytes`              uncharged = its size    uncharged = 0

    shares      the limits in which it counts as an open fetch; None: it no longer does
    expected    the size of the response in bytes, as far as it is known before it arrives: `Connection.last_batch`
                while the request waits, then its `max_bytes`; 0: that was not lowered
    uncharged   how many bytes of the response have not been charged
    """

    __slots__ = ("expected", "shares", "uncharged")

    may_last_ns = LONGEST_FETCH_NS

    def __init__(self, kind: Kind, client: Client, last_batch: int) -> None:
        super().__init__(kind, client, 0)
        self.shares: ClientLimits | None = client.limits
        client.limits.fetches += 1
        self.expected = last_batch
        self.uncharged = 0

    # ---- the request

    def decide(self, requests: Requests, pos: int, end: int, now_ns: int) -> int:
        connection, kind, limits = requests.connection, self.kind, self.client.limits
        if requests.current is self:  # it has been held here
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
        self.expected = 0
        if limits.fetch.limits and connection.context.actions.enforces:
            self.expected = fetch_budget(limits, now_ns)
            _lower_budget(requests.buf, pos, kind, self.expected)
        return requests.forward(kind, self, pos, end)

    # ---- the response

    def respond(self, responses: Responses, pos: int, end: int, length: int, now_ns: int) -> int:
        kind, arrived = self.kind, end - pos
        if arrived < _MOST_NEEDED and arrived < 4 + length:
            responses.want = _MOST_NEEDED - arrived
            return NEED
        if not self.size:
            self._begin_response(responses.connection, 4 + length, now_ns)
        if not self.response_has_begun:
            if self._pass_chunk(responses, max(0, self.size - arrived), now_ns) == HOLD:
                return HOLD
            self._notify(responses.connection, now_ns)
        if self.delay is not None and responses.postpone(self.delay, now_ns) != PASS:
            return DELAY_RESPONSE
        lag = responses.connection.identity.lag
        if lag.is_due and kind.api_key == FETCH:
            lag.read(responses.buf, pos + 4, end, kind.version, now_ns)
        read_to = pos + self.size - self.uncharged
        throttle_ms = responses.throttle_ms(now_ns)
        if throttle_ms:
            raise_throttle(responses.buf, pos + 4, read_to, kind.header.api, kind.version, throttle_ms)
        walk = _walk_over(kind, length, counts_records=self.client.entity.topics is not None)
        if walk is None:
            return responses.forward(pos, read_to, length, now_ns)
        return responses.forward_walked(walk, pos, read_to, length, now_ns)

    def _begin_response(self, connection: Connection, size: int, now_ns: int) -> None:
        """Begin the response, whose first bytes contain its size."""
        client = self.client
        connection.last_batch = size if size > self.expected + self.expected // 8 + EMPTY_RESPONSE else 0
        self.size = self.uncharged = size
        self._leave_share()
        entity = client.entity
        entity.fetch_requests += 1
        entity.fetch_bytes += size  # the walk counts a partition's bytes once it knows their length
        if self.counted_by is not None:
            connection.context.actions.report.exceeded(client, self.counted_by, size)

    @property
    def response_has_begun(self) -> bool:
        """Whether the first chunk of its response has passed, and with it the throttle time or the delay."""
        return self.uncharged < self.size and self.limit is None

    @property
    def holds_response(self) -> bool:
        return self.is_held  # in flight, only the response can be waiting

    def pass_more(self, responses: Responses, left: int, now_ns: int) -> int:
        return self._pass_chunk(responses, left, now_ns)

    def _pass_chunk(self, responses: Responses, left: int, now_ns: int) -> int:
        """Charge what has arrived; `left` bytes have not. Returns `PASS`, or `HOLD` if the response must wait."""
        connection, client = responses.connection, self.client
        # The limits may have been replaced since the last chunk. This one is charged to the current limits.
        if client.limits.generation != connection.context.registry.generation:
            client.refresh(now_ns)
        limits = client.limits.fetch
        chunk, self.uncharged = self.uncharged - left, left
        if self.limit is not None:  # it has been held with this chunk
            chunk, room = self.charges[0][1], 0
            self.drop_replaced(connection)
        elif not chunk:  # the walk has more to do, but all bytes have been charged
            return PASS
        else:
            room = limits.spend(chunk, now_ns)
            if room < 0:
                self.charges, room = in_order(dict.fromkeys(limits.limits, chunk)), 0
        if self.charges and not self.pass_limits(connection, chunk, left + chunk, now_ns):
            responses.read_size = CAREFUL_READ_SIZE
            return HOLD
        if room < READ_SIZE:
            # Close to the limit, less is read, so that a hold keeps little in memory. A response that has taken its
            # limit into debt passes to its end.
            responses.read_size = CAREFUL_READ_SIZE
            responses.want = CAREFUL_READ_SIZE + (min(left, room) if room else left)
        return PASS

    def _notify(self, connection: Connection, now_ns: int) -> None:
        """Notify the client, because the first bytes pass. Their throttle time is the debt that there will be when all
        bytes have passed. A delay is only for the bytes that have passed: the others are charged after it, and hold the
        next fetch.
        """
        limits, actions = self.client.limits, connection.context.actions
        owing = [worst_debt(limits.requests.limits, now_ns)]
        for each in limits.fetch.limits:
            more = self.uncharged if actions.mode_of(each, self.reply) == NOTIFY else 0
            owing.append((each.algorithm.debt_ns(now_ns, more), each))
        for wait_ns, limit in owing:
            if limit is not None and wait_ns and now_ns + wait_ns > self.debt_until_ns:
                self.debt, self.debt_until_ns = limit, now_ns + wait_ns
        self.leave_debt(connection, now_ns)

    def queued(self, limit: Limit, units: int, chunk: int, left: int) -> int:
        if self.size:
            return left
        return units or self.expected or equal_share(self.client.limits)

    def on_walked(self, responses: Responses) -> None:
        walk, traffic = responses.walk, self.client.entity.topics
        if isinstance(walk, RecordsWalk) and traffic is not None:
            topics = responses.connection.context.topics
            for topic, size in walk.take():
                traffic[topics.name_of(topic) or OTHER_TOPICS].fetch_bytes += size

    def on_end(self, responses: Responses, now_ns: int) -> None:
        walk, limit = responses.walk, self.counted_by
        if isinstance(walk, ShareFetchResponseWalk) and limit is not None:
            lock_ms = walk.lock_timeout_ms
            if 0 < lock_ms * NS_PER_MS < 2 * self.held_ns:
                report = responses.connection.context.actions.report
                report.lock_at_risk(self.client, limit, self.held_ns, lock_ms, now_ns)
        self.end(responses.connection, now_ns)

    # ---- its end

    def cancel(self, responses: Responses, now_ns: int) -> None:
        self.close(responses.connection, now_ns)

    def close(self, connection: Connection, now_ns: int) -> None:
        self._leave_share()
        super().close(connection, now_ns)

    def _leave_share(self) -> None:
        """Stop counting it as an open fetch."""
        if self.shares is not None:
            self.shares.fetches -= 1
            self.shares = None


@final
class Fetch(Handler):
    """Begins fetches."""

    def on_request(self, requests: Requests, kind: Kind, pos: int, end: int, now_ns: int) -> int:
        connection = requests.connection
        request = FetchRequest(kind, connection.identity.client, connection.last_batch)
        return request.decide(requests, pos, end, now_ns)


def fetch_budget(limits: ClientLimits, now_ns: int) -> int:
    """The `max_bytes` for the client's next fetch, which `limits.fetches` counts already."""
    return max(1, limits.fetch.headroom(now_ns) // max(1, limits.fetches), equal_share(limits))


def equal_share(limits: ClientLimits) -> int:
    """The least that each open fetch of the client may return."""
    return max(1, limits.fetch.earned(SMALLEST_BUDGET_NS) // max(1, limits.fetches))


def _lower_budget(buf: bytearray, pos: int, kind: Kind, budget: int) -> None:
    """Lower the number of bytes that the request at `pos` asks for, if its version has such a field."""
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
    """The walk that hides node endpoints in a response and counts its records. None: there is nothing to do."""
    if kind.api_key == SHARE_FETCH:
        return ShareFetchResponseWalk(kind.version, length, counts_records=counts_records)
    if counts_records or kind.version >= FIRST_WITH_NODE_ENDPOINTS:
        return FetchResponseWalk(kind.version, length, counts_records=counts_records)
    return None
