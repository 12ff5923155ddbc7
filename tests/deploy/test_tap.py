"""The tap forwards every byte, whatever the two sides do, and notes the data frames among them."""

import random
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from deploy.local.tap import Tap


@pytest.fixture
def tap() -> Iterator[Tap]:
    with Tap() as started:
        yield started


def read_all(connection: socket.socket) -> bytes:
    connection.settimeout(30)
    received = bytearray()
    while piece := connection.recv(65536):
        received += piece
    return bytes(received)


def frame(api_key: int, correlation_id: int, size: int) -> bytes:
    body = struct.pack(">hhih3s", api_key, 9, correlation_id, 3, b"etl").ljust(size, b"\1")
    return struct.pack(">i", size) + body


def test_forwards_megabytes_both_ways_to_a_slow_reader(tap: Tap) -> None:
    rng = random.Random(7)
    sent = b"".join(frame(0, number, rng.choice([13, 1000, 1_000_000])) for number in range(40))
    answer = b"".join(frame(0, number, 500_000) for number in range(10))
    with (
        socket.create_server(("127.0.0.1", 0)) as upstream,
        socket.create_connection(tap.relay(upstream.getsockname()), timeout=30) as client,
    ):
        broker, _ = upstream.accept()
        with broker:
            writers = [threading.Thread(target=write_and_end, args=each) for each in ((client, sent), (broker, answer))]
            for writer in writers:  # both directions are full before anybody reads
                writer.start()
            assert read_all(broker) == sent
            assert read_all(client) == answer
            for writer in writers:
                writer.join(30)
    frames = tap.frames("produce", "etl")
    assert sum(each.size + 4 for each in frames) == len(sent)
    assert [each.time_ns for each in frames] == sorted(each.time_ns for each in frames)


def write_and_end(connection: socket.socket, data: bytes) -> None:
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


def test_what_is_not_kafka_is_forwarded_and_counted(tap: Tap) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as upstream,
        socket.create_connection(tap.relay(upstream.getsockname()), timeout=30) as client,
    ):
        broker, _ = upstream.accept()
        with broker:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100_000)
            client.shutdown(socket.SHUT_WR)
            assert read_all(broker) == b"GET / HTTP/1.1\r\n\r\n" * 100_000
    assert tap.frames() == []
    assert tap.unreadable == 1
