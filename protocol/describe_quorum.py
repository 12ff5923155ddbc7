"""DescribeQuorum responses, without the listeners of controllers (KIP-853).

Controllers cannot be reached through the proxy, so it has no address for them.

Version 2, which is flexible, as all are:

    correlation id int32, tag buffer, error code int16, error message nullable string,
    topics array: name string, partitions array:
        index int32, error code int16, error message nullable string, leader id int32, leader epoch int32,
        high watermark int64, current voters array of replica, observers array of replica, tag buffer
      tag buffer
    nodes array: node id int32, listeners array: name string, host string, port uint16, tag buffer
      tag buffer
    tag buffer

where a replica is: id int32, directory id uuid, log end offset int64, two timestamps int64, tag buffer. Versions 0 and
1 have no nodes and no address.
"""

from protocol.apis import DESCRIBE_QUORUM
from protocol.rewriting_walk import RewritingWalk
from protocol.walk import Steps

FIRST_WITH_NODES = 2

_REPLICA = 4 + 16 + 8 + 8 + 8
_SMALLEST_PARTITION = 4 + 2 + 1 + 4 + 4 + 8 + 1 + 1 + 1
_SMALLEST_NODE = 4 + 1 + 1
_SMALLEST_LISTENER = 1 + 1 + 2 + 1


class DescribeQuorumWalk(RewritingWalk):
    """Rewrites a DescribeQuorum response. It is done from the start in versions without nodes."""

    def __init__(self, version: int, frame_length: int) -> None:
        super().__init__(DESCRIBE_QUORUM, version, frame_length)
        self.is_done = version < FIRST_WITH_NODES

    def _whole(self) -> Steps:
        if self._version >= FIRST_WITH_NODES:
            yield from self._walk()
            self._check_end()
            self.is_done = True

    def _walk(self) -> Steps:
        yield from self._copy_correlation_id()
        yield from self._copy(2, "error code")
        yield from self._copy_string("error message")
        topics = yield from self._copy_count(3, "topic count")
        for _ in range(topics):
            yield from self._copy_string("topic name")
            partitions = yield from self._copy_count(_SMALLEST_PARTITION, "partition count")
            for _ in range(partitions):
                yield from self._copy(6, "partition index, error code")
                yield from self._copy_string("partition error message")
                yield from self._copy(16, "leader id, leader epoch, high watermark")
                yield from self._copy_structs(_REPLICA, "current voters")
                yield from self._copy_structs(_REPLICA, "observers")
                yield from self._drop_tags()
                yield from self._pause(5)
            yield from self._drop_tags()
            yield from self._pause()
        nodes = yield from self._copy_count(_SMALLEST_NODE, "node count")
        for _ in range(nodes):
            yield from self._copy(4, "node id")
            yield from self._drop_listeners()
            yield from self._drop_tags()
            yield from self._pause(3)
        yield from self._drop_tags()

    def _drop_listeners(self) -> Steps:
        listeners = yield from self._read_count(_SMALLEST_LISTENER, "listener count")
        self._write_count(0)
        for _ in range(listeners):
            yield from self._skip_compact("listener name")
            yield from self._skip_compact("listener host")
            yield from self._skip(2, "listener port")
            yield from self._skip_tags()
            yield from self._pause(4)
