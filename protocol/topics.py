"""How topics are spoken of: by name or by id (KIP-516), and what is known of one."""

from typing import NamedTuple

TOPIC_ID_SIZE = 16
NO_TOPIC_ID = bytes(TOPIC_ID_SIZE)
"""What stands for "none" on the wire."""

Topic = str | bytes
"""A topic's name, or the 16 bytes of its id."""


class TopicPartitions(NamedTuple):
    """A topic that exists."""

    name: str
    topic_id: bytes | None
    """16 bytes; `None` where the version or the broker has no ids."""
    partitions: int
