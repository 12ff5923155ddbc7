"""Requests made by hand, one connection, one at a time: for what no client sends when it is wanted."""

import io
import itertools
import socket
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Self

from kafka.record import MemoryRecordsBuilder
from kio.index import load_response_schema
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.serial import entity_writer

from protocol.messages import decode

NOT_LEADER = 6


class Wire:
    """One connection to the broker or proxy at `address`, which is HOST:PORT."""

    def __init__(self, address: str, client_id: str = "wire") -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._stream = self._socket.makefile("rb")
        self._client_id = client_id.encode()
        self._correlation_ids = itertools.count(1)

    def ask(self, api_key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
        """Sends a request and returns what follows the correlation id in its response. Raises EOFError without one."""
        return self.receive(self.send(api_key, version, body, flexible=flexible))

    def ask_entity(self, request: Any) -> tuple[Any, bytes]:
        """Sends a request of kio's types. Returns the response as kio reads it, and its bytes."""
        return self.receive_entity(request, self.send_entity(request))

    def send(self, api_key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
        """Sends a request. Returns its correlation id."""
        correlation_id = next(self._correlation_ids).to_bytes(4, "big")
        head = api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + correlation_id
        name = len(self._client_id).to_bytes(2, "big") + self._client_id
        request = head + name + (b"\x00" if flexible else b"") + body
        self._socket.sendall(len(request).to_bytes(4, "big") + request)
        return correlation_id

    def send_entity(self, request: Any) -> bytes:
        """Sends a request of kio's types. Returns its correlation id."""
        body = io.BytesIO()
        entity_writer(type(request))(body, request)
        version, flexible = int(request.__version__), request.__flexible__
        return self.send(int(request.__api_key__), version, body.getvalue(), flexible=flexible)

    def receive(self, correlation_id: bytes) -> bytes:
        """What follows the correlation id in the next response, which has this one. Raises EOFError without one."""
        try:
            length = self._stream.read(4)
            response = self._stream.read(int.from_bytes(length, "big"))
        except ConnectionResetError:  # the connection was closed before our request arrived, which then goes unread
            raise EOFError("the connection was closed") from None
        if not length or len(response) < 4:
            raise EOFError("the connection was closed")
        assert response[:4] == correlation_id
        return response[4:]

    def receive_entity(self, request: Any, correlation_id: bytes) -> tuple[Any, bytes]:
        """The next response, which answers this request: as kio reads it, and its bytes."""
        api_key = int(request.__api_key__)
        answer = self.receive(correlation_id)
        response = load_response_schema(api_key, int(request.__version__))
        start = 1 if response.__flexible__ and api_key != 18 else 0  # ApiVersions never has tags in its header
        return decode(response, answer, start), answer  # not kio's own reader: it fails on tags that it does not know

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()


def minima(wire: Wire) -> dict[int, int]:
    """The lowest version that is offered of each API, by API key."""
    response, _ = wire.ask_entity(ApiVersionsRequest())
    return {int(api.api_key): int(api.min_version) for api in response.api_keys}


def schema(message: str, version: int) -> Any:
    """kio's module for a request, as plain Python: `schema("fetch", 17).FetchRequest(...)`."""
    return import_module(f"kio.schema.{message}.v{version}.request")


def records(*values: bytes, magic: int = 2) -> bytes:
    """A record batch (magic 2), or a message set as brokers before 0.11 had it (0, 1)."""
    now_ms = int(datetime.now(UTC).timestamp() * 1000)  # brokers delete what is older than a week
    builder = MemoryRecordsBuilder(magic=magic, compression_type=0, batch_size=1 << 20)
    for value in values:
        builder.append(timestamp=None if magic == 0 else now_ms, key=None, value=value, headers=[])
    builder.close()
    return bytes(builder.buffer())
