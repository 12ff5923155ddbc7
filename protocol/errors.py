"""Errors in Kafka bytes.

    ProtocolError
    ├── NegativeFrameLength     the length prefix of a frame is negative
    ├── NotKafka                the first bytes belong to another protocol: TLS, HTTP, SSH, PROXY
    ├── LoginRequired           a request before a login by SASL that brokers require
    ├── InvalidProxyHeader      a connection of a load balancer does not begin with a valid PROXY header
    ├── FrameTooLarge           the length prefix of a frame is above the limit
    ├── UnknownApi              the API of a request is not in the table
    ├── UnsupportedVersion      the version of a request is outside of the table's range
    ├── MalformedFrame          the bytes of a frame do not match its API and version
    │   └── TruncatedFrame      a field extends past the end of its frame
    ├── TooManyItems            a message has too many topics, configs or the like to be read at once
    ├── CorrelationMismatch     a response does not match the oldest request in flight
    └── UnexpectedResponse      a response arrived while no request was in flight

For any input, functions of this package return, or raise one of these errors. `reason` is the metric label. `offset` is
the position of the error: bytes from the start of the frame after its length prefix, -1 for the prefix itself.
"""

from typing import ClassVar


class ProtocolError(Exception):
    """A peer sent bytes that are not valid Kafka protocol. The proxy closes this connection; no other is affected."""

    reason: ClassVar[str] = "protocol_error"

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class NegativeFrameLength(ProtocolError):
    """`length`: the frame length, in bytes."""

    reason = "negative_frame_length"

    def __init__(self, length: int) -> None:
        super().__init__(f"frame length {length} is negative", -1)


class NotKafka(ProtocolError):
    """The first bytes of a connection belong to another protocol. `protocol`: tls, http, ssh or proxy."""

    reason = "not_kafka"

    def __init__(self, protocol: str) -> None:
        super().__init__(f"the peer sent {protocol} bytes instead of Kafka protocol", -1)
        self.protocol = protocol


class LoginRequired(ProtocolError):
    """A request before a login by SASL: brokers would also close the connection."""

    reason = "login_required"

    def __init__(self) -> None:
        super().__init__("a request before the client's login: its brokers require SASL", -1)


class InvalidProxyHeader(ProtocolError):
    """`what`: the part that is not valid."""

    reason = "proxy_header"

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(f"the PROXY header has no valid {what}", offset)


class FrameTooLarge(ProtocolError):
    """`length` and `limit`: bytes."""

    reason = "frame_too_large"

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"frame length {length} is above the limit of {limit} bytes", -1)


class UnknownApi(ProtocolError):
    """`api_key`: Kafka's number of the API."""

    reason = "unknown_api"

    def __init__(self, api_key: int) -> None:
        super().__init__(f"the proxy does not forward API key {api_key}", 0)


class UnsupportedVersion(ProtocolError):
    """`api_name`: Kafka's name of the API."""

    reason = "unsupported_version"

    def __init__(self, api_name: str, version: int) -> None:
        super().__init__(f"the proxy does not forward {api_name} version {version}", 2)
        self.api_name = api_name


class MalformedFrame(ProtocolError):
    """`what`: the field that cannot be read."""

    reason = "malformed_frame"

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(f"cannot read {what} at byte {offset} of the frame", offset)


class TruncatedFrame(MalformedFrame):
    """The frame ends within the field `what`."""

    reason = "truncated_frame"


class TooManyItems(ProtocolError):
    """A message has too many items of arrays, or tags, to be read at once."""

    reason = "too_many_items"

    def __init__(self, offset: int) -> None:
        super().__init__(f"the message has too many items at byte {offset}", offset)


class CorrelationMismatch(ProtocolError):
    """`expected` and `found`: correlation ids. Kafka answers the requests of a connection in order."""

    reason = "correlation_mismatch"

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"response has correlation id {found}, the oldest request in flight has {expected}", 0)


class UnexpectedResponse(ProtocolError):
    """A response arrived while no request was in flight."""

    reason = "unexpected_response"

    def __init__(self) -> None:
        super().__init__("a response arrived while no request was in flight", 0)
