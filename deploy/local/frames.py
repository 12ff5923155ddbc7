"""What the tap sees in the bytes of one connection. Sans-IO: bytes and times in, complete data frames out.

A data frame is a Produce request on its way to the broker, or a Fetch response on its way to the client. Its size is
what Kafka's quotas charge: the frame without its four bytes of length. This reads no more of the protocol than that
needs, and shares no code with the proxy: a measuring device must not share a mistake with what it measures.
"""

import struct
from collections.abc import Iterator
from typing import Literal, NamedTuple

DataApi = Literal["produce", "fetch"]

_PRODUCE_KEY = 0
_FETCH_KEY = 1
_REQUEST_FIXED = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id
_CORRELATION_ID = struct.Struct(">i")
_HEAD_BYTES = _REQUEST_FIXED.size + 249  # longest name of a client that Kafka lets into a quota or a metric, roughly
_MAX_FRAME_BYTES = 1 << 30


class DataFrame(NamedTuple):
    """One complete data frame.

    time_ns: monotonic, when its last byte had arrived; size: bytes without the length prefix; connection: which one of
    the tap's connections, numbered from 0.
    """

    time_ns: int
    api: DataApi
    size: int
    client_id: str
    connection: int


class NotKafka(ValueError):
    """A frame length that no Kafka connection has: TLS, SASL tokens without a header, or another protocol."""

    def __init__(self, length: int) -> None:
        super().__init__(f"a frame of {length} bytes")
        self.length = length


class FrameSplitter:
    """Finds frames in a byte stream that comes in any pieces, and keeps only the first bytes of each."""

    def __init__(self) -> None:
        self._prefix = bytearray()
        self._head = bytearray()
        self._length = 0
        self._missing = 0  # bytes of the current frame that are still to come; 0: in the length prefix

    def feed(self, data: memoryview) -> Iterator[tuple[bytes, int]]:
        """Yields (first bytes, length) of each frame that `data` completes. Raises NotKafka."""
        position, end = 0, len(data)
        while position < end:
            if self._missing == 0:
                piece = data[position : position + 4 - len(self._prefix)]
                self._prefix += piece
                position += len(piece)
                if len(self._prefix) < 4:
                    return
                self._length = self._missing = int.from_bytes(self._prefix, "big", signed=True)
                self._prefix.clear()
                self._head.clear()
                if not 0 < self._length <= _MAX_FRAME_BYTES:
                    raise NotKafka(self._length)
            taken = min(self._missing, end - position)
            room = _HEAD_BYTES - len(self._head)
            if room > 0:
                self._head += data[position : position + min(taken, room)]
            position += taken
            self._missing -= taken
            if self._missing == 0:
                yield bytes(self._head), self._length


class ConnectionMeter:
    """Both directions of one connection."""

    def __init__(self, connection: int) -> None:
        self._connection = connection
        self._requests = FrameSplitter()
        self._responses = FrameSplitter()
        self._fetches: dict[int, str] = {}  # correlation id of a Fetch under way → client id

    def to_broker(self, data: memoryview, now_ns: int) -> Iterator[DataFrame]:
        """Bytes the client sent. Yields the Produce requests they complete. Raises NotKafka."""
        for head, length in self._requests.feed(data):
            if len(head) < _REQUEST_FIXED.size:
                raise NotKafka(length)
            api_key, _, correlation_id, client_id_length = _REQUEST_FIXED.unpack_from(head)
            if api_key not in (_PRODUCE_KEY, _FETCH_KEY):
                continue
            name = head[_REQUEST_FIXED.size : _REQUEST_FIXED.size + max(0, client_id_length)]
            client_id = name.decode("utf-8", errors="replace")
            if api_key == _PRODUCE_KEY:
                yield DataFrame(now_ns, "produce", length, client_id, self._connection)
            else:
                self._fetches[correlation_id] = client_id

    def to_client(self, data: memoryview, now_ns: int) -> Iterator[DataFrame]:
        """Bytes the broker sent. Yields the Fetch responses they complete. Raises NotKafka."""
        for head, length in self._responses.feed(data):
            if len(head) < _CORRELATION_ID.size:
                raise NotKafka(length)
            (correlation_id,) = _CORRELATION_ID.unpack_from(head)
            client_id = self._fetches.pop(correlation_id, None)
            if client_id is not None:
                yield DataFrame(now_ns, "fetch", length, client_id, self._connection)
