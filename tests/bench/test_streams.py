"""A cyclic stream counts whole frames however they arrive, and sends its cycle round and round, in order."""

import select
import socket
from collections.abc import Iterator

import pytest

from bench.shapes import Cycle
from bench.streams import CyclicStream, PeerClosedError

INCOMING = Cycle([b"x" * 10])
OUTGOING = Cycle([b"aaa", b"bbb", b"ccc"])


@pytest.fixture
def epoll() -> Iterator[select.epoll]:
    with select.epoll() as made:
        yield made


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection: bytes are only thrown away in the kernel on TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as far:
        near, _ = listener.accept()
        with near:
            yield near, far


def stream_on(near: socket.socket, epoll: select.epoll, *, one_by_one: bool = False) -> CyclicStream:
    near.setblocking(False)
    epoll.register(near, select.EPOLLIN)
    return CyclicStream(near, epoll, INCOMING, OUTGOING, one_by_one=one_by_one)


def wait_for(epoll: select.epoll, event: int) -> None:
    assert [each for _, each in epoll.poll(10)] == [event]


def read(far: socket.socket, size: int) -> bytes:
    return far.recv(size, socket.MSG_WAITALL)


def test_frames_are_whole_however_they_arrive(epoll: select.epoll, pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    stream = stream_on(near, epoll)

    counts = []
    for piece in (b"x" * 9, b"x", b"x" * 25, b"x" * 5):
        far.sendall(piece)
        wait_for(epoll, select.EPOLLIN)
        counts.append(stream.receive())

    assert counts == [0, 1, 2, 1]
    assert stream.frames == 4
    assert stream.receive() == 0


@pytest.mark.parametrize("one_by_one", [False, True])
def test_the_cycle_goes_round(epoll: select.epoll, pair: tuple[socket.socket, socket.socket], one_by_one: bool) -> None:
    near, far = pair
    stream = stream_on(near, epoll, one_by_one=one_by_one)

    stream.send_frames(2)
    stream.send_frames(3)

    assert read(far, 15) == b"aaabbbcccaaabbb"
    assert stream.owed == 0


def test_what_the_socket_does_not_take_is_sent_when_there_is_room(
    epoll: select.epoll, pair: tuple[socket.socket, socket.socket]
) -> None:
    near, far = pair
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    stream = stream_on(near, epoll)
    frames = 1_000_000

    stream.send_frames(frames)
    assert stream.owed > 0
    received = b""
    while stream.owed:
        received += far.recv(1 << 20)
        if epoll.poll(10) == [(near.fileno(), select.EPOLLOUT)]:
            stream.flush()
    received += read(far, 3 * frames - len(received))

    assert received == (OUTGOING.data * frames)[: 3 * frames]
    far.sendall(b"x")
    wait_for(epoll, select.EPOLLIN)


def test_a_closed_peer_is_an_error(epoll: select.epoll, pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    stream = stream_on(near, epoll)
    far.close()
    wait_for(epoll, select.EPOLLIN)

    with pytest.raises(PeerClosedError, match="end of stream"):
        stream.receive()
