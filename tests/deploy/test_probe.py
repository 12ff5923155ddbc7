"""The probe never waits longer than it was told, whatever is on the other side."""

import socket
import struct
import threading

import pytest

from deploy.local import probe


def answering(answer: bytes) -> tuple[socket.socket, threading.Thread]:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return listener, thread


def at(listener: socket.socket) -> tuple[str, int]:
    host, port = listener.getsockname()
    return host, port


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = at(listener)
    assert not probe.answers_api_versions(*address, 5)


def test_one_who_accepts_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert not probe.answers_api_versions(*at(listener), 0.05)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0\0",
        struct.pack(">i", 100) + b"\0\0\0\1",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">iihi", 10, 1, 35, 0),  # UNSUPPORTED_VERSION, in the form of version 0
        struct.pack(">iihbib", 12, 1, 41, 1, 0, 0),
    ],
)
def test_answers_that_are_none(answer: bytes) -> None:
    listener, thread = answering(answer)
    with listener:
        assert not probe.answers_api_versions(*at(listener), 5)
    thread.join(5)


def test_an_answer_without_error() -> None:
    listener, thread = answering(struct.pack(">iihbib", 12, 1, 0, 1, 0, 0))
    with listener:
        assert probe.answers_api_versions(*at(listener), 5)
    thread.join(5)
