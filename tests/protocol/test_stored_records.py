"""Records of a partition that anyone may write to: what is read, what is skipped, and that nothing is decompressed."""

import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import MalformedFrame
from protocol.stored_records import VOID, Found, stored_records

pytestmark = pytest.mark.claim(
    "fleet", "what is in the topic is never decompressed, and a few records at a time are read"
)

GZIP, CONTROL = 1, 0x20
LONGEST = 1_000


def batch(
    values: Sequence[bytes | None], base: int = 0, codec: int = 0, headers: int = 0, key: bytes | None = None
) -> bytes:
    """As another client writes it."""
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 24)
    for offset, value in enumerate(values):
        builder.append(offset, 5, key, value, [("h", b"x")] * headers)
    data = bytearray(builder.build())
    data[:8] = base.to_bytes(8, "big")
    return bytes(data)


def changed(data: bytes, place: int, code: str, value: int) -> bytes:
    """With another value there, and the checksum of that."""
    found = bytearray(data)
    struct.pack_into(code, found, place, value)
    struct.pack_into(">I", found, 17, calc_crc32c(bytes(found[21:])))
    return bytes(found)


def found_in(data: bytes) -> list[Found]:
    return [each._replace(time_ms=0) for each in stored_records(data, LONGEST, calc_crc32c)]


@pytest.mark.claim("kafka-quotas", "what compaction leaves of a batch is read, and no reader stops at it")
def test_the_last_records_of_a_batch_may_be_gone() -> None:
    """Brokers keep the last offset of a batch, and the whole header of one that has become empty."""
    shorter = changed(batch([b"a"], 7), 23, ">i", 4)
    empty = changed(batch([b"a"], 12)[:61], 57, ">i", 0)
    empty = changed(empty[:8] + (49).to_bytes(4, "big") + empty[12:], 23, ">i", 1)
    assert found_in(shorter + empty) == [Found(7, 8, b"a"), Found(8, 12, None), Found(12, 14, None)]


@given(st.lists(st.lists(st.binary(max_size=300) | st.none(), min_size=1, max_size=9), max_size=4), st.integers(0, 40))
def test_what_is_written_is_read_and_a_batch_that_is_cut_off_is_not(
    batches: list[list[bytes | None]], cut: int
) -> None:
    base, data = 0, b""
    for values in batches:
        data += batch(values, base)
        base += len(values)
    assert [each.value for each in found_in(data)] == [value or VOID for values in batches for value in values]
    assert [each.offset for each in found_in(data)] == list(range(base))
    last = batch([b"x"], base)
    assert len(found_in(data + last[: min(cut, len(last) - 1)])) == base


def test_a_compressed_batch_is_skipped_whatever_it_contains() -> None:
    bomb = changed(batch([b"x"] * 3, 5), 21, ">h", GZIP)[:61] + zlib.compress(b" " * 100_000)
    bomb = changed(bomb, 8, ">i", len(bomb) - 12)
    assert found_in(bomb + batch([b"y"], 8)) == [Found(5, 8, None), Found(8, 9, b"y")]
    for codec in range(1, 8):
        assert found_in(changed(batch([b"x"]), 21, ">h", codec)) == [Found(0, 1, None)]


def test_a_transactions_marker_is_skipped_with_its_offset() -> None:
    marker = changed(batch([b"\0\0\0\0\0\0"], 3), 21, ">h", CONTROL)
    assert found_in(marker + batch([b"y"], 4)) == [Found(3, 4, None), Found(4, 5, b"y")]


def test_a_value_that_is_too_long_is_void() -> None:
    assert found_in(batch([b"x" * LONGEST, b"x" * (LONGEST + 1), b"y"])) == [
        Found(0, 1, b"x" * LONGEST), Found(1, 2, VOID), Found(2, 3, b"y"),
    ]  # fmt: skip


def test_headers_are_not_read() -> None:
    assert found_in(batch([b"a", b"b"], headers=5_000)) == [Found(0, 1, b"a"), Found(1, 2, b"b")]


@pytest.mark.parametrize(
    "data",
    [
        batch([b"a"])[:-1] + b"z",
        changed(batch([b"a"]), 8, ">i", 3) + bytes(60),
        changed(batch([b"a"]), 23, ">i", -2),
    ],
    ids=["checksum", "size", "offsets"],
)
def test_what_no_broker_stores_is_an_error(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        found_in(data)


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    with suppress(MalformedFrame):
        found_in(data)


def test_no_more_is_read_than_is_asked_for() -> None:
    assert next(stored_records(batch([b"x"] * 100_000), LONGEST, calc_crc32c)) == Found(0, 1, b"x", time_ms=5)
