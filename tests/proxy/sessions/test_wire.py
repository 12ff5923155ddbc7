"""A wire is all that a pump knows of a socket: with TLS in its place a conversation passes, and nothing above changes.

`TlsWire` is the test's own, about 40 lines; the proxy's comes with TLS itself.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from proxy.sessions.wire import Wire, tcp_state
from tests.proxy.conversation import LOOPBACK, Stage, until
from tests.proxy.frames import (
    api_versions,
    coordinator_answer,
    find_coordinator,
    heartbeat,
    heartbeat_answer,
    metadata,
    metadata_answer,
    produce,
    produced,
)

OpenStage = Callable[..., Stage]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server with a certificate of its own, and of clients that trust it."""
    folder: Path = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    subprocess.run(
        [*made.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return server, ssl.create_default_context(cafile=str(certificate))


class TlsWire(Wire):
    """TLS over a non-blocking socket. The handshake happens in the first reads and writes."""

    __slots__ = ("_reader", "_writer")
    buffers = True

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, context: ssl.SSLContext) -> None:
        is_server = context.protocol is ssl.PROTOCOL_TLS_SERVER
        name = None if is_server else LOOPBACK
        wrapped = context.wrap_socket(
            sock, server_side=is_server, server_hostname=name, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )
        super().__init__(loop, wrapped)
        self.recv_into = self._recv_into  # type: ignore[assignment]
        self.send = self._send  # type: ignore[assignment]

    @property
    def _tls(self) -> ssl.SSLSocket:
        assert isinstance(self._sock, ssl.SSLSocket)
        return self._sock

    def _recv_into(self, buffer: Any, size: int) -> int:
        try:
            return self._tls.recv_into(buffer, size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def _send(self, data: Any) -> int:
        try:
            return self._tls.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def pending(self) -> int:
        return self._tls.pending()

    def shutdown(self) -> None:
        socket.socket.shutdown(self._tls, socket.SHUT_WR)  # that of SSLSocket would read plain bytes from then on


class TlsPeer:
    """A client or broker of the test that speaks TLS, by asyncio's own implementation."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def frame(self) -> bytes:
        async with asyncio.timeout(20):
            head = await self.reader.readexactly(4)
            return head + await self.reader.readexactly(int.from_bytes(head, "big"))


@pytest.mark.parametrize("sides", ["client", "broker", "both"])
async def test_a_conversation_over_tls(
    open_stage: OpenStage,
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
    sides: str,
) -> None:
    """To clients, to brokers, and on both sides; with frames of more than one TLS record and more than one read."""
    server_context, client_context = contexts
    accepted: asyncio.Queue[TlsPeer] = asyncio.Queue()
    brokers = await asyncio.start_server(
        lambda reader, writer: accepted.put_nowait(TlsPeer(reader, writer)),
        LOOPBACK,
        0,
        ssl=server_context if sides != "client" else None,
    )
    stage = open_stage(bootstrap_servers=(brokers.sockets[0].getsockname()[:2],))
    if sides != "broker":
        stage.shared.wire_to_client = partial(TlsWire, context=server_context)
    if sides != "client":
        stage.shared.wire_to_broker = partial(TlsWire, context=client_context)
    context = client_context if sides != "broker" else None
    client = TlsPeer(*await asyncio.open_connection(LOOPBACK, stage.port, ssl=context))
    await client.send(heartbeat(1))
    broker = await asyncio.wait_for(accepted.get(), 20)
    try:
        assert await broker.frame() == heartbeat(1)
        await broker.send(heartbeat_answer(1))
        assert await client.frame() == heartbeat_answer(1)
        for number, size in enumerate((100, 40_000, 3_000_000), start=10):
            sending = asyncio.ensure_future(client.send(produce(number, size) + api_versions(100 + number, 99)))
            assert await broker.frame() == produce(number, size)
            await sending
            await broker.send(produced(number))
            assert await client.frame() == produced(number)
            assert (await client.frame())[4:8] == (100 + number).to_bytes(4, "big")
        await client.send(find_coordinator(20) + metadata(21))
        assert [await broker.frame() for _ in range(2)] == [find_coordinator(20), metadata(21)]
        named = {7: ("127.0.0.9", 9_092)}
        await broker.send(coordinator_answer(20, 7, *named[7]) + metadata_answer(21, named, 5_000))
        shown = {7: (LOOPBACK, stage.context.nodes.port_of(7))}
        assert await client.frame() == coordinator_answer(20, 7, *shown[7])
        assert await client.frame() == metadata_answer(21, shown, 5_000)
        client.writer.close()
        await stage.no_sessions()
        assert stage.paused() == {}
    finally:
        for each in (client, broker):
            each.writer.transport.abort()
        brokers.close()
        stage.close()
        for _ in range(5):  # rounds in which transports close
            await asyncio.sleep(0)


# ---- the plain wire


async def test_a_plain_wire_is_the_socket_itself() -> None:
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        wire = Wire(asyncio.get_running_loop(), near)
        buffer = bytearray(10)
        with pytest.raises(BlockingIOError):
            wire.recv_into(buffer, 10)
        assert wire.peek(10) == b""
        far.send(b"abcdef")
        assert (wire.peek(10), wire.peek(2), wire.pending(), wire.buffers) == (b"abcdef", b"ab", 0, False)
        assert wire.recv_into(buffer, 4) == 4
        assert wire.send(b"xyz") == 3
        assert far.recv(10) == b"xyz"
        wire.shutdown()
        assert far.recv(10) == b""
        wire.shutdown()  # a second time changes nothing
        wire.close()


async def test_readers_and_writers_are_added_and_removed() -> None:
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        wire = Wire(asyncio.get_running_loop(), near)
        calls: list[str] = []
        wire.when_writable(lambda: calls.append("write"))
        await until(lambda: calls)
        wire.stop_writing()
        wire.when_readable(lambda: calls.append("read"))
        far.send(b"x")
        await until(lambda: "read" in calls)
        wire.stop_reading()
        calls.clear()
        for _ in range(5):
            await asyncio.sleep(0)
        assert calls == []
        for _ in range(2):
            wire.stop_reading()
            wire.stop_writing()
        wire.close()


async def test_a_wire_detects_that_its_peer_has_gone() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        far = socket.create_connection(server.getsockname())
        near, _ = server.accept()
        wire = Wire(asyncio.get_running_loop(), near)
        assert (wire.peer_has_gone, wire.is_broken) == (False, False)
        far.send(b"unread")
        far.close()
        await until(lambda: wire.peer_has_gone)
        assert wire.peek(10) == b"unread"
        near.send(b"x")
        await until(lambda: wire.is_broken)
        wire.close()


def test_a_state_that_the_system_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as sock:
        assert tcp_state(sock) is not None
        monkeypatch.delattr(socket, "TCP_INFO")
        assert tcp_state(sock) is None
