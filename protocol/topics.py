"""Types of topics: by name or by id (KIP-516)."""

from typing import NamedTuple

TOPIC_ID_SIZE = 16
NO_TOPIC_ID = bytes(TOPIC_ID_SIZE)
"""The id on the wire if there is none; here also instead of a name above `LONGEST_NAME`."""
LONGEST_NAME = 249
"""Bytes of the longest name that Kafka accepts (`Topic.MAX_NAME_LENGTH`). Longer ones are not kept: on the wire a name
may have 32,767 bytes.
"""

Topic = str | bytes
"""A topic's name, or the 16 bytes of its id."""


class TopicPartitions(NamedTuple):
    """A topic that exists."""

    name: str
    topic_id: bytes | None
    """16 bytes; `None` where the version or the broker has no ids."""
    partitions: int
