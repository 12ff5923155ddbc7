"""What all walks share: work is counted and bounded, whatever the bytes are."""

import pytest

from protocol.share import ShareFetchResponseWalk
from protocol.wire import encode_varint

ITEMS = 1_000
PLAIN = bytes(18) + b"\x00"
TAGGED = bytes(18) + b"\x01\x05\x00"


def share_fetch(acquired: bytes, tags: bytes) -> bytes:
    """A ShareFetch response of one partition. `acquired`: an array of structs. `tags`: the last tag buffer."""
    partition = bytes(6) + b"\x00" + bytes(2) + b"\x00" + bytes(8) + b"\x00" + b"\x00" + acquired + b"\x00"
    topic = bytes(16) + b"\x02" + partition + b"\x00"
    return bytes(4) + b"\x00" + bytes(6) + b"\x00" + bytes(4) + b"\x02" + topic + b"\x01" + tags


@pytest.mark.parametrize(
    ("frame", "work", "most"),
    [
        pytest.param(share_fetch(encode_varint(ITEMS + 1) + TAGGED * ITEMS, b"\x00"), 20, 700, id="structs with tags"),
        pytest.param(
            share_fetch(encode_varint(ITEMS + 1) + (TAGGED + PLAIN) * (ITEMS // 2), b"\x00"),
            20,
            700,
            id="some with tags",
        ),
        pytest.param(
            share_fetch(encode_varint(ITEMS + 1) + PLAIN * ITEMS, b"\x00"), 1, 512 * len(PLAIN) + 100, id="without tags"
        ),
        pytest.param(share_fetch(b"\x01", encode_varint(ITEMS) + b"\x05\x00" * ITEMS), 20, 150, id="tags"),
    ],
)
def test_a_step_reads_little(frame: bytes, work: int, most: int) -> None:
    walk = ShareFetchResponseWalk(1, len(frame))
    pos, longest = 0, 0
    while pos < len(frame):
        assert walk.frame_left == len(frame) - pos
        walk.work_left = work
        final = walk.advance(bytearray(frame), pos, len(frame))
        longest, pos = max(longest, final - pos), final
    assert longest <= most
    assert walk.is_over

    whole = ShareFetchResponseWalk(1, len(frame))
    assert whole.advance(bytearray(frame), 0, len(frame)) == len(frame)
    assert whole.is_over
