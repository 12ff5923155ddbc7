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

_INT32 = Struct(">i")


class FindCoordinatorWalk(RewritingWalk):
    """Rewrites a FindCoordinator response. An entry without host or with a negative port is an error and stays."""

    def __init__(self, version: int, frame_length: int, addresses: NodeAddresses) -> None:
        super().__init__(FIND_COORDINATOR, version, frame_length)
        self._addresses = addresses

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
        text = yield from self._read_string("host")
        port = yield from self._collect(4, "port")
        try:
            host = text.decode()
        except UnicodeDecodeError:
            raise MalformedFrame("host as UTF-8", at) from None
        number: int = _INT32.unpack(port)[0]
        if host and number >= 0:
            host, number = self._addresses.advertise(_INT32.unpack(node_id)[0], host, number)
        self.out += node_id + encode_string(host.encode(), self._compact) + _INT32.pack(number)
