"""What can be wrong with Kafka bytes.

    ProtocolError
    ├── NegativeFrameLength     a frame's length prefix is below zero
    ├── NotKafka                the first bytes are another protocol's: TLS, HTTP, SSH
    ├── FrameTooLarge           a frame's length prefix is above the bound
    ├── UnknownApi              a request names an API that the table does not list
    ├── UnsupportedVersion      a request's version is outside the table's range
    ├── MalformedFrame          a frame's bytes are not what its API and version say
    │   └── TruncatedFrame      a field reaches beyond the end of its frame
    ├── CorrelationMismatch     a response answers another request than the oldest one in flight
    └── UnexpectedResponse      a response came while no request was in flight

Whatever bytes a peer sends, functions of this package return or raise one of these. Each carries values; `reason` is
the metric label, and `offset` says where: bytes from the start of the frame after its length prefix, -1 for the prefix
itself.
"""

from typing import ClassVar


class ProtocolError(Exception):
    """A peer sent bytes that are not Kafka's protocol as the proxy speaks it. Costs that connection, nothing else."""

    reason: ClassVar[str] = "protocol_error"

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class NegativeFrameLength(ProtocolError):
    reason = "negative_frame_length"

    def __init__(self, length: int) -> None:
        super().__init__(f"frame length {length} is negative", -1)
        self.length = length


class NotKafka(ProtocolError):
    """The first bytes of a connection are another protocol's. `protocol`: tls, http or ssh."""

    reason = "not_kafka"

    def __init__(self, protocol: str) -> None:
        super().__init__(f"these are {protocol} bytes, not Kafka's", -1)
        self.protocol = protocol


class FrameTooLarge(ProtocolError):
    reason = "frame_too_large"

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"frame length {length} is above the bound of {limit} bytes", -1)
        self.length = length
        self.limit = limit


class UnknownApi(ProtocolError):
    reason = "unknown_api"

    def __init__(self, api_key: int) -> None:
        super().__init__(f"API key {api_key} is not one that the proxy lets pass", 0)
        self.api_key = api_key


class UnsupportedVersion(ProtocolError):
    reason = "unsupported_version"

    def __init__(self, api_name: str, version: int) -> None:
        super().__init__(f"{api_name} version {version} is not one that the proxy lets pass", 2)
        self.api_name = api_name
        self.version = version


class MalformedFrame(ProtocolError):
    """`what` names the field that cannot be read."""

    reason = "malformed_frame"

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(f"cannot read {what} at byte {offset} of the frame", offset)
        self.what = what


class TruncatedFrame(MalformedFrame):
    reason = "truncated_frame"


class CorrelationMismatch(ProtocolError):
    """Kafka answers the requests of a connection in their order, so this is a broken peer, not a late answer."""

    reason = "correlation_mismatch"

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"response has correlation id {found}, the oldest request in flight has {expected}", 0)
        self.expected = expected
        self.found = found


class UnexpectedResponse(ProtocolError):
    reason = "unexpected_response"

    def __init__(self) -> None:
        super().__init__("a response came while no request was in flight", 0)
