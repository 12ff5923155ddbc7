"""A log that all members of a fleet read in one order: the interface that the fleet needs, and its errors.

LogFailed          it cannot be read or written now
├── LogRefused     it has the wrong settings, which someone must change
└── LogChanged     it is not the log that was read so far
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class LogFailed(Exception):
    """`reason` is the label of the metric. `message` is what happened and what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message


class LogRefused(LogFailed):
    """The settings of the log do not work for a fleet. The message contains what to change."""


class LogChanged(LogFailed):
    """Records that were read are missing: the log was created again, or its end was lost."""


class Appended(NamedTuple):
    """Where a record is in the log, and when it was appended, in ms by the broker's clock."""

    offset: int
    time_ms: int


class Log(Protocol):
    """All methods except `close` raise LogFailed. `position` is where the next record will be read."""

    position: int

    async def open(self) -> None:
        """Connect, and check the settings of the log."""

    async def append(self, record: bytes) -> Appended:
        """Append a record. Even if this fails, the record may be in the log, more than once and late."""

    async def seek(self, time_ms: int) -> bool:
        """Read from the first record appended at `time_ms` or later. Returns whether the log has older ones."""

    async def read(self) -> Sequence[bytes]:
        """The next records, in order; none after a second without any. Raises LogChanged."""

    async def close(self) -> None:
        """Release what is open."""
