"""Produce requests in one read whose records are counted by topic for usage alone: no limit counts them.

So a request is not checked as for a charge: brokers refuse it if its lengths or its tags are wrong. A run is counted
with one addition to each counter, and for each of its topics.
"""

from functools import lru_cache
from struct import Struct
from typing import Final, final

from protocol.produce_counts import TopicCount, count_records
from protocol.produce_walk import one_partition
from protocol.record_batch import BATCH_HEADER, BEFORE_SIZE, claimed_messages, unpack_batch
from protocol.request_header import PREFIX_SIZE, unpack_prefix
from protocol.topics import Topic
from proxy.observability.topic_traffic import OTHER_TOPICS, TopicTraffic
from proxy.streams.connection import InFlight, RequestKind
from proxy.streams.context import Context
from proxy.streams.produce_usage import name_of
from proxy.streams.runs import INDEX, MAX_PREFIX, NO_RUN, Charge, Layout, Run, Unpack, requests_charges
from proxy.streams.steps import PIECES_PER_STEP
from quotas.admission.client_limits import ClientLimits

#: Plans that are kept, each with a prefix: 6 MB of memory at most.
MAX_PLANS: Final = 4_096

#: The part of the header of a batch that its size counts.
_HEADER_IN_SIZE: Final = BATCH_HEADER - BEFORE_SIZE
#: Pieces of a request for one partition: the topic, and the partition.
_ONE_PARTITION: Final = 2


@lru_cache(maxsize=256)
def _layout(prefix_size: int, width: int) -> Unpack:
    """Reads length, API key and version, correlation id, prefix; size and magic of the batch, records count."""
    return Struct(f">iii{prefix_size}s{INDEX + width}x8xi4xb40xi").unpack_from


@final
class UsagePlan(Run):
    """Requests for one partition of one topic, with the same prefix."""

    __slots__ = ("_context", "_layout", "_messages", "_name", "_prefix", "_record_bytes", "_topic")

    def __init__(self, kind: RequestKind, prefix: bytes, topic: Topic, context: Context) -> None:
        super().__init__()
        self._prefix: Final = prefix
        self._topic: Final = topic
        self._context: Final = context
        #: None while it is not known.
        self._name: str | None = None
        self._layout: Final = Layout(kind, len(prefix), _layout)
        self._record_bytes = 0
        self._messages = 0

    def fit(self, buf: bytearray, pos: int) -> bool:
        return buf.startswith(self._prefix, pos + PREFIX_SIZE) and self._layout.fit(buf, pos)

    def scan(
        self,
        kind: RequestKind,
        buf: bytearray,
        pos: int,
        end: int,
        most: int,
        longest: int,
        in_flight: InFlight,
        now_ns: int,
    ) -> int:
        """A request is found as soon as the header of its batch is in the buffer, if that batch fills it."""
        key, prefix, answered, layout = kind.key, self._prefix, kind.answered, self._layout
        unpack, append = layout.unpack, in_flight.append
        before = PREFIX_SIZE + len(prefix) + INDEX + layout.width
        last = end - before - BATCH_HEADER
        around = before + len(layout.tags) + BEFORE_SIZE - 4
        count = sizes = messages = 0
        while pos <= last and count < most:
            length, seen, correlation_id, head, size, magic, claimed = unpack(buf, pos)
            if seen != key or head != prefix or magic != 2 or size + around != length or length > longest:
                break
            if 0 <= claimed <= size - _HEADER_IN_SIZE >> 3:  # as in nearly all batches
                messages += claimed
            elif size < _HEADER_IN_SIZE:
                break
            else:
                attributes = unpack_batch(buf, pos + before)[2]
                messages += claimed_messages(claimed, attributes, size + BEFORE_SIZE)
            if answered:
                append((correlation_id, kind))
            count += 1
            sizes += size
            pos += 4 + length
        if pos > end:
            self.last_size = length
        self.count, self._record_bytes, self._messages = count, sizes + count * BEFORE_SIZE, messages
        return pos

    def charges(self, client: ClientLimits, size: int, missing: int) -> list[Charge]:
        return requests_charges(client, size, missing, self.count)

    def count_topics(self, traffic: dict[str, TopicTraffic]) -> None:
        name = self._name
        if name is None:
            name = self._name = name_of(self._context, self._topic)
        counters = traffic[name or OTHER_TOPICS]
        counters.produce_bytes += self._record_bytes
        counters.produce_messages += self._messages


@final
class UsageTopicsRun(Run):
    """Requests for several topics or partitions, of a flexible version. It finds no others."""

    __slots__ = ("_context", "_found")

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context: Final = context
        self._found: list[TopicCount] = []

    def scan(
        self,
        kind: RequestKind,
        buf: bytearray,
        pos: int,
        end: int,
        most: int,
        longest: int,
        in_flight: InFlight,
        now_ns: int,
    ) -> int:
        """A request is found when all of it is in the buffer."""
        key, tail, shortest, body_offset = kind.key, kind.tail, kind.shortest, kind.header.body_offset
        version = kind.version
        found: list[TopicCount] = []
        count, pieces_left = 0, PIECES_PER_STEP
        while end - pos >= kind.needed and count < most:
            length, seen, correlation_id = unpack_prefix(buf, pos)
            frame_end = pos + 4 + length
            if seen != key or not shortest <= length <= longest or frame_end > end:
                break
            if not buf.startswith(tail, pos + PREFIX_SIZE):
                break
            counts, pieces = count_records(buf, pos + body_offset, frame_end, version, pieces_left)
            if pieces <= _ONE_PARTITION:
                break
            found += counts
            pieces_left -= pieces
            if kind.answered:
                in_flight.append((correlation_id, kind))
            count += 1
            pos = frame_end
        self.count, self._found = count, found
        return pos

    def charges(self, client: ClientLimits, size: int, missing: int) -> list[Charge]:
        return requests_charges(client, size, missing, self.count)

    def count_topics(self, traffic: dict[str, TopicTraffic]) -> None:
        for topic, record_bytes, messages in self._found:
            counters = traffic[name_of(self._context, topic) or OTHER_TOPICS]
            counters.produce_bytes += record_bytes
            counters.produce_messages += messages


@final
class UsagePlans:
    """Finds the run of a request. Shared by all connections, since many of these send the same prefixes."""

    __slots__ = ("_context", "_known", "_several")

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._known: dict[tuple[RequestKind, bytes], UsagePlan] = {}
        self._several: Final = UsageTopicsRun(context)

    def find(self, kind: RequestKind, buf: bytearray, pos: int, end: int) -> Run:
        """What may find a run of requests such as the one at `pos`."""
        if kind.length_at(buf, pos, end) < 0:
            return NO_RUN
        one = one_partition(buf, pos + kind.header.body_offset, end, kind.version)
        if one is None:
            return self._several
        topic, prefix_end = one
        start = pos + PREFIX_SIZE
        if prefix_end - start > MAX_PREFIX:
            return self._several
        prefix = bytes(buf[start:prefix_end])
        plan = self._known.get((kind, prefix))
        if plan is None:
            plan = UsagePlan(kind, prefix, topic, self._context)
            if len(self._known) >= MAX_PLANS:
                self._known.clear()
            self._known[kind, prefix] = plan
        plan.fit(buf, pos)
        return plan
