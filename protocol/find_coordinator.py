"""FindCoordinator responses, with the proxy's addresses in place of the coordinators'.

    correlation id int32, tag buffer (3+), throttle time int32 (1+)

then up to version 3, one coordinator:

    error code int16, error message nullable string (1+), node id int32, host string, port int32, tag buffer (3)

and from version 4 on, an array of them (KIP-699):

    coordinators array: key string, node id int32, host string, port int32, error code int16,
        error message nullable string, tag buffer
    tag buffer
"""

from struct import Struct

from protocol.addresses import NodeAddresses
from protocol.apis import FIND_COORDINATOR
from protocol.errors import MalformedFrame
from protocol.rewriting_walk import RewritingWalk
from protocol.walk import Steps
from protocol.wire import compact_string_end, encode_string

FIRST_WITH_THROTTLE = 1
FIRST_WITH_MESSAGE = 1
FIRST_BATCHED = 4

_SMALLEST_COORDINATOR = 1 + 4 + 1 + 4 + 2 + 1 + 1
_MAX_REMEMBERED = 256

_INT32 = Struct(">i")


class FindCoordinatorWalk(RewritingWalk):
    """Rewrites a FindCoordinator response. An entry without host or with a negative port is an error and stays."""

    def __init__(self, version: int, frame_length: int, addresses: NodeAddresses) -> None:
        super().__init__(FIND_COORDINATOR, version, frame_length)
        self._addresses = addresses
        self._remembered: dict[bytes, bytes] = {}
        """What was written for each address: a batch names few brokers many times."""

    def _walk(self) -> Steps:
        yield from self._copy_correlation_id()
        if self._version >= FIRST_WITH_THROTTLE:
            yield from self._copy(4, "throttle time")
        if self._version >= FIRST_BATCHED:
            yield from self._rewrite_coordinators()
        else:
            yield from self._copy(2, "error code")
            if self._version >= FIRST_WITH_MESSAGE:
                yield from self._copy_string("error message")
            yield from self._rewrite_address()
        yield from self._drop_tags()

    def _rewrite_coordinators(self) -> Steps:
        left = yield from self._copy_count(_SMALLEST_COORDINATOR, "coordinator count")
        while left:
            left = self._rewrite_at_hand(left)
            if self.work_left <= 0 and self._pos < self._end:
                yield
            elif left:
                yield from self._copy_string("key")
                yield from self._rewrite_address()
                yield from self._copy(2, "error code")
                yield from self._copy_string("error message")
                yield from self._drop_tags()
                self.work_left -= 6
                left -= 1

    def _rewrite_at_hand(self, left: int) -> int:
        """Rewrites coordinators that have arrived whole and have no tags. Returns how many are left."""
        buf, pos, end, out, work_left = self._buf, self._pos, self._end, self.out, self.work_left
        remembered = self._remembered
        while left and work_left > 0:
            key_end = compact_string_end(buf, pos, end)
            host_end = compact_string_end(buf, key_end + 4, end)
            after = compact_string_end(buf, host_end + 6, end)
            if after >= end or buf[after]:
                break
            replaced = remembered.get(bytes(buf[key_end : host_end + 4]))
            if replaced is None:
                if buf[key_end + 4] >= 0x80 or not buf[key_end + 4]:  # a long host, or null
                    break
                try:
                    replaced = self._replaced(bytes(buf[key_end : host_end + 4]), 5)
                except UnicodeDecodeError:
                    break
            out += buf[pos:key_end]
            out += replaced
            out += buf[host_end + 4 : after + 1]
            pos = after + 1
            left -= 1
            work_left -= 1
        self._pos = pos
        self.work_left = work_left
        return left

    def _rewrite_address(self) -> Steps:
        node_id = yield from self._collect(4, "node id")
        at = self._offset()
        host = yield from self._read_string("host")
        port = yield from self._collect(4, "port")
        encoded = encode_string(host, self._compact)
        try:
            self.out += self._replaced(node_id + encoded + port, 4 + len(encoded) - len(host))
        except UnicodeDecodeError:
            raise MalformedFrame("host as UTF-8", at) from None

    def _replaced(self, address: bytes, host_at: int) -> bytes:
        """What the client receives for a node id, host and port.

        Args:
            host_at: where in `address` the text of the host begins.

        Raises:
            UnicodeDecodeError: it is no UTF-8.
        """
        replaced = self._remembered.get(address)
        if replaced is not None:
            return replaced
        node_id: int = _INT32.unpack_from(address, 0)[0]
        port: int = _INT32.unpack_from(address, len(address) - 4)[0]
        host = address[host_at:-4].decode()
        replaced = address
        if host and port >= 0:
            host, port = self._addresses.advertise(node_id, host, port)
            replaced = address[:4] + encode_string(host.encode(), self._compact) + _INT32.pack(port)
        if len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[address] = replaced
        return replaced
