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
from protocol.wire import encode_string

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
        coordinators = yield from self._copy_count(_SMALLEST_COORDINATOR, "coordinator count")
        for _ in range(coordinators):
            yield from self._copy_string("key")
            yield from self._rewrite_address()
            yield from self._copy(2, "error code")
            yield from self._copy_string("error message")
            yield from self._drop_tags()
            yield from self._pause(3)

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
