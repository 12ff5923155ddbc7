"""Produce requests that stream by: what they put into which topic, against a slow reading of the whole."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from struct import pack, unpack_from

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import MalformedFrame, TruncatedFrame
from protocol.produce_walk import LastBatchWalk, ProduceRequestWalk, TopicUsage, one_partition
from protocol.record_batch import BATCH_HEADER, PLAIN_WIDTH, TOO_WIDE, length_field, read_size, width_of
from protocol.topics import LONGEST_NAME, NO_TOPIC_ID, Topic
from protocol.wire import encode_varint
from tests.protocol.kafka_messages import (
    Resting,
    Taking,
    produce_body,
    record_batch,
    set_entry,
    streamed,
    topic_of,
)

VERSIONS = range(14)
HEADER = b"h" * 23
"""The bytes before a body, which are not read."""

Records = bytes | None
Totals = dict[Topic, tuple[int, int, set[int]]]
"""Bytes, messages, producer ids."""


@dataclass(frozen=True)
class Batch:
    """One batch, or entry of a message set. `producer_id`: -1 without one."""

    size: int
    messages: int
    producer_id: int = -1


@cache
def read_slowly(records: bytes) -> list[Batch]:
    """The batches, as the module's docstring has it; up to what is none."""
    batches: list[Batch] = []
    while len(records) >= 26:
        offset, size, magic, attributes = unpack_from(">qi4xbb", records)
        if size < 14 or 12 + size > len(records):
            break
        batch, records = records[: 12 + size], records[12 + size :]
        if magic == 2 and len(batch) >= 61:
            attributes, producer_id, count = unpack_from(">h20xq6xi", batch, 21)
            payload = len(batch) - 61
            most = 8 * payload if attributes % 8 else payload // 7
            batches.append(Batch(len(batch), sorted((0, count, most))[1], producer_id))
        elif magic in (0, 1):
            batches.append(Batch(len(batch), sorted((1, offset + 1, len(batch)))[1] if attributes % 8 else 1))
        else:
            break
    return batches


def arrived(topic: Topic, records: bytes, size: int) -> TopicUsage:
    """What these records count when their first `size` bytes have arrived."""
    messages, at = 0, 0
    producer_ids: set[int] = set()
    for batch in read_slowly(records):
        here = sorted((0, size - at, batch.size))[1]
        messages += -(-batch.messages * here // batch.size)
        if here and batch.producer_id >= 0:
            producer_ids.add(batch.producer_id)
        at += batch.size
    return TopicUsage(topic, sorted((0, size, len(records)))[1], messages, tuple(producer_ids))


def expected(topics: Iterable[tuple[Topic, list[Records]]]) -> Totals:
    totals: Totals = {}
    for topic, partitions in topics:
        for records in partitions:
            if records:
                add(totals, arrived(topic, records, len(records)))
    return totals


def add(totals: Totals, usage: TopicUsage) -> None:
    record_bytes, messages, producer_ids = totals.get(usage.topic, (0, 0, set()))
    totals[usage.topic] = (
        record_bytes + usage.record_bytes,
        messages + usage.messages,
        producer_ids | set(usage.producer_ids),
    )


class Counting(Taking):
    """A walk over the body of a request, and what it puts into each topic."""

    def __init__(self, version: int, body: bytes) -> None:
        super().__init__(ProduceRequestWalk(version, len(HEADER) + len(body), len(HEADER)))

    @property
    def totals(self) -> Totals:
        totals: Totals = {}
        for usage in self.found:
            assert usage.record_bytes or usage.messages or usage.producer_ids
            assert len(set(usage.producer_ids)) == len(usage.producer_ids)
            add(totals, usage)
        return totals


def totals_of(version: int, body: bytes, sizes: list[int]) -> Totals:
    """And nothing is changed."""
    taking = Counting(version, body)
    assert streamed(taking, body, sizes) == body
    assert taking.walk.is_over
    return taking.totals


def head_of_one(version: int, body: bytes) -> tuple[Topic, int] | None:
    """The topic of a request for one partition, and where that begins in the body."""
    found = one_partition(bytearray(HEADER + body), len(HEADER), len(HEADER) + len(body), version)
    return found and (found[0], found[1] - len(HEADER))


INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
PAYLOADS = st.integers(0, 40).map(bytes) | st.sampled_from([bytes(300), bytes(17_000)])
BATCHES = st.builds(
    record_batch,
    st.integers(0, 9) | INT32,
    PAYLOADS,
    producer_id=st.integers(-1, 3) | INT64,
    codec=st.integers(0, 8),
    magic=st.just(2) | st.integers(-128, 127),
)
ENTRIES = st.builds(set_entry, st.integers(0, 1), PAYLOADS, offset=st.integers(-1, 5) | INT64, codec=st.integers(0, 8))
RECORDS = st.none() | st.lists(BATCHES | ENTRIES | st.binary(max_size=30), max_size=4).map(b"".join)
CUT = st.tuples(BATCHES | ENTRIES, st.integers(0, 80)).map(lambda drawn: drawn[0][: drawn[1]])
PARTITIONS = st.lists(RECORDS | CUT, max_size=4)
#: Brokers refuse names above 249 bytes: they are not kept.
NAMES = ["", "t", "t" * 125, "t" * 126, "t" * 127, "t" * 249, "t" * 250, "t" * 32_767, "\u00fc" * 70]


def topic_with(version: int, name: str) -> Topic:
    return topic_of(version, NAMES.index(name)) if version >= 13 else name


def size_of(topic: Topic) -> int:
    return len(topic.encode() if isinstance(topic, str) else topic)


TRANSACTIONAL_IDS = st.none() | st.sampled_from(["", "etl", "x" * 126, "x" * 127, "x" * 300])


class Arriving(Counting):
    """After each call: what has been reported is what has arrived and is final, and no more."""

    def __init__(self, version: int, topics: list[tuple[Topic, list[Records]]], transactional_id: str | None) -> None:
        self.body = produce_body(version, topics, transactional_id)
        self.final = 0
        #: The topic, where they begin in the body, the records; of each partition.
        self.places: list[tuple[Topic, int, bytes]] = []
        tags = 3 if version >= 9 else 0  # of the partition, its topic and the body: one byte each
        for index, (topic, partitions) in enumerate(topics):
            seen = topic if size_of(topic) <= LONGEST_NAME else NO_TOPIC_ID
            for number, records in enumerate(partitions, 1):
                so_far = produce_body(version, [*topics[:index], (topic, partitions[:number])], transactional_id)
                if records:
                    self.places.append((seen, len(so_far) - tags - len(records), records))
        super().__init__(version, self.body)

    def advance(self, buf: bytearray, pos: int, end: int) -> int:
        after = super().advance(buf, pos, end)
        self.final += after - pos
        expected: Totals = {}
        for topic, start, records in self.places:
            if self.final > start:
                add(expected, arrived(topic, records, self.final - start))
        assert self.totals == expected
        return after


@given(
    version=st.sampled_from(VERSIONS),
    drawn=st.lists(st.tuples(st.sampled_from(NAMES), PARTITIONS), max_size=3),
    transactional_id=TRANSACTIONAL_IDS,
    sizes=st.lists(st.integers(0, 40) | st.integers(0, 20_000), max_size=30) | st.just([1] * 400),
    work=st.integers(1, 5) | st.just(1 << 40),
)
def test_any_request_in_any_splits(
    version: int,
    drawn: list[tuple[str, list[Records]]],
    transactional_id: str | None,
    sizes: list[int],
    work: int,
) -> None:
    """What has not arrived counts nothing, after every chunk; so at the end the sums are exact."""
    topics = [(topic_with(version, name), partitions) for name, partitions in drawn]
    arriving = Arriving(version, topics, transactional_id if version >= 3 else None)
    assert streamed(Resting(arriving, work), arriving.body, sizes) == arriving.body
    assert arriving.walk.is_over
    assert arriving.final == len(arriving.body)


@pytest.mark.parametrize("version", [2, 3, 9, 12, 13])
@pytest.mark.parametrize("records", [None, b"x", record_batch(1, bytes(9)), record_batch(1, bytes(9)) * 3])
def test_it_rests_when_it_has_done_its_work(version: int, records: Records) -> None:
    """Each topic, partition and batch is a piece; a partition that holds one batch is one with it."""
    topics: list[tuple[Topic, list[Records]]] = [(topic_of(version, index), [records]) for index in range(40)]
    body = produce_body(version, topics)
    counting = Counting(version, body)
    resting = Resting(counting, 10)

    assert streamed(resting, body, []) == body
    pieces = 40 * (2 if records is None or len(records) < 100 else 5)
    assert pieces // 11 - 1 <= resting.rests <= pieces // 10
    assert counting.totals == expected(topics)


@given(
    version=st.sampled_from(VERSIONS),
    drawn=st.lists(st.tuples(st.sampled_from(NAMES), st.lists(RECORDS, max_size=3)), max_size=3),
    transactional_id=TRANSACTIONAL_IDS,
)
def test_the_head_of_a_request_for_one_partition(
    version: int, drawn: list[tuple[str, list[Records]]], transactional_id: str | None
) -> None:
    topics = [(topic_with(version, name), partitions) for name, partitions in drawn]
    body = produce_body(version, topics, transactional_id if version >= 3 else None)
    one = head_of_one(version, body)
    longest = LONGEST_NAME if version < 9 else 126
    assert (one is not None) == ([(len(each), size_of(topic) <= longest) for topic, each in topics] == [(1, True)])
    if one is not None:
        assert one[0] == topics[0][0]
        rest = produce_body(version, [(topics[0][0], [b"x" * 100])], transactional_id if version >= 3 else None)
        assert rest[: one[1]] == body[: one[1]], "what all such requests have in common"
        assert head_of_one(version, body[: one[1]]) is not None
        assert head_of_one(version, body[: one[1] - 1]) is None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("payload", [0, 1, 65, 66, 67, 16_321, 16_322, 16_323, 2_097_089])
def test_usual_requests(version: int, payload: int) -> None:
    """Lengths of records around those where their varint grows, up to the longest of three bytes; with so few messages
    that the quickest path reads them.
    """
    topic = topic_of(version, 0)
    batch = record_batch(payload // 8, bytes(payload), producer_id=4711)
    body = produce_body(version, [(topic, [batch, batch])])
    for sizes in ([], [60]):
        assert totals_of(version, body, sizes) == {topic: (2 * len(batch), payload // 8 * 2, {4711})}


@pytest.mark.pure
@pytest.mark.parametrize("version", [9, 12, 13])
def test_plain_topics_that_have_arrived_whole_need_no_generator(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes three times as long."""
    batches: list[Records] = [record_batch(1, bytes(size), producer_id=7) for size in (9, 300, 20_000)]
    topics = [(topic_of(version, index), batches) for index in range(4)]
    body = bytearray(produce_body(version, topics))

    def read(work: int) -> ProduceRequestWalk:
        walk = ProduceRequestWalk(version, len(body), 0)
        walk.work_left = work
        walk.advance(body, 0, len(body))
        return walk

    assert not read(15).is_over
    monkeypatch.setattr(ProduceRequestWalk, "_walk_topic", None)
    walk = read(16)
    assert walk.is_over
    assert walk.work_left == 0
    totals: Totals = {}
    for usage in walk.take():
        add(totals, usage)
    assert totals == expected(topics)


@given(data=st.data(), version=st.sampled_from(VERSIONS), payload=st.integers(210, 900), messages=st.integers(0, 30))
def test_the_rest_of_a_batch_is_reported_like_the_whole(
    data: st.DataObject, version: int, payload: int, messages: int
) -> None:
    topic = topic_of(version, 0)
    batch = record_batch(messages, bytes(payload), producer_id=9)
    body = bytearray(produce_body(version, [(topic, [batch])]))
    tags = 3 if version >= 9 else 0
    cut = data.draw(st.integers(body.index(batch) + BATCH_HEADER, len(body) - tags - (not tags)))
    whole = ProduceRequestWalk(version, len(body), 0)
    at = whole.advance(body, 0, cut)
    rest = LastBatchWalk(version, len(body), len(body) - cut, topic, len(batch), messages)
    found = whole.take()
    assert (found[0].record_bytes, found[0].messages) == (len(batch) - rest.late[0], messages - rest.late[1])
    while at < len(body):
        end = data.draw(st.integers(at + 1, len(body)))
        assert whole.advance(body, at, end) == rest.advance(body, at, end) == end
        assert whole.take() == rest.take()
        at = end
    assert rest.is_over


def test_the_rest_of_a_batch_has_no_tags() -> None:
    rest = LastBatchWalk(13, 1_000, 10, topic_of(13, 0), 100, 1)
    assert rest.advance(bytearray(b"records\x00"), 0, 8) == 8

    with pytest.raises(MalformedFrame) as error:
        rest.advance(bytearray(2 * b"\x01"), 0, 2)
    assert error.value.offset == 998


def built(count: int, magic: int, codec: int) -> bytes:
    """By aiokafka, which compresses."""
    if magic == 2:
        batch = DefaultRecordBatchBuilder(2, codec, 1, 31, 0, 0, 1 << 20)
        for index in range(count):
            assert batch.append(index, 1_000, b"key", b"value" * 5, [])
        return bytes(batch.build())
    entries = LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=1 << 20)
    for index in range(count):
        assert entries.append(index, timestamp=1_000, key=b"key", value=b"value" * 5)
    return bytes(entries.build())


@pytest.mark.parametrize("codec", range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("count", [1, 3, 2_000])
def test_batches_of_a_real_client(codec: int, count: int) -> None:
    topics: list[tuple[Topic, list[Records]]] = [("flights", [built(count, 2, codec)] * 2)]
    body = produce_body(12, topics)
    assert totals_of(12, body, [40, 1_000]) == {"flights": (2 * len(built(count, 2, codec)), 2 * count, {31})}


@pytest.mark.parametrize(("magic", "codec"), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)])
def test_message_sets_of_a_real_client(magic: int, codec: int) -> None:
    """aiokafka gives a compressed entry the offset 0; with the last message's inside, as Kafka's does, it is right."""
    records = built(300, magic, codec)
    assert totals_of(2, produce_body(2, [("t", [records])]), [40, 1_000]) == {
        "t": (len(records), 1 if codec else 300, set())
    }
    if codec:
        records = pack(">q", 299) + records[8:]
        assert totals_of(2, produce_body(2, [("t", [records])]), []) == {"t": (len(records), 300, set())}


def test_the_smallest_records_reach_the_bound_and_do_not_exceed_it() -> None:
    """Without compression: with it, what a codec can do is far from the bound."""
    batch = DefaultRecordBatchBuilder(2, 0, 1, -1, -1, -1, 1 << 20)
    for index in range(60):  # offset deltas of one byte
        assert batch.append(index, 1_000, None, None, [])
    records = bytes(batch.build())
    assert len(records) == 61 + 60 * 7
    assert totals_of(12, produce_body(12, [("t", [records])]), []) == {"t": (len(records), 60, set())}


def test_what_is_not_taken_is_kept_and_reported_once() -> None:
    topics: list[tuple[Topic, list[Records]]] = [
        ("a", [record_batch(1, bytes(70), producer_id=1), record_batch(1, bytes(70), producer_id=1)]),
        ("empty", [None, b""]),
        ("b", [record_batch(2, bytes(70), producer_id=2)]),
    ]
    body = bytearray(produce_body(9, topics))
    walk = ProduceRequestWalk(9, len(body), 0)
    at = 0
    for end in range(len(body) + 1):
        at = walk.advance(body, at, end)
    assert walk.take() == [TopicUsage("a", 262, 2, (1,)), TopicUsage("b", 131, 2, (2,))]
    assert walk.take() == []


@pytest.mark.parametrize(
    ("version", "body", "offset"),
    [
        pytest.param(7, b"\xff\xff" + bytes(6) + b"\x7f\xff\xff\xff", 12, id="topics without end"),
        pytest.param(12, b"\x00" + bytes(6) + b"\xff\xff\xff\xff\x07", 12, id="topics without end, compact"),
        pytest.param(7, b"\xff\xff" + pack(">hiihi", 1, 1, 1, 0, 2**31 - 1), 18, id="partitions without end"),
        pytest.param(12, b"\x00" + bytes(6) + b"\x02\x01\xff\xff\xff\xff\x07", 14, id="partitions, compact"),
        pytest.param(12, b"\x00" + bytes(6) + b"\x02\x02t\x7f" + bytes(150), 11, id="more partitions than fit"),
        pytest.param(12, b"\x00" + bytes(6) + b"\x02\x00\x01\x00", 9, id="a topic without a name, compact"),
        pytest.param(7, b"\xff\xff" + pack(">hiihi", 1, 1, 1, -1, 0), 14, id="a topic without a name"),
        pytest.param(7, b"\xff\xff" + pack(">hiihi", 1, 1, 1, -2, 0), 14, id="a name of less than nothing"),
        pytest.param(12, b"\x00" + bytes(6) + b"\x02\x81\x80\x02" + bytes(40_000), 11, id="a name beyond all names"),
        pytest.param(7, b"\xff\xff" + pack(">hiihiii", 1, 1, 1, 0, 1, 0, 2**31 - 1), 26, id="records without end"),
    ],
)
def test_what_cannot_be(version: int, body: bytes, offset: int) -> None:
    for sizes in ([], [1] * len(body)):
        with pytest.raises(MalformedFrame) as caught:
            totals_of(version, body, sizes)
        assert caught.value.offset == len(HEADER) + offset
    assert version < 9 or head_of_one(version, body) is None


@pytest.mark.parametrize("version", [7, 12])
@pytest.mark.parametrize("before", [0, 1])
def test_records_that_the_frame_cannot_hold_are_not_reported(version: int, before: int) -> None:
    """Those before them are."""
    batch = record_batch(1, bytes(70))
    partitions = [[batch * 2]] * before + [[batch]]
    whole = produce_body(version, [(topic_of(version, index), each) for index, each in enumerate(partitions)])
    body = bytearray(whole[: whole.rindex(batch) + 100])
    walk = ProduceRequestWalk(version, len(body), 0)
    with pytest.raises(TruncatedFrame):
        walk.advance(body, 0, len(body))
    assert walk.take() == [TopicUsage(topic_of(version, 0), 2 * len(batch), 2, ())] * before


@given(st.integers(0, 2**31 - 2) | st.sampled_from([60, 61, 125, 126, 127, 16_382, 16_383, 2_097_150, 2_097_151]))
def test_the_length_of_records_as_a_number(size: int) -> None:
    """It is what `read_size` reads; the width follows from the bytes of length and records together."""
    written = encode_varint(size + 1)
    width = len(written)
    fits = size >= BATCH_HEADER
    for other in (1, 2, 3):
        assert length_field(size, other, size) == (int.from_bytes(written) if fits and other == width else -1)
    assert length_field(size, PLAIN_WIDTH, size) == (size if fits else -1)
    assert length_field(size, TOO_WIDE, size) == length_field(size, width, size - 1) == -1
    assert width_of(width + size) == (width if width <= 3 else TOO_WIDE)
    assert (read_size(bytearray(written + b"xxxx"), 0) == (size, width)) == (width <= 3)
