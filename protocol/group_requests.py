"""What the head of a request of a consumer group tells: the group, its generation or epoch, and whether a member joins.

JoinGroup (11)    group string, session timeout int32, rebalance timeout int32 (1+), member id string, ...
SyncGroup (14)    group string, generation int32, ...
ConsumerGroupHeartbeat (68), ShareGroupHeartbeat (76), StreamsGroupHeartbeat (88)
                  group string, member id string, member epoch int32, ...: 0 joins, below 0 leaves (KIP-848)
"""

import struct
from typing import Final, NamedTuple

from protocol.errors import MalformedFrame
from protocol.wire import read_text, string_bounds, unpack_int32

JOIN_GROUP: Final = 11
SYNC_GROUP: Final = 14
_HEARTBEATS: Final = frozenset({68, 76, 88})
GROUP_APIS: Final = frozenset({JOIN_GROUP, SYNC_GROUP}) | _HEARTBEATS
LONGEST_HEAD: Final = 600
"""Bytes of a body that are read: two names of ordinary length. Longer names are not reported."""


class GroupEvent(NamedTuple):
    """`epoch`: 0 if the request has none. `joins`: it is from a member that has no member id or epoch yet."""

    group: str
    epoch: int
    joins: bool


def group_event(api_key: int, version: int, body: bytes, *, is_flexible: bool) -> GroupEvent | None:
    """What the beginning of a request's body tells; None if it is not complete."""
    try:
        return _read(api_key, version, body, is_flexible)
    except (struct.error, MalformedFrame):
        return None


def _read(api_key: int, version: int, body: bytes, is_flexible: bool) -> GroupEvent:
    group, at = _string(body, 0, is_flexible)
    name = read_text(group)
    if api_key == JOIN_GROUP:
        member, _ = _string(body, at + 4 + 4 * (version >= 1), is_flexible)
        return GroupEvent(name, 0, not member)
    if api_key in _HEARTBEATS:
        _, at = _string(body, at, is_flexible)
    epoch: int = unpack_int32(body, at)[0]
    return GroupEvent(name, max(0, epoch), epoch == 0 and api_key in _HEARTBEATS)


def _string(body: bytes, at: int, is_flexible: bool) -> tuple[bytes, int]:
    """A string, and the position behind it."""
    start, end = string_bounds(body, at, len(body), 0, "a string", compact=is_flexible)
    return body[start:end], end
