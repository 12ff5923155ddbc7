"""Types of topics: by name or by id (KIP-516)."""

from typing import NamedTuple

TOPIC_ID_SIZE = 16
NO_TOPIC_ID = bytes(TOPIC_ID_SIZE)
"""The id on the wire if there is none."""

Topic = str | bytes
"""A topic's name, or the 16 bytes of its id."""


class TopicPartitions(NamedTuple):
    """A topic that exists."""

    name: str
    topic_id: bytes | None
    """16 bytes; `None` where the version or the broker has no ids."""
    partitions: int
