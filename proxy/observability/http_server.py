"""A small HTTP/1.1 server in the event loop, for pages that are read by GET and HEAD.

Everything a client can hold is bounded: the number of connections, the length of a request head, the time for a head
and the time for a response. Its import and its memory are a fraction of a web framework's, and the proxy starts with
it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from proxy.config.config import Address
from proxy.observability.http_request import METHODS, Request, RequestError, check_host, check_method, parse_request
from proxy.observability.logs import event

MAX_CONNECTIONS: Final = 64
MAX_HEAD_BYTES: Final = 8192
HEAD_TIMEOUT_SECONDS: Final = 10.0
"""From the start of a connection, or the end of its last response, to the end of the next request head."""
RESPONSE_TIMEOUT_SECONDS: Final = 30.0
"""From the end of a request head until the client has taken the response."""
LINGER_SECONDS: Final = 1.0
"""After an error, input is discarded for so long: closing at once would reset the connection, error included."""

PLAIN: Final = "text/plain; charset=utf-8"

_log = logging.getLogger("proxy.observability.http_server")


@dataclass(frozen=True, slots=True)
class Response:
    """Status, body and content type; `fields` are further header fields."""

    body: bytes
    content_type: str = PLAIN
    status: int = 200
    fields: tuple[tuple[str, str], ...] = ()


def text_response(text: str, status: int = 200, fields: tuple[tuple[str, str], ...] = ()) -> Response:
    """A page of plain text."""
    return Response(text.encode("utf-8", "backslashreplace"), PLAIN, status, fields)


Respond = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """Answers each GET and HEAD by `respond`, for the hosts of `check_host` and `names` (lower case)."""

    def __init__(self, respond: Respond, names: Collection[str]) -> None:
        self._respond = respond
        self._names = frozenset(names)
        self._connections: set[asyncio.Future[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def listen(self, address: Address) -> None:
        """Bind and serve; sets `port`, which the kernel chooses for port 0. Raises OSError."""
        host, port = address
        self._server = await asyncio.start_server(self._on_connection, host, port, limit=MAX_HEAD_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and close every connection at once."""
        if self._server is not None:
            self._server.close()
        open_now = list(self._connections)
        for task in open_now:
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            refusal = text_response(f"{MAX_CONNECTIONS} connections are open, which is the limit of this port\n", 503)
            writer.write(_encode(refusal, keep_alive=False, with_body=True))
            writer.close()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.transport.set_write_buffer_limits(high=0)  # so that drain() waits until all is with the kernel
            while await self._serve_request(reader, writer):
                pass
        except (TimeoutError, OSError, EOFError):
            pass
        finally:
            writer.transport.abort()

    async def _serve_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; True when a further one may follow. Raises TimeoutError, OSError and EOFError."""
        method = ""
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            request = parse_request(head[:-4])
            method = request.method
            check_host(request.host, self._names)
            check_method(method)
        except asyncio.LimitOverrunError:
            await self._refuse(reader, writer, RequestError(431, f"a request head has at most {MAX_HEAD_BYTES} bytes"))
            return False
        except RequestError as error:
            await self._refuse(reader, writer, error, with_body=method != "HEAD")
            return False
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
            response = await self._answer(request)
            writer.write(_encode(response, keep_alive=request.keep_alive, with_body=method != "HEAD"))
            await writer.drain()
        if not request.keep_alive:
            await _linger(reader, writer)
        return request.keep_alive

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._respond(request)
        except Exception:  # noqa: BLE001 - a defect in one page must end neither the server nor the proxy
            event(_log, logging.ERROR, "page_failed", exc_info=True, path=request.path)
            return text_response("this page failed; the log says why\n", 500)

    async def _refuse(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        error: RequestError,
        *,
        with_body: bool = True,
    ) -> None:
        allow = (("Allow", ", ".join(METHODS)),) if error.status == HTTPStatus.METHOD_NOT_ALLOWED else ()
        response = text_response(f"{error.status}: {error.sentence}\n", error.status, allow)
        writer.write(_encode(response, keep_alive=False, with_body=with_body))
        await _linger(reader, writer)


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End the output, and discard input until the client ends too, at most for `LINGER_SECONDS`."""
    async with asyncio.timeout(LINGER_SECONDS):
        await writer.drain()
        writer.write_eof()
        while await reader.read(MAX_HEAD_BYTES):
            pass


def _encode(response: Response, *, keep_alive: bool, with_body: bool) -> bytes:
    fields = (
        ("Date", formatdate(usegmt=True)),
        ("Content-Type", response.content_type),
        ("Content-Length", str(len(response.body))),
        ("X-Content-Type-Options", "nosniff"),
        *response.fields,
        *(() if keep_alive else (("Connection", "close"),)),
    )
    status = HTTPStatus(response.status)
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields)
    return head.encode("latin-1") + b"\r\n" + (response.body if with_body else b"")
