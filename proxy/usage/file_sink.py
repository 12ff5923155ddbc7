"""Appends records to a file, one JSON object in each line.

The file is opened for each write, so it may be renamed, removed or truncated at any time, as log rotation does. For a
pipe that nobody reads, or that is full, a write fails at once.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from proxy.usage.sink import SinkFailed

FILE_MODE: Final = 0o640


class FileSink:
    """Writes in a thread, because a disk may be slow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_torn = False

    async def write(self, records: Sequence[bytes]) -> None:
        """Append the records, a line each. Raises SinkFailed."""
        try:
            await asyncio.to_thread(self._append, b"".join(record + b"\n" for record in records))
        except OSError as error:
            raise SinkFailed("file", f"--usage-file {self._path}: {error.strerror or error}") from error

    def _append(self, data: bytes) -> None:
        """Append all. After an error within a line, the next call ends that line first."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        file = os.open(self._path, flags, FILE_MODE)
        try:
            rest = memoryview(b"\n" + data if self._is_torn else data)
            while rest:
                written = os.write(file, rest)
                rest = rest[written:]
                self._is_torn = bool(rest)
        finally:
            os.close(file)

    async def close(self) -> None:
        """Nothing is open between writes."""
