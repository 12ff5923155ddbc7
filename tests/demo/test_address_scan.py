"""A scan that misses a leaked address would make the demo's third verdict worthless."""

from hypothesis import given
from hypothesis import strategies as st

from demo.address_scan import AddressScan

HOST = "127.0.0.2"


@given(
    parts=st.lists(st.sampled_from([b"127.0.0.2", b"10.0.0.77", b"127.0.0.8", b"127.0", b".0.2", b"x"]), max_size=30),
    data=st.data(),
)
def test_any_split_finds_what_the_whole_stream_holds(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    scan = AddressScan([HOST, "10.0.0.77"])
    position = 0
    while position < len(stream):
        size = data.draw(st.integers(1, 12))
        scan.feed(stream[position : position + size])
        position += size
    assert scan.sightings == stream.count(b"127.0.0.2") + stream.count(b"10.0.0.77")
