"""The array of all brokers in Metadata and DescribeCluster responses, with the proxy's addresses in place of theirs.

A broker is

    node id int32, host string, port int32, rack nullable string, is fenced bool, tag buffer

The last three depend on the version. The address of each broker depends on all brokers
(`NodeAddresses.advertise_all`), so they are collected and then written.
"""

from collections.abc import Iterator
from struct import Struct

from protocol.addresses import NodeAddresses
from protocol.errors import MalformedFrame
from protocol.rewriting_walk import RewritingWalk
from protocol.walk import Steps
from protocol.wire import encode_string

MAX_PREFIX = 1_048_576
"""Bytes of a response up to the end of its brokers. A longer prefix is refused."""
MAX_BROKERS = 10_000

ADDRESS_PIECES = 50
"""Pieces of work of one step of `NodeAddresses.advertise_all`. A new broker takes 100 us, a known one 1 us."""

HIDDEN_ADDRESS = ("", -1)
"""For brokers that clients cannot reach through the proxy."""

_INT32 = Struct(">i")
_SMALLEST_BROKER = 10  # node id, an empty host, port


class BrokerListWalk(RewritingWalk):
    """Rewrites a response that lists all brokers of the cluster."""

    def __init__(
        self,
        api_key: int,
        version: int,
        frame_length: int,
        addresses: NodeAddresses,
        *,
        has_rack: bool,
        has_fence: bool,
    ) -> None:
        super().__init__(api_key, version, frame_length)
        self._addresses = addresses
        self._has_rack = has_rack
        self._has_fence = has_fence
        self._named: list[tuple[int, str, int]] = []
        """Node id, host and port of each broker that is not fenced."""
        self._collected: list[tuple[int, bytes, bool]] = []
        """Node id of each broker, what follows its port, and whether it is fenced."""

    def _rewrite_brokers(self, *, hide_all: bool = False) -> Steps:
        """Collects the brokers and writes the array.

        Args:
            hide_all: the list contains controllers, which clients cannot reach through the proxy.
        """
        at = self._offset()
        left = yield from self._read_count(1 if self._compact else _SMALLEST_BROKER, "broker count")
        if left > MAX_BROKERS:
            raise MalformedFrame(f"broker count, at most {MAX_BROKERS}", at)
        self._write_count(left)
        for _ in range(left):
            yield from self._collect_one()
            if self._offset() > MAX_PREFIX:
                raise MalformedFrame(f"brokers within {MAX_PREFIX} bytes", MAX_PREFIX)
            yield from self._pause(4)
        told: list[tuple[str, int]] = []
        for address in () if hide_all else self._addresses.advertise_all(self._named):
            if address is not None:
                told.append(address)
            self.work_left -= ADDRESS_PIECES
            if self.work_left <= 0:
                yield
        yield from self._write_brokers(iter(told), hide_all)

    def _collect_one(self) -> Steps:
        node_id: int = _INT32.unpack((yield from self._collect(4, "node id")))[0]
        at = self._offset()
        text = yield from self._read_string("host")
        try:
            host = text.decode()
        except UnicodeDecodeError:
            raise MalformedFrame("host as UTF-8", at) from None
        port: int = _INT32.unpack((yield from self._collect(4, "port")))[0]
        rest = b""
        if self._has_rack:
            size = yield from self._string_size(self._compact, "rack")
            rest = bytes(self._size_bytes(size)) + (yield from self._collect(max(0, size), "rack"))
        fenced = False
        if self._has_fence:
            fence = yield from self._collect(1, "is fenced")
            fenced = fence != b"\x00"
            rest += fence
        if self._compact:
            yield from self._skip_tags()
            rest += b"\x00"
        self._collected.append((node_id, rest, fenced))
        if not fenced:
            self._named.append((node_id, host, port))

    def _write_brokers(self, advertised: Iterator[tuple[str, int]], hide_all: bool) -> Steps:
        out = self.out
        host, encoded = "", encode_string(b"", self._compact)
        for node_id, rest, fenced in self._collected:
            shown, port = HIDDEN_ADDRESS if fenced or hide_all else next(advertised)
            if shown != host:
                host, encoded = shown, encode_string(shown.encode(), self._compact)
            out += _INT32.pack(node_id)
            out += encoded
            out += _INT32.pack(port)
            out += rest
            self.work_left -= 1
            if self.work_left <= 0:  # also if all bytes so far are consumed
                yield
        self._collected = []
        self._named = []
