"""A log that all members of a fleet read in one order: the interface that the fleet needs."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Appended(NamedTuple):
    """Where a record is in the log, and when it was appended, in ms by the broker's clock."""

    offset: int
    time_ms: int


class Log(Protocol):
    """All methods except `close` raise `LogFailed`. `position` is where the next record will be read."""

    position: int

    async def open(self) -> None:
        """Connect, and check the settings of the log."""

    async def append(self, record: bytes) -> Appended:
        """Append a record. Even if this fails, the record may be in the log, more than once and late."""

    async def seek(self, time_ms: int) -> bool:
        """Read from the first record appended at `time_ms` or later. Returns whether the log has older ones."""

    async def read(self) -> Sequence[bytes]:
        """The next records, in order; none after a second without any. Raises `LogChanged`."""

    async def close(self) -> None:
        """Release what is open."""
