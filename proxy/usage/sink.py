"""Where records go: the interface of a sink, and the sink that appends to a file. `topic_sink` has the other sink."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from proxy.background.threads import OutsideThreads
from proxy.internal_clients.failures import LogFailed

FILE_MODE: Final = 0o640


class Sink(Protocol):
    """A topic or a file. Calls do not overlap."""

    async def write(self, records: Sequence[bytes]) -> None:
        """Return when all records are written.

        Raises LogFailed: some may be written, and the caller repeats all. LogRefused: it accepts none until its
        settings change, and these are lost.
        """

    async def close(self) -> None:
        """Release what it has open."""


class FileSink:
    """Appends records, one JSON object in each line, in a thread, because a disk may be slow.

    The file is opened for each write, so it may be renamed, removed or truncated at any time, as log rotation does. For
    a pipe that is full or has no reader, a write fails at once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_torn = False
        self._thread = OutsideThreads("usage file")

    async def write(self, records: Sequence[bytes]) -> None:
        try:
            data = b"".join(record + b"\n" for record in records)
            await asyncio.get_running_loop().run_in_executor(self._thread, self._append, data)
        except OSError as error:
            raise LogFailed("file", f"--usage-file {self._path}: {error.strerror or error}") from error

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
