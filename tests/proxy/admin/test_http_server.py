"""The bounds of the HTTP server, over raw sockets. h11 has tests of its own for what it parses."""

import asyncio
import gc
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from proxy.admin import http_server
from proxy.admin.http_server import MAX_CONNECTIONS, MAX_HEAD_BYTES, HttpServer, Response, text_response
from tests.proxy.conversation import until

REQUEST = b"GET /a?b=/c HTTP/1.1\r\nHost: localhost\r\nAccept: x\r\nAccept: y\r\n\r\n"
ANSWER = (200, b"/a x,y")
HALF = REQUEST[:20]
AT_A = "GET / HTTP/1.1\r\nHost: "


async def _echo(path: str, accept: str) -> Response:
    return text_response(f"{path} {accept}".strip())


@asynccontextmanager
async def serving(respond: Callable[[str, str], Awaitable[Response]] = _echo) -> AsyncIterator[HttpServer]:
    server = HttpServer(respond, ("known",))
    try:
        await server.listen(("127.0.0.1", 0))
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def connection(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def response_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of the next response."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(line for line in head.split("\r\n") if line.startswith("Content-Length: "))
    return int(head.split()[1]), await reader.readexactly(int(length.split()[1]))


@pytest.mark.parametrize("sent", [b"", HALF], ids=["nothing", "half"])
async def test_a_connection_without_a_head_in_time_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert http_server.HEAD_TIMEOUT_SECONDS == 10
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT_SECONDS", 0.05)
    async with serving() as server, connection(server.port) as (reader, writer):
        writer.write(sent)
        assert await reader.read() == b""


async def test_a_response_that_is_not_taken_in_time_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT_SECONDS", 1000)
    monkeypatch.setattr(http_server, "RESPONSE_TIMEOUT_SECONDS", 0.1)
    begun = asyncio.Event()

    async def respond(_path: str, _accept: str) -> Response:
        begun.set()
        return Response(bytes(50_000_000))

    async with serving(respond) as server, connection(server.port) as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(REQUEST)
        await begun.wait()
        await until(lambda: not server._connections)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(50_000_000)


async def test_responses_that_nobody_reads_are_kept_once_and_in_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three different ones, each for several clients, and room for two: the oldest clients are closed."""
    size = 20_000_000
    assert size > http_server.PIECE_BYTES
    monkeypatch.setattr(http_server, "MAX_UNREAD_BYTES", 2 * size)
    bodies = {f"/{letter}": Response(letter.encode() * size) for letter in "abc"}

    async def respond(path: str, _accept: str) -> Response:
        return bodies[path]

    server = HttpServer(respond, ())
    await server.listen(("127.0.0.1", 0))
    peers = []
    for number, path in enumerate(path for path in bodies for _ in range(4)):
        peer = socket.socket()
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", server.port))
        await asyncio.get_running_loop().sock_sendall(peer, REQUEST.replace(b"/a", path.encode()))
        peers.append(peer)
        kept = number + 1 if number < 8 else number - 3
        await until(lambda kept=kept: len(server._unread) == len(server._connections) == kept)  # type: ignore[misc]
    assert [body[:1] for body in server._unread.values()] == [b"b"] * 4 + [b"c"] * 4
    for writer in server._connections:
        assert writer.transport.get_write_buffer_size() <= http_server.PIECE_BYTES
    assert {id(body) for body in server._unread.values()} == {id(bodies[path].body) for path in ("/b", "/c")}
    reader, writer = await asyncio.open_connection(sock=peers[-1])
    assert (await response_of(reader))[1] == bodies["/c"].body
    writer.close()
    for peer in peers[:-1]:
        peer.close()
    await until(lambda: not server._unread)
    await server.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ("GET http://LOCALHOST.:19404/a HTTP/1.1\r\nHost: evil.example", 200),
        (AT_A + "[::1]:80", 200),
        (AT_A + "10.0.0.7:19404", 200),
        (AT_A + "known", 200),
        ("GET / HTTP/1.0", 200),
        ("GET http://evil.example/a HTTP/1.1\r\nHost: localhost", 421),
        ("GET //localhost/a HTTP/1.1\r\nHost: evil.example", 421),
        (AT_A, 421),
        (AT_A + "127.0.0.1.nip.io", 421),
        (AT_A + "127.1", 421),
        (AT_A + "localhost\0", 400),
        (AT_A + "[::1", 400),
        ("GET http://[ HTTP/1.1\r\nHost: localhost", 400),
        ("GET / HTTP/1.1", 400),
        (AT_A + "a\r\nHost: b", 400),
        ("\x16\x03\x01\x02", 400),
        (AT_A + "localhost\r\nX: " + "x" * 3 * MAX_HEAD_BYTES, 431),
        (AT_A.replace("GET", "POST") + "localhost\r\nContent-Length: 1000000", 405),
        (AT_A + "localhost\r\nContent-Length: 5", 200),
    ],
)
async def test_what_each_head_is_answered_with(sent: str, status: int) -> None:
    async with serving() as server, connection(server.port) as (reader, writer):
        writer.write(sent.encode("latin-1") + b"\r\n\r\n")
        got, body = await response_of(reader)
        assert got == status
        if status != 200:
            assert body.startswith(b"%d: " % status)
            assert body.endswith(b"\n")
            assert body[:-1].decode().isprintable()
            assert b"bytearray" not in body


async def test_the_number_of_connections_is_bounded_and_idle_ones_keep_no_request_out() -> None:
    """A new one closes the oldest that has sent no request, and none that waits for its response."""
    may_answer = asyncio.Event()

    async def respond(path: str, accept: str) -> Response:
        if path == "/slow":
            await may_answer.wait()
        return await _echo(path, accept)

    async with serving(respond) as server:
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(MAX_CONNECTIONS)]
        idle[-1][1].write(HALF)
        slow = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(MAX_CONNECTIONS - 1)]
        for _, writer in slow:
            writer.write(REQUEST.replace(b"/a", b"/slow"))
        for reader, _ in idle[:-1]:
            assert await reader.read() == b""
        async with connection(server.port) as (reader, writer):
            writer.write(REQUEST)
            assert await response_of(reader) == ANSWER
        assert await idle[-1][0].read() == b"", "half a head is no request"
        may_answer.set()
        for reader, _ in slow:
            assert await response_of(reader) == (200, b"/slow x,y")
        for _, writer in [*idle, *slow]:
            writer.transport.abort()


async def test_a_client_that_resets_its_connection_before_the_response_is_no_defect() -> None:
    begun, may_answer, defects = asyncio.Event(), asyncio.Event(), list[object]()

    async def respond(path: str, accept: str) -> Response:
        begun.set()
        await may_answer.wait()
        return await _echo(path, accept)

    asyncio.get_running_loop().set_exception_handler(lambda _, context: defects.append(context))
    server = HttpServer(respond, ())
    await server.listen(("127.0.0.1", 0))
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.write(REQUEST)
    await begun.wait()
    writer.transport.abort()
    await until(lambda: next(iter(server._connections)).is_closing())
    may_answer.set()
    await until(lambda: not server._connections)
    await server.close()
    gc.collect()
    assert defects == []


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.0", b"GET / HTTP/1.1\r\nHost: a", b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000"]
)
async def test_the_output_ends_after_one_response_and_input_is_still_taken(sent: bytes) -> None:
    """A reset could overtake the response."""
    async with serving() as server, connection(server.port) as (reader, writer):
        writer.write((sent + b"\r\n\r\n") * 2)
        response = await reader.read()
        assert b"\r\nConnection: close\r\n" in response
        assert response.count(b"HTTP/1.1 ") == 1
        for _ in range(10):
            writer.write(bytes(10_000))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write_eof()


async def test_closing_ends_every_connection() -> None:
    server = HttpServer(_echo, ())
    await server.listen(("127.0.0.1", 0))
    async with connection(server.port) as (reader, writer), connection(server.port) as (other, _):
        writer.write(HALF)
        await until(lambda: len(server._connections) == 2)
        await server.close()
        for one in (reader, other):
            assert await one.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)
