"""Produce: a request passes its limits as it arrives, read by read; the response contains the throttle time.

Topics, records and producer ids are parsed only for clients with a limit on these, and for usage by topic
(`produce_content`). Node endpoints in the response are hidden while it streams by. `reject` has the requests that are
not forwarded.
"""

from typing import Final, final

from protocol.errors import MalformedFrame
from protocol.produce import ProduceResponseWalk, finish_usual_produce_response
from protocol.request_header import unpack_prefix
from proxy.enforcement.identity import Client
from proxy.streams.connection import Connection
from proxy.streams.handlers.produce_content import ProduceContent, needs_first_topic, topics_of
from proxy.streams.handlers.reject.refusals import (
    LOOKAHEAD,
    Refusal,
    UnknownTopicId,
    answer,
    follow,
    may_refuse,
    refusal_of,
    refuse,
    unknown_topic_refusal,
    waits_for_refused,
)
from proxy.streams.held_request import LifeEvent
from proxy.streams.memory import READ_SIZE
from proxy.streams.request import Handler, Kind, Request, Requests
from proxy.streams.response_stream import ResponseStream
from proxy.streams.steps import DELAY_RESPONSE, HOLD, NEED, PASS, REPLACE, YIELD
from quotas.admission.frame import in_order, room_for
from quotas.admission.limit import Limit
from quotas.admission.limit_set import spend_amounts

#: First version with broker addresses in responses (KIP-951).
FIRST_WITH_NODE_ENDPOINTS: Final = 10
#: Longest response that the fast path handles as a whole.
_USUAL_RESPONSE: Final = 512
#: With so many bytes of its body more the first topic of a request can be read, but for a long transactional id.
_TO_FIRST_TOPIC: Final = 64


@final
class ProduceRequest(Request):
    """A Produce request that is decided alone, or does not arrive whole.

    unread     bytes of the frame that have not been read for its charges
    content    what it contains; None: nothing needs that
    refusal    how it is answered, if it is refused
    produce_version
               see `Pending`
    """

    __slots__ = ("content", "produce_version", "refusal", "unread")

    def __init__(self, kind: Kind, client: Client, size: int, unread: int) -> None:
        super().__init__(kind, client, size)
        self.unread = unread
        self.content: ProduceContent | None = None
        self.refusal: Refusal | None = None
        self.produce_version = kind.produce_version

    # ---- from the client to the broker

    def admit(self, requests: Requests, pos: int, end: int, now_ns: int) -> int:
        if requests.current is self:  # it was held here
            is_passed = self._ask_again(requests, self.size - self.unread, self.size, now_ns)
        else:
            step = self._read_first(requests, pos, end, now_ns)
            if step != PASS:
                return step
            is_passed = self._ask(requests, 1, self.size - self.unread, self.size, now_ns)
        if not is_passed:
            requests.current = self
            return HOLD
        self.client.entity.produce_requests += 1
        content = self.content
        if content is not None and topics_of(requests.connection).counts_errors:
            content.count_accepted(len(requests.responses.in_flight), answered=self.is_answered)
            self.produce_version = -1
        requests.put_in_flight(self.kind, self, pos)
        return self._pass(requests, self.size - self.unread, pos, pos + 4 + self.size - self.unread, now_ns)

    def go_on(self, requests: Requests, pos: int, end: int, now_ns: int) -> int:
        if self.refusal is not None:
            return self._discard(requests, self.refusal, pos, end, now_ns)
        left = requests.remaining
        read = left - self.unread
        if read:  # it was held here
            is_passed = self._ask_again(requests, read, left, now_ns)
        else:
            read = self._read_more(requests.buf, pos, end, is_last=end - pos == left)
            if not read:
                return self._nothing_read()
            self.unread = left - read
            content = self.content
            if content is not None and content.has_unknown_topic(topics_of(requests.connection)):
                raise UnknownTopicId("the first part of the request has passed")
            is_passed = self._ask(requests, 0, read, left, now_ns)
        return self._pass(requests, read, pos, pos + read, now_ns) if is_passed else HOLD

    def _read_first(self, requests: Requests, pos: int, end: int, now_ns: int) -> int:
        """Read what has arrived, for its charges. Returns `PASS`, or a step: more is needed, or it is refused."""
        connection, kind = requests.connection, self.kind
        frame_end = pos + 4 + self.size
        read_to = min(end, frame_end)
        if connection.identity.limits.walks:
            lists = may_refuse(connection, kind)
            ahead = min(self.size, LOOKAHEAD) - (read_to - pos - 4)
            if lists and ahead > 0 and (waits_for_refused(connection) or not connection.context.memory.is_tight):
                requests.want = ahead if requests.room < READ_SIZE else READ_SIZE
                return NEED
            body, topics = pos + kind.header.body_offset, topics_of(connection)
            content = self.content = ProduceContent(kind, self.size, lists_partitions=lists)
            arrived_to, read_to = read_to, content.read(requests.buf, body, read_to)
            if needs_first_topic(kind, connection):
                if not content.knows_first_topic and arrived_to < frame_end:
                    requests.want = _TO_FIRST_TOPIC
                    return NEED
                if content.has_unknown_topic(topics) or (content.walk.topic and topics.is_refused(content.walk.topic)):
                    return self._refuse(requests, unknown_topic_refusal(), pos, arrived_to, now_ns)
            refusal = refusal_of(connection, content, now_ns) if lists else None
            if refusal is not None:
                return self._refuse(requests, refusal, pos, arrived_to, now_ns)
        self.unread = frame_end - read_to
        return PASS

    def _read_more(self, buf: bytearray, pos: int, end: int, *, is_last: bool) -> int:
        """Read on, for the charges. Returns how many bytes."""
        content = self.content
        if content is None:
            return end - pos
        read = content.read(buf, pos, end) - pos
        if is_last and not content.walk.is_over and content.walk.work_left > 0:
            raise MalformedFrame("a request's last field", self.unread - read)
        return read

    def _nothing_read(self) -> int:
        """The step where no byte could be read: more must arrive, or this step has done its share of work."""
        return NEED if self.content is None or self.content.walk.work_left > 0 else YIELD

    # ---- its limits

    def _ask(self, requests: Requests, number: int, read: int, left: int, now_ns: int) -> bool:
        """Charge the read that was just made. False: the request is held. `number`: 1 for its first read, else 0."""
        connection, limits, content = requests.connection, self.client.limits, self.content
        amounts = limits.amounts(read, number)
        if content is not None:
            content.add_to(amounts, topics_of(connection), limits.producer_ids, now_ns)
        if requests.room >= READ_SIZE:
            requests.room = room = spend_amounts(amounts, read, now_ns)
            if room >= 0:
                return True
        self.charges = in_order(amounts)
        if not self.pass_limits(connection, read, left, now_ns):
            return False
        requests.room = 0 if self.debt_until_ns > now_ns else room_for(amounts, read, now_ns)
        return True

    def _ask_again(self, requests: Requests, read: int, left: int, now_ns: int) -> bool:
        """Go on to charge a read after a hold."""
        connection, content = requests.connection, self.content
        self.drop_replaced(connection)
        if content is not None:
            self.charges = content.recount_ids(self.charges, self.client.limits.producer_ids, now_ns)
        requests.room = 0
        return self.pass_limits(connection, read, left, now_ns)

    def owes(self, limit: Limit) -> bool:
        """Not to limits that refuse its records: Java would wait with all topics."""
        return not limit.rejects or self.content is None or not self.content.lists_partitions

    def topics_at(self, connection: Connection, limit: Limit, now_ns: int) -> tuple[str, ...]:
        content = self.content
        return () if content is None else content.topics_at(limit, topics_of(connection), now_ns)

    def _pass(self, requests: Requests, read: int, pos: int, read_to: int, now_ns: int) -> int:
        """The latest read passes its limits. Returns the step."""
        connection, content = requests.connection, self.content
        self.client.entity.produce_bytes += read
        if content is not None:
            if content.lists_partitions:
                follow(connection, content, now_ns)
            content.passed(connection, topics_of(connection), now_ns)
        requests.remaining = self.unread
        if self.unread:
            requests.current = self
            return read_to
        requests.current = None
        self.leave_debt(connection, now_ns)
        if self.delay is not None:
            self.produce_version = -1
        if self.counted_by is None and requests.room < READ_SIZE:
            notify_early(connection, self.kind, now_ns)
        self.end(connection, now_ns)
        return read_to

    # ---- requests that are refused

    def _refuse(self, requests: Requests, refusal: Refusal, pos: int, end: int, now_ns: int) -> int:
        """Drop the request at `pos`; it is answered when its end has arrived. Returns the step."""
        kind = self.kind
        if not self.is_answered:
            raise UnknownTopicId("the request expects no response (acks=0)")
        kind.handler.count(requests, now_ns)
        kind.counter.value += 1
        self.content = ProduceContent(kind, self.size, lists_partitions=True)
        self.refusal = refusal
        refusal.correlation_id = unpack_prefix(requests.buf, pos)[2]
        self.on(LifeEvent.REFUSE)
        body = pos + kind.header.body_offset
        requests.current = self
        requests.remaining = self.size + 4 - (body - pos)
        self._discard(requests, refusal, body, end, now_ns)
        return REPLACE

    def _discard(self, requests: Requests, refusal: Refusal, pos: int, end: int, now_ns: int) -> int:
        """More of a refused request has arrived. Returns the step."""
        connection, content = requests.connection, self.content
        requests.output = b""
        requests.resume_at = pos + self._read_more(requests.buf, pos, end, is_last=end - pos == requests.remaining)
        requests.remaining -= requests.resume_at - pos
        if content is not None and refuse(connection, content, refusal, now_ns):
            requests.current = None
            answer(requests.responses, self.kind, refusal)
            self.end(connection, now_ns)
        return REPLACE if requests.resume_at > pos else self._nothing_read()

    # ---- from the broker to the client

    def respond(self, responses: ResponseStream, pos: int, end: int, length: int, now_ns: int) -> int:
        if self.delay is not None and responses.postpone(self.delay, now_ns) != PASS:
            return DELAY_RESPONSE
        content = self.content
        if content is None or content.counted is None:
            return _respond(responses, self.kind.version, pos, end, length, now_ns)
        throttle_ms = responses.throttle_ms(now_ns)
        walk = ProduceResponseWalk(self.kind.version, length, throttle_ms, counts_errors=True)
        return responses.begin_walk(walk, pos, end, length, now_ns)

    def on_end(self, responses: ResponseStream, now_ns: int) -> None:
        """Record what the broker accepted, and what it refused. Topics with records that it accepted exist."""
        walk, content = responses.walk, self.content
        if content is None or content.counted is None or not isinstance(walk, ProduceResponseWalk):
            return
        refused = walk.refused_shares()
        context = responses.connection.context
        topics = context.registry.topics
        for usage in content.counted:
            share = refused.get(usage.topic, 0)
            name = context.topics.name_of(usage.topic)
            if name is None:
                continue
            if share < 1 and usage.topic in refused:
                topics.confirm(name)
            record_bytes, messages = int(usage.record_bytes * share), int(usage.messages * share)
            if share:
                topics.refused(name, record_bytes, messages, now_ns)
            topics.accepted(name, usage.record_bytes - record_bytes, usage.messages - messages, now_ns)


def notify_early(connection: Connection, kind: Kind, now_ns: int) -> None:
    """Send a notice where a limit is below its soft mark, so that the client stops before there is debt."""
    identity = connection.identity
    limits = identity.limits.produce.limits + identity.limits.requests.limits
    connection.context.measures.soft(identity, limits, kind.reply, now_ns)


def _respond(responses: ResponseStream, version: int, pos: int, end: int, length: int, now_ns: int) -> int:
    """The step for a response of which only throttle time and endpoints are changed."""
    throttle_ms = responses.throttle_ms(now_ns)
    if not throttle_ms and version < FIRST_WITH_NODE_ENDPOINTS:
        return responses.begin(pos, end, length)
    frame_end = pos + 4 + length
    if frame_end > end and length <= _USUAL_RESPONSE:
        responses.want = frame_end - end
        return NEED
    if frame_end <= end and finish_usual_produce_response(responses.buf, pos + 4, frame_end, version, throttle_ms):
        return responses.begin(pos, end, length)
    walk = ProduceResponseWalk(version, length, throttle_ms, counts_errors=False)
    return responses.begin_walk(walk, pos, end, length, now_ns)


@final
class Produce(Handler):
    """Begins a request, and answers for those of which the kind is in flight."""

    __slots__ = ()

    batchable = True

    def admit(self, requests: Requests, kind: Kind, pos: int, end: int, now_ns: int) -> int:
        length = unpack_prefix(requests.buf, pos)[0]
        request = ProduceRequest(kind, requests.connection.identity.client, length, 0)
        return request.admit(requests, pos, end, now_ns)

    def respond(self, responses: ResponseStream, kind: Kind, pos: int, end: int, length: int, now_ns: int) -> int:
        return _respond(responses, kind.version, pos, end, length, now_ns)
