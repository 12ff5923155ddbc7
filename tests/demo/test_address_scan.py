"""A scan that misses a leaked address would make the demo's third verdict worthless."""

import socket
import threading

from hypothesis import given
from hypothesis import strategies as st

from demo.address_scan import AddressScan, ScanningRelay

HOST = "127.0.0.2"
METADATA = b"\x00\x00\x00\x01\x00\x00\x00\x01\x00\x091" + b"27.0.0.2\x00\x00\x23\x84" + b"rest"


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


def test_the_relay_passes_both_directions_on_and_scans_only_what_the_client_receives() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ScanningRelay([HOST]) as relay:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                assert connection.recv(100) == b"who? 127.0.0.2?"
                connection.sendall(METADATA)

        thread = threading.Thread(target=serve)
        thread.start()
        address = relay.listen(("127.0.0.1", 0), server.getsockname())
        with socket.create_connection(address, timeout=10) as client:
            client.sendall(b"who? 127.0.0.2?")
            with client.makefile("rb") as answers:
                assert answers.read() == METADATA
        thread.join()
    assert (relay.connections, relay.bytes_scanned, relay.sightings) == (1, len(METADATA), 1)
