"""Requests to a broker by the wire. Blocking sockets, one connection per request, every wait bounded."""

import io
import socket
import struct
import time
from typing import TypeVar

from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.metadata.v9.request import MetadataRequest
from kio.schema.metadata.v9.response import MetadataResponse
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32
from kio.static.protocol import HeaderV1ResponsePayload, HeaderV2RequestPayload

_MAX_ANSWER_BYTES = 1 << 20
_CLIENT_ID = "playground-probe"

Response = TypeVar("Response", bound=HeaderV1ResponsePayload)


def answers_api_versions(host: str, port: int, timeout_seconds: float) -> bool:
    """Whether the broker answers ApiVersions without an error within the time. False too when nothing listens there."""
    request = ApiVersionsRequest(client_software_name="playground", client_software_version="1")
    try:
        answer = _ask(host, port, request, timeout_seconds)
    except OSError:
        return False
    # The error code comes first in every version, right after a header that never has a tag buffer.
    return answer[4:6] == b"\0\0"


def known_brokers(host: str, port: int, timeout_seconds: float) -> dict[int, tuple[str, int]]:
    """The live brokers this one knows of, node id → advertised address. Raises OSError when it does not answer."""
    request = MetadataRequest(
        topics=(),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    response = ask(host, port, request, MetadataResponse, timeout_seconds)
    return {int(broker.node_id): (broker.host, int(broker.port)) for broker in response.brokers}


def ask(
    host: str, port: int, request: HeaderV2RequestPayload, response_type: type[Response], timeout_seconds: float
) -> Response:
    """Sends one request of a flexible version and returns its response. Raises OSError."""
    answer = _ask(host, port, request, timeout_seconds)
    response, _ = entity_reader(response_type)(answer, 5)  # after the correlation id and an empty tag buffer
    return response


def _ask(host: str, port: int, request: HeaderV2RequestPayload, timeout_seconds: float) -> bytes:
    """Sends one request. Returns the response from its correlation id on. Raises OSError."""
    header_type = request.__header_schema__
    header = header_type(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=i32(1),
        client_id=_CLIENT_ID,
    )
    buffer = io.BytesIO()
    entity_writer(header_type)(buffer, header)
    entity_writer(type(request))(buffer, request)
    frame = buffer.getvalue()
    deadline = time.monotonic() + timeout_seconds
    with socket.create_connection((host, port), timeout=timeout_seconds) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        (length,) = struct.unpack(">i", _receive(connection, 4, deadline))
        if not 4 <= length <= _MAX_ANSWER_BYTES:
            raise ConnectionError(f"{host}:{port} is no Kafka broker: it answers with a frame of {length} bytes")
        return _receive(connection, length, deadline)


def _receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    received = bytearray()
    while len(received) < size:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        connection.settimeout(remaining)
        piece = connection.recv(size - len(received))
        if not piece:
            raise ConnectionError("closed before the answer was complete")
        received += piece
    return bytes(received)
