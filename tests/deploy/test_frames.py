"""The tap's framing: complete data frames and nothing else, however the bytes are cut."""

import itertools
import struct
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from deploy.local.frames import ConnectionMeter, FrameSplitter, NotKafka


def request(api_key: int, correlation_id: int, client_id: str | None, body: bytes = b"") -> bytes:
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    frame = struct.pack(">hhih", api_key, 7, correlation_id, length) + name + body
    return struct.pack(">i", len(frame)) + frame


def response(correlation_id: int, body: bytes = b"") -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


def cut(data: bytes, places: Iterable[int]) -> list[memoryview]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [memoryview(data)[start:end] for start, end in itertools.pairwise(edges)]


def test_a_frame_counts_when_its_last_byte_has_come() -> None:
    meter = ConnectionMeter(0)
    data = request(0, 1, "etl", bytes(100))
    assert list(meter.to_broker(memoryview(data[:-1]), 1)) == []
    assert [frame.time_ns for frame in meter.to_broker(memoryview(data[-1:]), 2)] == [2]


requests = st.lists(
    st.tuples(st.sampled_from([0, 0, 1, 3, 18]), st.sampled_from(["", "a", "é" * 40, None]), st.binary(max_size=600)),
    max_size=12,
)


@given(requests, st.lists(st.integers(0, 10_000), max_size=20))
def test_cuts_do_not_matter(asked: list[tuple[int, str | None, bytes]], places: list[int]) -> None:
    sent = b"".join(request(key, number, name, body) for number, (key, name, body) in enumerate(asked))
    answered = b"".join(response(number, body) for number, (_, _, body) in enumerate(asked))
    meter = ConnectionMeter(0)
    produced = [frame for piece in cut(sent, places) for frame in meter.to_broker(piece, 5)]
    fetched = [frame for piece in cut(answered, places) for frame in meter.to_client(piece, 6)]
    assert [(frame.size, frame.client_id) for frame in produced] == [
        (10 + len((name or "").encode()) + len(body), name or "") for key, name, body in asked if key == 0
    ]
    assert [(frame.size, frame.client_id) for frame in fetched] == [
        (4 + len(body), name or "") for key, name, body in asked if key == 1
    ]


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=10))
def test_arbitrary_bytes_are_frames_or_not_kafka(data: bytes, places: list[int]) -> None:
    meter = ConnectionMeter(0)
    try:
        for piece in cut(data, places):
            assert all(frame.api == "produce" for frame in meter.to_broker(piece, 0))
    except NotKafka:
        pass


def test_only_the_first_bytes_of_a_frame_are_kept() -> None:
    ((head, length),) = FrameSplitter().feed(memoryview(struct.pack(">i", 1 << 20) + bytes(1 << 20)))
    assert length == 1 << 20
    assert len(head) < 300
