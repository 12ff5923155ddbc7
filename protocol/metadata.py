"""Metadata responses: the brokers rewritten, the topics forwarded unchanged.

In every version the brokers come before the topics:

    correlation id int32, tag buffer (9+), throttle time int32 (3+),
    brokers array: node id int32, host string, port int32, rack nullable string (1+), tag buffer (9+)
    cluster id ...

Only this part is read, so the cost does not depend on the number of topics.
"""

from protocol.addresses import NodeAddresses
from protocol.apis import METADATA
from protocol.broker_list import BrokerListWalk
from protocol.errors import TruncatedFrame
from protocol.walk import Steps

FIRST_WITH_RACK = 1
FIRST_WITH_THROTTLE = 3


class MetadataWalk(BrokerListWalk):
    """Rewrites the brokers of a Metadata response. It is done after the last of them."""

    def __init__(self, version: int, frame_length: int, addresses: NodeAddresses) -> None:
        super().__init__(
            METADATA, version, frame_length, addresses, has_rack=version >= FIRST_WITH_RACK, has_fence=False
        )

    def _walk(self) -> Steps:
        yield from self._copy_correlation_id()
        if self._version >= FIRST_WITH_THROTTLE:
            yield from self._copy(4, "throttle time")
        yield from self._rewrite_brokers()

    def _check_end(self) -> None:
        # Topics follow. It also keeps `frame_left` above 0 until the walk is done.
        if self._pos == self._limit:
            raise TruncatedFrame("topics", self._offset())
