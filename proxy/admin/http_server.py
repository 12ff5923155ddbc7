"""A small HTTP/1.1 server in the event loop, for pages that are read with GET and HEAD: h11 on asyncio's streams.

Everything a client can hold is bounded: the number of connections, the length of a request head, the time for a head,
the time for a response, and the bytes of unread responses. A connection serves one request, whose body is not read. A
connection above the bound closes the oldest one that waits for no response, so that idle connections cannot keep probes
out.
"""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import h11

from proxy.background.host import listening_socket
from proxy.config.addresses import Address, ip_literal, is_wildcard
from proxy.observability.logs import EventLog

MAX_CONNECTIONS: Final = 64
MAX_HEAD_BYTES: Final = 8192
"""The longest unfinished request head, unless more arrives in a single read."""
HEAD_TIMEOUT_SECONDS: Final = 10.0
"""From the start of a connection to the end of the request head."""
RESPONSE_TIMEOUT_SECONDS: Final = 30.0
"""From the end of a request head until the client has taken the response."""
PIECE_BYTES: Final = 65_536
"""Bytes of a response to write at once: for each connection, asyncio copies what the kernel does not accept."""
MAX_UNREAD_BYTES: Final = 67_108_864
"""The bound on all responses under way, where equal bytes count once. Above it the oldest connections are closed;
the newest response may be larger.
"""
LINGER_SECONDS: Final = 1.0
"""How long input is discarded after the response: closing at once would reset the connection and lose the response."""
_ALLOW: Final = (("Allow", "GET, HEAD"),)
MEMBER_FIELD: Final = "Fleet-Member"
"""The header field with the name of this proxy in its fleet."""
VARY: Final = (("Vary", "Accept"),)
"""Header fields of pages whose format depends on Accept."""

_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class Response:
    """Status, body and content type; `fields` are further header fields."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200
    fields: tuple[tuple[str, str], ...] = ()


def text_response(text: str, status: int = 200, fields: tuple[tuple[str, str], ...] = ()) -> Response:
    return Response(text.encode("utf-8", "backslashreplace"), status=status, fields=fields)


def json_response(text: str) -> Response:
    """A page in JSON, if the request does not ask for text."""
    return Response(f"{text}\n".encode(), "application/json; charset=utf-8", fields=VARY)


class HttpServer:
    """Answers each GET and HEAD with `respond(path, accept)`: the path without the query, and all values of Accept.

    A request must name an IP address, `localhost` or one of `names` (lower case) as its host. A page in a browser can
    let its own name resolve to this address (DNS rebinding) and read the response; the browser then sends that name. A
    client that sends no Host (HTTP/1.0) is not a browser.
    """

    def __init__(self, respond: Callable[[str, str], Awaitable[Response]], names: Collection[str]) -> None:
        self._respond = respond
        self._names = frozenset(names) | {"localhost"}
        #: All connections, the oldest first; and those that wait for no response, because they have sent no request or
        #: were answered.
        self._connections: dict[StreamWriter, asyncio.Future[None]] = {}
        self._idle: dict[StreamWriter, None] = {}
        #: The responses under way, the oldest first.
        self._unread: dict[StreamWriter, bytes] = {}
        self.port = 0

    async def listen(self, address: Address) -> None:
        """Bind and serve; sets `port`, which the kernel chooses for port 0. Raises OSError."""
        if is_wildcard(address[0]):  # asyncio's own socket would have only one family
            sock = listening_socket(address)
            self._server = await asyncio.start_server(self._on_connection, sock=sock, limit=MAX_HEAD_BYTES)
        else:
            self._server = await asyncio.start_server(self._on_connection, *address, limit=MAX_HEAD_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and close every connection at once."""
        self._server.close()
        open_now = list(self._connections.values())
        for task in open_now:
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)

    def _on_connection(self, reader: StreamReader, writer: StreamWriter) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            self._cut(next(iter(self._idle or self._connections)))
        self._connections[writer] = task = asyncio.ensure_future(self._serve(reader, writer))
        self._idle[writer] = None
        task.add_done_callback(lambda _: self._forget(writer))

    def _cut(self, writer: StreamWriter) -> None:
        self._connections[writer].cancel()
        self._forget(writer)

    def _forget(self, writer: StreamWriter) -> None:
        self._connections.pop(writer, None)
        self._idle.pop(writer, None)
        self._unread.pop(writer, None)
        writer.transport.abort()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(TimeoutError, OSError, RuntimeError):  # uvloop raises RuntimeError for a closed transport
            writer.transport.set_write_buffer_limits(high=0)  # so that drain() waits until the kernel has everything
            await self._serve_request(reader, writer)
            self._idle[writer] = None
            async with asyncio.timeout(LINGER_SECONDS):
                writer.write_eof()
                while await reader.read(MAX_HEAD_BYTES):
                    pass

    async def _serve_request(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Raises TimeoutError and OSError."""
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        method = b""
        async with asyncio.timeout(HEAD_TIMEOUT_SECONDS) as timeout:
            try:
                while (request := http.next_event()) is h11.NEED_DATA:
                    http.receive_data(await reader.read(MAX_HEAD_BYTES))
                del self._idle[writer]
                timeout.reschedule(asyncio.get_running_loop().time() + RESPONSE_TIMEOUT_SECONDS)
                if not isinstance(request, h11.Request):  # the client has closed the connection
                    return
                method = request.method
                response = await self._answer(request)
            except h11.RemoteProtocolError as error:
                status, sentence = (
                    error.error_status_hint,
                    str(error).partition(": ")[0],
                )  # h11's bytes follow the colon
                response = text_response(f"{status}: {sentence}\n", status, _ALLOW)
            self._unread[writer] = response.body
            self._make_room()
            for piece in _encode(http, response, with_body=method != b"HEAD"):
                writer.write(piece)
                await writer.drain()
            del self._unread[writer]

    def _make_room(self) -> None:
        """Close the connections with the oldest responses until all fit in `MAX_UNREAD_BYTES`."""
        while len(sizes := {id(body): len(body) for body in self._unread.values()}) > 1:
            if sum(sizes.values()) <= MAX_UNREAD_BYTES:
                break
            self._cut(next(iter(self._unread)))

    async def _answer(self, request: h11.Request) -> Response:
        """Raises RemoteProtocolError for a host or a method that this port does not serve."""
        fields = dict(request.headers)
        host, path = _location(request.target.decode(), fields.get(b"host", b"localhost").decode("latin-1"))
        if host not in self._names and ip_literal(host) is None:
            wanted = "IP addresses, localhost and the names of --metrics-allowed-host"
            raise h11.RemoteProtocolError(f"this port answers to {wanted}, not to {host[:255]!a}", 421)
        if request.method not in {b"GET", b"HEAD"}:
            raise h11.RemoteProtocolError("this port serves GET and HEAD only", 405)
        accept = b",".join(value for name, value in request.headers if name == b"accept")
        try:
            return await self._respond(path, accept.decode("latin-1"))
        except Exception:  # noqa: BLE001 - a defect in one page must end neither the server nor the proxy
            _log.exception("page_failed", path=path)
            return text_response("this page failed; the log says why\n", 500)


def _location(target: str, host: str) -> tuple[str, str]:
    """Host (lower case, without port) and path; an absolute target takes precedence over the Host field."""
    try:
        url = urlsplit(f"//{host}{target}" if target.startswith("/") else target)
    except ValueError as error:
        raise h11.RemoteProtocolError("the request has no valid host") from error
    return (url.hostname or "").removesuffix("."), url.path or "/"


def _encode(http: h11.Connection, response: Response, *, with_body: bool) -> Iterator[bytes | memoryview]:
    fields = [
        ("Date", formatdate(usegmt=True)),
        ("Content-Type", response.content_type),
        ("Content-Length", str(len(response.body))),
        ("X-Content-Type-Options", "nosniff"),
        ("Connection", "close"),
        *response.fields,
    ]
    head = h11.Response(status_code=response.status, headers=fields, reason=HTTPStatus(response.status).phrase)
    body = response.body if with_body else b""  # it needs no encoding, because the head contains its length
    yield (http.send(head) or b"") + body[:PIECE_BYTES]
    rest = memoryview(body)
    yield from (rest[start : start + PIECE_BYTES] for start in range(PIECE_BYTES, len(rest), PIECE_BYTES))
