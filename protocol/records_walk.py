"""The base of walks over responses with records: the bytes of each topic, read while the response arrives.

The bytes of a partition are those of all of its records: compressed, with the headers of their batches, with control
batches, and with a batch that is cut by the end of the records.
"""

from protocol.node_endpoints import EndpointsWalk
from protocol.topics import Topic

TopicBytes = tuple[Topic, int]
"""A topic, and bytes of its records. The same topic may be reported several times: these are increments."""


class RecordsWalk(EndpointsWalk):
    """Walks a response with records. Subclasses set `_topic`, and call `_count_records` for each partition."""

    # Class attributes for the reason given in `FrameWalk`.
    _topic: Topic = ""
    _counted: list[TopicBytes] | None = None
    """None: not counted."""

    def __init__(self, version: int, frame_length: int, *, counts_records: bool = False) -> None:
        super().__init__(frame_length)
        self._version = version
        if counts_records:
            self._counted = []

    def take(self) -> list[TopicBytes]:
        """What was found since the last call, in the order of the response.

        The records of a partition are reported when their length has arrived. The list grows with each partition: take
        it after each `advance`.
        """
        counted = self._counted
        if not counted:
            return []
        self._counted = []
        return counted

    def _count_records(self, size: int) -> None:
        """Counts the records of a partition: `size` bytes, -1 for null."""
        if self._counted is not None and size > 0:
            self._counted.append((self._topic, size))
