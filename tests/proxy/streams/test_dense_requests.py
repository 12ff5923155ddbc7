"""Requests with more topics in one read than one step reads: all are charged and forwarded, in bounded steps."""

import random
from functools import cache

import pytest

from protocol.produce_walk import ProduceRequestWalk
from proxy.streams.memory import READ_SIZE
from proxy.streams.steps import PIECES_PER_STEP
from proxy.streams.topic_charges import PIECES
from quotas.limit_kinds import BYTES_THRESHOLD
from quotas.parsing.parse import parse_spec
from tests.proxy.frames import batch, frame, heartbeat, produce_records, produced
from tests.proxy.streams.pair import Pair, World

ANY_TOPIC = parse_spec("topic=<default>,bytes_in_rate=1GB")
TOTAL = parse_spec("total=true,total.bytes.in.per.sec.threshold=1GB")
TOPICS = 6_000
#: Pieces that one step reads: the last of them may be a topic and its partition.
MOST_PIECES = PIECES_PER_STEP + 2


@cache
def dense(number: int, topics: int = TOPICS, *, acks: int = 1, version: int = 9) -> bytes:
    """Topics with a partition of three bytes each, which are no batch: brokers say so, the proxy counts bytes."""
    return produce_records(number, {f"t{each:x}": [b"abc"] for each in range(topics)}, version, acks)


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What each step has read."""
    found: list[int] = []
    advance = ProduceRequestWalk.advance

    def advancing(walk: ProduceRequestWalk, buf: bytearray, pos: int, end: int) -> int:
        before = walk.work_left
        walked_to = advance(walk, buf, pos, end)
        found.append(before - walk.work_left)
        return walked_to

    monkeypatch.setattr(ProduceRequestWalk, "advance", advancing)
    return found


def accepted(world: World) -> int:
    return world.registry.topics.thresholds[BYTES_THRESHOLD].accepted.count


@pytest.mark.parametrize("version", [3, 9, 12])
@pytest.mark.parametrize("count", [1, 2, 40])
@pytest.mark.pure
def test_a_step_reads_a_bounded_number_of_topics(pieces: list[int], count: int, version: int) -> None:
    """Also where a turn ends after each step, and others use the buffer meanwhile."""
    pair = Pair(world := World([ANY_TOPIC, TOTAL]), breaks=True)
    data = dense(1, version=version) + heartbeat(2)
    cuts = sorted(random.Random(count).sample(range(1, len(data)), count - 1))
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        pair.client_sends(data[start:end])
    assert pair.to_broker == data
    pair.broker_sends(produced(1, version))
    assert accepted(world) == 3 * TOPICS
    assert PIECES <= max(pieces) <= PIECES + 2, "the last of them may be a topic and its partition"
    assert world.memory.buffered_bytes == 0


def many_tags(number: int, count: int) -> bytes:
    """A request that ends with so many tagged fields."""
    tags = b"".join(bytes([0x80 | tag & 0x7F, tag >> 7, 0]) for tag in range(128, 128 + count))
    body = produce_records(number, {"x": [batch(1, 70)]}, acks=0)[4:-1]
    return frame(body + bytes([0x80 | count & 0x7F, count >> 7]) + tags)


@pytest.mark.parametrize(
    ("data", "records", "least_steps"),
    [
        (b"".join(produce_records(number, {"x": [batch(1, 70)]}, acks=0) for number in range(4_000)), 4_000, 1),
        (produce_records(1, {"x": [None] * 6_000 + [batch(1, 70)]}, acks=0), 1, 6_000 // MOST_PIECES),
        (many_tags(1, 9_000), 1, 9_000 // MOST_PIECES),
    ],
    ids=["small requests", "partitions without records", "tagged fields"],
)
@pytest.mark.pure
def test_whatever_a_read_is_full_of(pieces: list[int], data: bytes, records: int, least_steps: int) -> None:
    pair = Pair(world := World([ANY_TOPIC, TOTAL]), breaks=True)
    assert len(data) < READ_SIZE
    pair.client_sends(data)
    assert pair.to_broker == data
    assert accepted(world) == 70 * records
    assert max(pieces) <= MOST_PIECES
    assert len(pieces) >= least_steps
