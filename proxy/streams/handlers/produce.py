"""Produce: a request passes its limits as it arrives, chunk by chunk, and its response contains the throttle time.

Topics, records and producer ids are parsed only for clients with a limit on them, and for usage by topic
(`produce_content`). Node endpoints in the response are hidden while it streams by. `reject` handles the requests that
are not forwarded.
"""

from typing import Final, final

from protocol.errors import MalformedFrame
from protocol.produce import ProduceResponseWalk
from protocol.request_header import unpack_prefix
from proxy.enforcement.identity import Client
from proxy.streams.connection import Connection
from proxy.streams.handlers.produce_content import ProduceContent, Refusal, needs_first_topic, topics_of
from proxy.streams.handlers.reject import refusals
from proxy.streams.handlers.reject.refusals import UnknownTopicId
from proxy.streams.limited_request import LifeEvent
from proxy.streams.memory import READ_SIZE
from proxy.streams.pending import Responses
from proxy.streams.request import Handler, Kind, Request, Requests
from proxy.streams.sent_records import most_kept, take_back
from proxy.streams.steps import DELAY_RESPONSE, HOLD, NEED, PASS, REPLACE, YIELD
from quotas.adaptive.producer_guard import HOLD_NS
from quotas.admission.frame import room_for
from quotas.admission.limit import Limit
from quotas.admission.limit_set import spend_charges
from quotas.limit_kinds import MESSAGE_LIMITS, PRODUCER_BYTE_RATE

#: The longest response that the fast path handles as a whole.
_USUAL_RESPONSE: Final = 512
#: With this many more bytes of its body, the first topic of a request can be read, unless its transactional id is long.
_TO_FIRST_TOPIC: Final = 64


@final
class ProduceRequest(Request):
    """A Produce request that is decided alone, or arrives in parts.

    unread     how many bytes of the frame have not been read for its charges
    content    what it contains, and how it is answered if it is refused; None: nothing needs that
    produce_version
               see `Pending`
    """

    __slots__ = ("content", "produce_version", "unread")

    def __init__(self, kind: Kind, client: Client, size: int, unread: int) -> None:
        super().__init__(kind, client, size)
        self.unread = unread
        self.content: ProduceContent | None = None
        self.produce_version = kind.produce_version

    # ---- from the client to the broker

    def pass_first(self, requests: Requests, pos: int, read_to: int, now_ns: int) -> int:
        """Pass the first chunk, which ends at `read_to`. Returns the step."""
        chunk = read_to - pos - 4
        self.unread = self.size - chunk
        room = self._charge_chunk(requests, chunk, 1, now_ns)
        requests.current = self
        return self._pass(requests, chunk, self.size, now_ns, room, pos)

    def decide(self, requests: Requests, pos: int, end: int, now_ns: int) -> int:
        guard = requests.connection.context.registry.guard
        if guard is not None and self.limit is guard.limit and 0 < requests.connection.held_until_ns <= now_ns:
            refusal = refusals.storage_refusal(requests.connection, guard, now_ns)
            return self.refuse(requests, refusal, pos, min(end, pos + 4 + self.size), now_ns)
        self._renew(requests, now_ns)
        return self._pass(requests, self.size - self.unread, self.size, now_ns, -1, pos)

    def go_on(self, requests: Requests, pos: int, end: int, now_ns: int) -> int:
        content = self.content
        if content is not None and content.refusal is not None:
            return self._discard(requests, content, content.refusal, pos, end, now_ns)
        left, room = requests.remaining, -1
        chunk = left - self.unread
        if chunk:  # it was held here
            self._renew(requests, now_ns)
        else:
            chunk = end - pos
            if content is not None:
                chunk = self._read_more(content, requests.buf, pos, end, is_last=chunk == left)
            if not chunk:
                return self._nothing_read()
            self.unread = left - chunk
            room = self._charge_chunk(requests, chunk, 0, now_ns)
        step = self._pass(requests, chunk, left, now_ns, room)
        return step if step == HOLD else pos + chunk

    def _charge_chunk(self, requests: Requests, chunk: int, number: int, now_ns: int) -> int:
        """Set the charges of the chunk that was just read, and make them if no limit is near. `number`: 1 for the first
        one, otherwise 0. Returns how many more bytes would fit; -1: the charges are not made.
        """
        connection, content, limits = requests.connection, self.content, self.client.limits
        # Far from any limit, one call charges all of them, or none. After a hold, the order of the limits matters.
        is_far = bool(requests.room) and not self.served
        room = self._spend(connection, chunk, number, now_ns) if is_far else -1
        if room >= 0:
            return room
        if content is not None and not number and content.has_unknown_topic(topics_of(connection)):
            raise UnknownTopicId("the first part of the request has passed")
        surcharges = limits.surcharges([self.size]) if number and limits.costs else ()
        self.charges = limits.charges_of(chunk, number, surcharges)
        if content is not None:
            self.charges = content.add_to(self.charges, topics_of(connection), limits.producer_ids, now_ns)
        return spend_charges(self.charges, chunk, now_ns) if is_far else -1

    def _spend(self, connection: Connection, chunk: int, number: int, now_ns: int) -> int:
        """Like `_charge_chunk`, far from any limit, if the charges are in one unit or were found in a batch."""
        content, limits = self.content, self.client.limits
        if content is None:
            return limits.produce.spend(chunk, now_ns) if not limits.mixed or not number else -1
        return (
            -1 if content.spend_rest is None else content.spend_rest(connection.identity, chunk, content.found, now_ns)
        )

    def _renew(self, requests: Requests, now_ns: int) -> None:
        """Continue after a hold."""
        self.drop_replaced(requests.connection)
        guard = requests.connection.context.registry.guard
        # It had begun to pass when the disk guard held it, so it cannot be refused: its rest passes.
        if guard is not None and requests.remaining and self.held_ns >= HOLD_NS:
            self.charges = [each for each in self.charges if each[0] is not guard.limit]
        if self.content is not None:
            self.charges = self.content.recount_ids(self.charges, self.client.limits.producer_ids, now_ns)
        requests.room = 0

    def _pass(self, requests: Requests, chunk: int, left: int, now_ns: int, room: int, pos: int = -1) -> int:
        """Pass the latest chunk, if its limits allow that. `room`: see `_charge_chunk`. `pos`: where its frame begins;
        -1: it has begun to pass.

        Returns `HOLD`, or where the chunk ends if `pos` is given.
        """
        connection, content, charges = requests.connection, self.content, self.charges
        if room >= 0:
            self.charges = []
        elif not self.pass_limits(connection, chunk, left, now_ns):
            return HOLD
        elif self.debt_until_ns <= now_ns:
            room = room_for(charges, chunk, now_ns)
        # 0 after debt, so that the next request is decided alone, and held.
        requests.room = max(room, 0)
        entity = self.client.entity
        entity.produce_bytes += chunk
        # The header passes with the first chunk, so the request is in flight now.
        if pos >= 0:
            entity.produce_requests += 1
            if content is not None and topics_of(connection).counts_errors:
                content.count_accepted(len(requests.responses.in_flight), answered=self.is_answered)
                self.produce_version = -1
            requests.put_in_flight(self.kind, self, pos)
        if content is not None:
            if content.lists_partitions:
                refusals.follow(connection, content, now_ns)
            content.passed(connection, topics_of(connection), now_ns)
        requests.remaining = self.unread
        if not self.unread:
            self._finish(requests, now_ns)
        return pos + 4 + chunk

    def _finish(self, requests: Requests, now_ns: int) -> None:
        """Finish the request: all of it has passed."""
        connection = requests.connection
        requests.current = None
        self.leave_debt(connection, now_ns)
        if self.delay is not None:
            self.produce_version = -1
        elif self.counted_by is None and requests.room < READ_SIZE:
            notify_early(connection, self.kind, now_ns)
        self.end(connection, now_ns)

    def _read_more(self, content: ProduceContent, buf: bytearray, pos: int, end: int, *, is_last: bool) -> int:
        """Read more of the content, for the charges. Returns how many bytes were read."""
        chunk = content.read(buf, pos, end) - pos
        if is_last and not content.walk.is_over and content.walk.work_left > 0:
            raise MalformedFrame("a request's last field", self.unread - chunk)
        return chunk

    def _nothing_read(self) -> int:
        """The step if no byte could be read: either more must arrive, or this step has done its share of work."""
        return NEED if self.content is None or self.content.walk.work_left > 0 else YIELD

    def owes(self, limit: Limit) -> bool:
        """See `LimitedRequest`. No wait for limits that refuse its records, because Java would stop all topics."""
        return not limit.rejects or self.content is None or not self.content.lists_partitions

    def queued(self, limit: Limit, units: int, chunk: int, left: int) -> int:
        content = self.content
        if limit.name == PRODUCER_BYTE_RATE:
            return units - chunk + left  # units: those of the chunk, and a `request_cost`
        if content is not None:
            # In proportion to records, not bytes, because a chunk often has little more than the header of its frame.
            record_bytes = sum(usage.record_bytes for usage in content.found)
            chunk, left = record_bytes, left - chunk + record_bytes
            # The batch that is arriving counts exactly, because each of a few messages may stand for many bytes.
            if limit.name in MESSAGE_LIMITS and all(usage.topic == content.walk.topic for usage in content.found):
                late_bytes, late_messages = content.walk.late
                units, chunk = units + late_messages, chunk + late_bytes
        return super().queued(limit, units, chunk, left)

    def topics_at(self, connection: Connection, limit: Limit, now_ns: int) -> tuple[str, ...]:
        content = self.content
        return () if content is None else content.topics_at(limit, topics_of(connection), now_ns)

    # ---- requests that are refused

    def refuse(self, requests: Requests, refusal: Refusal, pos: int, end: int, now_ns: int) -> int:
        """Drop the request at `pos`; it is answered when its end has arrived. Returns the step."""
        kind = self.kind
        if not self.is_answered:
            raise UnknownTopicId("the request expects no response (acks=0)")
        kind.handler.count(requests, now_ns)
        kind.counter.value += 1
        content = self.content = ProduceContent(kind, self.size, lists_partitions=True)
        content.refusal = refusal
        refusal.correlation_id = unpack_prefix(requests.buf, pos)[2]
        self.on(LifeEvent.REFUSE)
        body = pos + kind.header.body_offset
        requests.current = self
        requests.remaining = pos + 4 + self.size - body
        self._discard(requests, content, refusal, body, end, now_ns)
        return REPLACE

    def _discard(
        self, requests: Requests, content: ProduceContent, refusal: Refusal, pos: int, end: int, now_ns: int
    ) -> int:
        """Discard more of a refused request, which has arrived. Returns the step."""
        connection = requests.connection
        requests.output, is_last = b"", end - pos == requests.remaining
        requests.resume_at = pos + self._read_more(content, requests.buf, pos, end, is_last=is_last)
        requests.remaining -= requests.resume_at - pos
        if refusals.refuse(connection, content, refusal, now_ns):
            requests.current = None
            refusals.answer(requests.responses, self.kind, refusal)
            self.end(connection, now_ns)
        return REPLACE if requests.resume_at > pos else self._nothing_read()

    # ---- from the broker to the client

    def respond(self, responses: Responses, pos: int, end: int, length: int, now_ns: int) -> int:
        if self.delay is not None and responses.postpone(self.delay, now_ns) != PASS:
            return DELAY_RESPONSE
        content = self.content
        if content is None or content.counted is None:
            return _respond(responses, self.kind.version, pos, end, length, now_ns)
        throttle_ms = responses.throttle_ms(now_ns)
        walk = ProduceResponseWalk(self.kind.version, length, throttle_ms, counts_errors=True)
        return responses.forward_walked(walk, pos, end, length, now_ns)

    def on_end(self, responses: Responses, now_ns: int) -> None:
        """Record what the broker accepted, and what it refused. Topics with accepted records exist."""
        walk, content = responses.walk, self.content
        if content is None or not isinstance(walk, ProduceResponseWalk):
            return
        take_back(content.sent, content.traffic, walk)
        if content.counted is None:
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
    """Send a notice if a limit is below its soft mark, so that the client stops before there is debt."""
    identity = connection.identity
    limits = identity.limits.produce.limits + identity.limits.requests.limits
    connection.context.actions.soft(identity, limits, kind.reply, now_ns)


def _respond(responses: Responses, version: int, pos: int, end: int, length: int, now_ns: int) -> int:
    """The step for a response in which only the throttle time and endpoints are read and changed, and also errors if
    usage is counted by topic.
    """
    throttle_ms = responses.throttle_ms(now_ns)
    frame_end = pos + 4 + length
    if frame_end > end and length <= _USUAL_RESPONSE:
        responses.want = frame_end - end
        return NEED
    if frame_end <= end and responses.answers.finish_produce(responses.buf, pos + 4, frame_end, version, throttle_ms):
        return responses.forward(pos, end, length)
    walk = ProduceResponseWalk(version, length, throttle_ms, counts_errors=responses.answers.sent_records is not None)
    return responses.forward_walked(walk, pos, end, length, now_ns)


@final
class Produce(Handler):
    """Reads the first chunk of a request, and handles responses to requests whose kind is in flight."""

    batchable = True

    def on_request(self, requests: Requests, kind: Kind, pos: int, end: int, now_ns: int) -> int:
        connection = requests.connection
        length = unpack_prefix(requests.buf, pos)[0]
        request = ProduceRequest(kind, connection.identity.client, length, 0)
        frame_end = pos + 4 + length
        read_to = min(end, frame_end)
        if not connection.identity.limits.walks:
            return request.pass_first(requests, pos, read_to, now_ns)
        refusal = refusals.behind_refused(connection, kind, pos, read_to, now_ns)
        if refusal is not None:
            return request.refuse(requests, refusal, pos, read_to, now_ns)
        return self._read_content(requests, request, pos, read_to, frame_end, now_ns)

    def _read_content(
        self, requests: Requests, request: ProduceRequest, pos: int, read_to: int, frame_end: int, now_ns: int
    ) -> int:
        """Read the first chunk of the request at `pos`, whose content counts. Returns the step."""
        connection, kind, length = requests.connection, request.kind, request.size
        # A request that may be refused must be read, as far as the look-ahead goes, before a byte of it passes.
        lists = refusals.may_refuse(connection, kind)
        ahead = min(length, refusals.LOOKAHEAD) - (read_to - pos - 4)
        if lists and ahead > 0 and (refusals.waits_for_refused(connection) or not self.context.memory.is_tight):
            requests.want = ahead if requests.room < READ_SIZE else READ_SIZE
            return NEED
        most_sent = self._most_sent(kind, requests.responses)
        content = request.content = ProduceContent(kind, length, lists_partitions=lists, most_sent=most_sent)
        walked_to = content.read(requests.buf, pos + kind.header.body_offset, read_to)
        # A later topic with an unknown id closes the connection, because part of the request has passed by then.
        if needs_first_topic(kind, connection):
            if not content.knows_first_topic and read_to < frame_end:
                requests.want = _TO_FIRST_TOPIC
                return NEED
            if content.has_unknown_topic(topics_of(connection)):
                return request.refuse(requests, refusals.unknown_topic_refusal(), pos, read_to, now_ns)
        refusal = refusals.refusal_of(connection, content, now_ns) if lists else None
        if refusal is not None:
            return request.refuse(requests, refusal, pos, read_to, now_ns)
        content.spared = refusals.spared_limit(connection, kind, pos, read_to, length, now_ns)
        return request.pass_first(requests, pos, walked_to, now_ns)

    def _most_sent(self, kind: Kind, responses: Responses) -> int:
        """How many partitions a request keeps for its response if usage is counted by topic."""
        is_kept = kind.answered and self.context.config.usage.by_topic
        return most_kept(len(responses.in_flight)) if is_kept else 0

    def respond(self, responses: Responses, kind: Kind, pos: int, end: int, length: int, now_ns: int) -> int:
        if responses.answers.sent_records is None:
            return _respond(responses, kind.version, pos, end, length, now_ns)
        # A partition may have an error, so the request needs an object now.
        correlation_id = responses.in_flight[0][0]
        request = ProduceRequest(kind, responses.connection.identity.client, 0, 0)
        content = request.content = ProduceContent(kind, 0, lists_partitions=False)
        found = (each for each in responses.answers.sent_records if each[0] == correlation_id)
        _, content.sent, content.traffic = next(found, (0, [], {}))
        responses.in_flight[0] = correlation_id, request
        return request.respond(responses, pos, end, length, now_ns)
