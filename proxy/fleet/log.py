"""A log that all members of a fleet read in one order: what the fleet needs of it, and its errors.

LogFailed          it cannot be read or written now
├── LogRefused     it is of another kind: someone has to change it
└── LogChanged     it is not the log that was read so far
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class LogFailed(Exception):
    """`reason`: the value of the metric's label. `message`: what happened, and what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message


class LogRefused(LogFailed):
    """What it is does not do. The message says what to change."""


class LogChanged(LogFailed):
    """Records that were read are not in it: it was made anew, or has lost its end."""


class Place(NamedTuple):
    """Where a record is in the log, and when it was appended, in ms by the broker's clock."""

    offset: int
    time_ms: int


class Log(Protocol):
    """All but `close` raise LogFailed. `position`: where the next record will be read."""

    position: int

    async def open(self) -> None:
        """Connect, and check what the log is."""

    async def append(self, record: bytes) -> Place:
        """Append a record. It may be in the log without this returning, more than once, and late."""

    async def seek(self, time_ms: int) -> bool:
        """Read from the first record appended at `time_ms` or later. Returns whether the log has older ones."""

    async def read(self) -> Sequence[bytes]:
        """The next records, in order; none after a second without any. Raises LogChanged."""

    async def close(self) -> None:
        """Release what is open."""
