"""Where records go.

SinkFailed          records could not be written now, and are kept
└── SinkRefused     the sink refuses them: they are lost
"""

from collections.abc import Sequence
from typing import Protocol


class SinkFailed(Exception):
    """`reason`: the value of the metric's label. `message`: what happened, and what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message


class SinkRefused(SinkFailed):
    """The sink accepts no records until someone changes it; these are lost."""


class Sink(Protocol):
    """A topic or a file. Calls do not overlap."""

    async def write(self, records: Sequence[bytes]) -> None:
        """Return when all records are written. Raises SinkFailed: some may be written; the caller repeats all."""

    async def close(self) -> None:
        """Release what it has open."""
