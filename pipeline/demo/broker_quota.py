"""Sets and removes the broker's *own* byte-rate quota of a client id (AlterClientQuotas, KIP-546).

By kio, since none of the Python clients here offers this request.
"""

import io
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest, EntityData, EntryData, OpData
from kio.schema.alter_client_quotas.v1.response import AlterClientQuotasResponse
from kio.schema.describe_client_quotas.v1.request import ComponentData, DescribeClientQuotasRequest
from kio.schema.describe_client_quotas.v1.response import DescribeClientQuotasResponse
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import f64, i8, i32

_KEY = "producer_byte_rate"
_TIMEOUT_SECONDS = 10.0
_MATCH_EXACT = i8(0)
_POLL_SECONDS = 0.05

Response = TypeVar("Response", AlterClientQuotasResponse, DescribeClientQuotasResponse)


class BrokerQuotaError(Exception):
    """The broker refused the quota, or does not show it."""


@contextmanager
def producer_byte_rate(broker: tuple[str, int], client_id: str, bytes_per_second: float) -> Iterator[None]:
    """The quota holds inside the block, and is removed after it. Raises BrokerQuotaError, OSError."""
    _alter(broker, client_id, bytes_per_second)
    try:
        _wait_until_in_force(broker, client_id, bytes_per_second)
        yield
    finally:
        _alter(broker, client_id, None)
        _wait_until_in_force(broker, client_id, None)


def in_force(broker: tuple[str, int], client_id: str) -> float | None:
    """The quota that this broker has for exactly that client id, in bytes per second; None without one."""
    component = ComponentData(entity_type="client-id", match_type=_MATCH_EXACT, match=client_id)
    request = DescribeClientQuotasRequest(components=(component,), strict=True)
    entries = _ask(broker, request, DescribeClientQuotasResponse).entries or ()
    return next((float(value.value) for entry in entries for value in entry.values if value.key == _KEY), None)


def _alter(broker: tuple[str, int], client_id: str, bytes_per_second: float | None) -> None:
    operation = OpData(key=_KEY, value=f64(float(bytes_per_second or 0)), remove=bytes_per_second is None)
    entity = EntityData(entity_type="client-id", entity_name=client_id)
    request = AlterClientQuotasRequest(entries=(EntryData(entity=(entity,), ops=(operation,)),), validate_only=False)
    for entry in _ask(broker, request, AlterClientQuotasResponse).entries:
        if entry.error_code is not ErrorCode.none:
            raise BrokerQuotaError(f"{_KEY} of client id {client_id}: {entry.error_message or entry.error_code.name}")


def _wait_until_in_force(broker: tuple[str, int], client_id: str, bytes_per_second: float | None) -> None:
    """An altered quota reaches the broker through the metadata log, a moment after the answer."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while in_force(broker, client_id) != bytes_per_second:
        if time.monotonic() > deadline:
            raise BrokerQuotaError(
                f"{_KEY}={bytes_per_second} of client id {client_id} is not in force after {_TIMEOUT_SECONDS:g} s"
            )
        time.sleep(_POLL_SECONDS)


def _ask(
    broker: tuple[str, int],
    request: AlterClientQuotasRequest | DescribeClientQuotasRequest,
    response_type: type[Response],
) -> Response:
    header_type = request.__header_schema__
    header = header_type(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=i32(1),
        client_id="flights-demo",
    )
    frame = io.BytesIO()
    entity_writer(header_type)(frame, header)
    entity_writer(type(request))(frame, request)
    with socket.create_connection(broker, timeout=_TIMEOUT_SECONDS) as connection, connection.makefile("rb") as answers:
        connection.sendall(struct.pack(">i", frame.tell()) + frame.getvalue())
        prefix = answers.read(4)
        length = int.from_bytes(prefix, "big")
        body = answers.read(length)
        if len(prefix) < 4 or len(body) < length:
            raise ConnectionError(f"the broker at {broker[0]}:{broker[1]} closed before it had answered")
        # A flexible response: correlation id, then an empty tag buffer of one byte.
        response, _ = entity_reader(response_type)(body, 5)
    return response
