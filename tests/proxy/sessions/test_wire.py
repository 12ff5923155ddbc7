"""A wire is all that a pump knows of a socket: the plain one, which is the socket itself."""

import asyncio
import socket

import pytest

from proxy.sessions.wire import Wire, tcp_info
from tests.proxy.conversation import LOOPBACK, until


async def test_a_wire_detects_that_its_peer_has_gone() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        far = socket.create_connection(server.getsockname())
        near, _ = server.accept()
        wire = Wire(asyncio.get_running_loop(), near)
        assert (wire.peer_has_gone, wire.is_broken) == (False, False)
        far.send(b"unread")
        far.close()
        await until(lambda: wire.peer_has_gone)
        near.send(b"x")
        await until(lambda: wire.is_broken)
        wire.close()


async def test_a_peer_that_is_sent_no_more_has_not_gone() -> None:
    """It may read what was sent before, such as TLS's alert."""
    with socket.create_server((LOOPBACK, 0)) as server, socket.create_connection(server.getsockname()) as far:
        wire = Wire(asyncio.get_running_loop(), server.accept()[0])
        wire.shutdown()
        assert far.recv(1) == b""
        assert not wire.peer_has_gone
        wire.close()


def test_a_state_that_the_system_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as sock:
        assert len(tcp_info(sock, 1)) == 1
        monkeypatch.delattr(socket, "TCP_INFO")
        assert tcp_info(sock, 1) == b""
