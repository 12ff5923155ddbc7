"""Watches the quotas file: reads it again when it changes, and applies it as a whole or not at all.

It calls `stat` once a second instead of using inotify: this works for an editor's rename, for the symbolic links by
which Kubernetes swaps a ConfigMap, and on network file systems.

An empty file is refused where it would remove quotas: some editors and scripts truncate a file before they write it. A
file that changes while it is read is read again.

A file whose only problem is a host name that does not resolve may become valid unchanged: it is read again every 30
seconds, and its problems are logged again only when they change.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from proxy.config.cautions import quota_warnings
from proxy.config.config import Config
from proxy.config.errors import ConfigError, Problem
from proxy.config.quotas_file import Quotas, quotas_in_force
from proxy.observability import logs
from proxy.observability.metrics import Metrics

POLL_SECONDS: Final = 1.0
RETRY_AFTER_NS: Final = 30_000_000_000
"""Time until a file that was refused only for unresolved host names is read again."""
MAX_PROBLEMS_LOGGED: Final = 20
_SIZE: Final = 0
"""Index of the file's size in a fingerprint."""

_log = logging.getLogger(__name__)


class QuotasWatch:
    """Watches `config.quotas.file`, which must be given (ValueError otherwise).

    `quotas` are those in force. `take_over` is called in the event loop with the new ones; it updates the registry and
    checks held frames again. `clock` returns monotonic nanoseconds.
    """

    def __init__(
        self,
        config: Config,
        quotas: Quotas,
        take_over: Callable[[Quotas], None],
        metrics: Metrics,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if config.quotas.file is None:
            raise ValueError("there is no quotas file to watch")
        self._config = config
        self._path: Path = config.quotas.file
        self._quotas = quotas
        self._take_over = take_over
        self._metrics = metrics
        self._clock = clock
        self._refused: tuple[Problem, ...] = ()
        self._retry_ns: int | None = None
        self._seen: tuple[int, ...] | str | None = "not read yet"
        self._asked = asyncio.Event()

    async def run(self) -> None:
        """Call `poll` once a second, and after `read_again`, until cancelled."""
        while True:
            await self.poll()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._asked.wait()
            self._asked.clear()

    def read_again(self) -> None:
        """Read the file now, even if it has not changed."""
        self._seen = "asked to read it"
        self._asked.set()

    async def poll(self) -> bool:
        """Read the file if it changed; True if it was applied. A wrong or missing file changes nothing."""
        seen = await asyncio.to_thread(_fingerprint, self._path)
        is_new = seen != self._seen
        if not is_new and (self._retry_ns is None or self._clock() < self._retry_ns):
            return False
        self._seen = seen
        self._retry_ns = None
        try:
            quotas = await asyncio.to_thread(quotas_in_force, self._config)
            if await asyncio.to_thread(_fingerprint, self._path) != seen:
                self._seen = "changed while it was read"
                return False
            self._check_content(seen, quotas)
        except ConfigError as error:
            self._refuse(error, is_new=is_new)
            return False
        self._metrics.reload_ok = True
        if quotas == self._quotas:
            return False
        before, self._quotas = self._quotas, quotas
        self._take_over(quotas)
        logs.event(
            _log,
            logging.INFO,
            "quotas_reloaded",
            file=self._path,
            entries=len(quotas.entries),
            before=len(before.entries),
            share=quotas.share,
            share_before=before.share,
        )
        for name, fields in quota_warnings(self._config.quotas, quotas):
            logs.event(_log, logging.WARNING, name, exc_info=False, **fields)
        return True

    def _check_content(self, seen: tuple[int, ...] | None, quotas: Quotas) -> None:
        """Raise ConfigError for an empty file that would remove quotas: it may be about to be written."""
        if seen is not None and seen[_SIZE] == 0 and quotas != self._quotas:
            hint = "to remove all quotas, write a comment into the file: # no quotas"
            raise ConfigError((Problem(f"--quotas-file {str(self._path)!r}", "is empty", hint),))

    def _refuse(self, error: ConfigError, *, is_new: bool) -> None:
        self._metrics.reload_ok = False
        if all(problem.may_pass for problem in error.problems):
            self._retry_ns = self._clock() + RETRY_AFTER_NS
        before, self._refused = self._refused, error.problems
        if not is_new and error.problems == before:
            return
        for problem in error.problems[:MAX_PROBLEMS_LOGGED]:
            logs.event(
                _log,
                logging.ERROR,
                "quotas_refused",
                place=problem.place,
                message=problem.message,
                hint=problem.hint,
            )
        logs.event(
            _log,
            logging.WARNING,
            "quotas_kept",
            file=self._path,
            problems=len(error.problems),
            entries=len(self._quotas.entries),
            share=self._quotas.share,
            effect="the quotas before the change stay in force until the file is valid",
        )


def _fingerprint(path: Path) -> tuple[int, ...] | None:
    """A value that differs when the file may have changed; None when `stat` fails."""
    try:
        found = path.stat()
    except OSError:
        return None
    # The ctime too: permissions may have changed, so that the file can be read now.
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev
