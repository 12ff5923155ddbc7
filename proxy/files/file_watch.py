"""Reads files again when they change, and applies them whole or not at all: invalid files change nothing.

It calls `stat` once a second instead of using inotify. This works for an editor's rename, for the symbolic links that
Kubernetes uses to swap a ConfigMap or a Secret, and on network file systems. Files are read in a thread, because a
network file system must not stop the event loop. Files that change while they are read are read again at once, for
`READ_AGAIN_NS`, and then a second later: a file that is rewritten 50 times a second is applied within two seconds.

Files whose only problem is a host name that does not resolve may become valid without a change. They are read again
every 30 seconds, and their problems are logged again only when they change.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

from proxy.background.threads import OutsideThreads
from proxy.config.errors import ConfigError
from proxy.observability.logs import EventLog
from proxy.observability.metrics import Metrics
from quotas.problems import Problem

POLL_SECONDS: Final = 1.0
READ_AGAIN_NS: Final = 500_000_000
RETRY_AFTER_NS: Final = 30_000_000_000
"""When files that were refused only because of unresolved host names are read again."""
MAX_PROBLEMS_LOGGED: Final = 20
_REQUESTED: Final = "requested by a signal"

_log = EventLog(__name__)

T = TypeVar("T")
Fingerprint = tuple[int, ...]
"""A value that differs if the file may have changed."""


def fingerprints(paths: Iterable[Path | None]) -> tuple[Fingerprint | None, ...]:
    """One for each path; None for no path, and where `stat` fails."""
    return tuple([None if path is None else _fingerprint(path) for path in paths])


def _fingerprint(path: Path) -> Fingerprint | None:
    try:
        found = path.stat()
    except OSError:
        return None
    # Includes the ctime: permissions may have changed, so that the file can be read now.
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev


class FileWatch(ABC, Generic[T]):
    """`what` starts the names of log events and is the key in `metrics.reload_ok`. `clock` returns monotonic
    nanoseconds.
    """

    def __init__(self, what: str, metrics: Metrics, clock: Callable[[], int]) -> None:
        self._what = what
        self._metrics = metrics
        self._clock = clock
        self._seen: object = "not read yet"
        self._refused: tuple[Problem, ...] = ()
        self._retry_ns: int | None = None
        self._asked = asyncio.Event()
        self._thread = OutsideThreads(f"{what} files")

    @abstractmethod
    def paths(self) -> tuple[Path | None, ...]:
        """The files, as far as they are known: those that the latest content names, even if it was refused."""

    def is_due(self) -> bool:
        """Whether it is time to read them again even if they have not changed."""
        return self._retry_ns is not None and self._clock() >= self._retry_ns

    @abstractmethod
    def read(self) -> T:
        """Read them. Blocks; raises ConfigError."""

    @abstractmethod
    async def apply(self, found: T, *, is_requested: bool) -> bool:
        """Apply it; returns False if there was nothing to do. `is_requested`: `read_files` was called."""

    async def run(self, done: Callable[[], None] = lambda: None) -> None:
        """Call `poll` once a second and after `read_files`, until cancelled. Each time call `done`, unless a new
        call is due.
        """
        while True:
            try:
                await self.poll()
            except Exception:  # noqa: BLE001 - a defect that one content shows must not end the watch
                self._metrics.reload_ok[self._what] = False
                _log.exception(f"{self._what}_watch_failed")
            if not self._asked.is_set():
                done()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._asked.wait()
            self._asked.clear()

    def read_files(self) -> None:
        """Read the files now, and apply them even if they have not changed."""
        self._seen = _REQUESTED
        self._asked.set()

    async def poll(self) -> bool:
        """Read the files if one has changed; returns True if they were applied."""
        loop = asyncio.get_running_loop()
        seen = await loop.run_in_executor(self._thread, fingerprints, self.paths())
        is_new, is_requested = seen != self._seen, self._seen == _REQUESTED
        if not is_new and not self.is_due():
            return False
        self._seen, self._retry_ns = seen, None
        found = await loop.run_in_executor(self._thread, self._read_whole)
        if isinstance(found, ConfigError):
            self._refuse(found, is_new=is_new)
            return False
        if found is None:
            self._seen = "changed while they were read"
            return False
        self._metrics.note_reload(self._what)
        return await self.apply(found, is_requested=is_requested)

    def _read_whole(self) -> T | ConfigError | None:
        """What was read, or the error; None if the files changed during each attempt."""
        until_ns = self._clock() + READ_AGAIN_NS
        while True:
            before = self.paths(), fingerprints(self.paths())
            found: T | ConfigError
            try:
                found = self.read()
            except ConfigError as error:
                found = error
            if (self.paths(), fingerprints(self.paths())) == before:
                return found
            if self._clock() > until_ns:
                return None

    def _refuse(self, error: ConfigError, *, is_new: bool) -> None:
        self._metrics.note_reload(self._what, *error.problems[:MAX_PROBLEMS_LOGGED])
        if all(problem.may_pass for problem in error.problems):
            self._retry_ns = self._clock() + RETRY_AFTER_NS
        before, self._refused = self._refused, error.problems
        if not is_new and error.problems == before:
            return
        for problem in error.problems[:MAX_PROBLEMS_LOGGED]:
            place, message, hint = problem.place, problem.message, problem.hint
            _log.error(f"{self._what}_refused", place=place, message=message, hint=hint)
        effect = "the previous configuration stays in force until the files are valid"
        _log.warning(f"{self._what}_kept", problems=len(error.problems), effect=effect)
