"""Varints, strings and tag buffers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial.readers import read_unsigned_varint

from protocol.errors import MalformedFrame, TruncatedFrame
from protocol.wire import (
    MAX_STRING,
    MAX_VARINT,
    NOT_AT_HAND,
    compact_string_end,
    encode_string,
    encode_varint,
    plain_string_end,
    skip_tags,
    unsigned_varint,
    varint_size,
)

AROUND_LENGTHS = [0, 1, 126, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455, 268_435_456, MAX_VARINT]


@given(value=st.integers(0, MAX_VARINT) | st.sampled_from(AROUND_LENGTHS))
def test_varints(value: int) -> None:
    encoded = encode_varint(value)
    assert len(encoded) == varint_size(value)
    assert read_unsigned_varint(encoded, 0) == (value, len(encoded))
    assert unsigned_varint(b"\xff" + encoded + b"\xff", 1, 1 + len(encoded), 0, "x") == (value, 1 + len(encoded))
    for end in range(1, 1 + len(encoded)):
        with pytest.raises(TruncatedFrame):
            unsigned_varint(b"\xff" + encoded, 1, end, 0, "x")


@pytest.mark.parametrize(
    "encoded",
    [
        pytest.param("80 00", id="longer than it need be"),
        pytest.param("ff 80 00", id="longer than it need be, by one"),
        pytest.param("ff ff ff ff 08", id="above int32"),
        pytest.param("ff ff ff ff 0f", id="-1 as Kafka would read it"),
        pytest.param("80 80 80 80 80 00", id="six bytes"),
        pytest.param("ff ff ff ff ff ff ff ff ff 01", id="a varlong"),
    ],
)
def test_varints_that_are_none(encoded: str) -> None:
    with pytest.raises(MalformedFrame) as caught:
        unsigned_varint(bytes(3) + bytes.fromhex(encoded), 3, 20, 1, "length")
    assert str(caught.value).startswith("cannot read length at byte 2")
    assert caught.value.offset == 2


@pytest.mark.parametrize("cut", range(1, 10))
def test_tag_buffers(cut: int) -> None:
    tags = b"\x02\x00\x03abc\x85\x01\x01z"
    assert skip_tags(tags, 0, len(tags), 0) == len(tags)
    with pytest.raises(TruncatedFrame):
        skip_tags(tags, 0, len(tags) - cut, 0)


@given(size=st.integers(-1, MAX_STRING) | st.sampled_from([0, 126, 127, 16_382, 16_383]), cut=st.integers(0, 6))
def test_ends_of_strings(size: int, cut: int) -> None:
    """The position after what has arrived whole; else one after the end, and so for all that would follow."""
    text = b"x" * max(0, size)
    for string_end, encoded in (
        (compact_string_end, encode_varint(size + 1) + text),
        (plain_string_end, size.to_bytes(2, "big", signed=True) + text),
    ):
        if size >= 0:
            assert encode_string(text, string_end is compact_string_end) == encoded
        buf = bytearray(b"\xff" + encoded + b"\xff")
        end = 1 + len(encoded)
        whole = string_end(buf, 1, end)
        too_long = string_end is compact_string_end and size > 16_382
        assert whole == NOT_AT_HAND if too_long else whole == end
        if 0 < cut < len(encoded):
            assert string_end(buf, 1, end - cut) > end - cut
        assert string_end(buf, whole, end) == NOT_AT_HAND
