"""Keeps the quotas those of the quotas file: reads it again when it changes, takes it over whole or not at all.

The file is looked at by `stat`, once a second, rather than through inotify: that works for an editor's rename, for the
symbolic links by which Kubernetes swaps a ConfigMap, and on network file systems alike.

A file that is refused for nothing but a host name that does not resolve may be right a little later: it is tried again
every 30 seconds, and what is wrong is not logged again while it is the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from proxy.config.errors import ConfigError
from proxy.config.quotas_file import quotas_in_force
from proxy.observability import logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proxy.config.config import Config
    from proxy.config.errors import Problem
    from proxy.config.quotas_file import Quotas
    from proxy.observability.metrics import Metrics

LOOK_EVERY_SECONDS: Final = 1.0
TRY_AGAIN_AFTER_NS: Final = 30_000_000_000
"""How long after a refusal for a name that does not resolve the file is tried again."""
MAX_PROBLEMS_LOGGED: Final = 20

_log = logging.getLogger(__name__)


class QuotasWatch:
    """Watches `config.quotas_file`, which must be given (ValueError otherwise).

    `quotas` are those in force now. `take_over` gets all that are to be in force instead; it is called in the event
    loop, and puts them into the registry and wakes who waits. `clock` returns monotonic nanoseconds.
    """

    def __init__(
        self,
        config: Config,
        quotas: Quotas,
        take_over: Callable[[Quotas], None],
        metrics: Metrics,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if config.quotas_file is None:
            raise ValueError("there is no quotas file to watch")
        self._config = config
        self._path: Path = config.quotas_file
        self._quotas = quotas
        self._take_over = take_over
        self._metrics = metrics
        self._clock = clock
        self._refused: tuple[Problem, ...] = ()
        self._try_again_ns: int | None = None
        self._seen: tuple[int, ...] | str | None = "never looked"
        self._asked = asyncio.Event()

    async def run(self) -> None:
        """Look once a second, and whenever asked to, until cancelled."""
        while True:
            await self.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_SECONDS):
                    await self._asked.wait()
            self._asked.clear()

    def read_again(self) -> None:
        """Read the file now, whether it has changed or not."""
        self._seen = "asked to read it"
        self._asked.set()

    async def look(self) -> bool:
        """Look once; True when quotas were taken over. What was in force stays so when the file is wrong or gone."""
        seen = await asyncio.to_thread(_fingerprint, self._path)
        is_new = seen != self._seen
        if not is_new and (self._try_again_ns is None or self._clock() < self._try_again_ns):
            return False
        self._seen = seen  # of before the reading: a change during it is seen next time
        self._try_again_ns = None
        try:
            quotas = await asyncio.to_thread(quotas_in_force, self._config)
        except ConfigError as error:
            self._refuse(error, is_new=is_new)
            return False
        self._metrics.config_reloaded(ok=True)
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
        return True

    def _refuse(self, error: ConfigError, *, is_new: bool) -> None:
        self._metrics.config_reloaded(ok=False)
        if all(problem.may_pass for problem in error.problems):
            self._try_again_ns = self._clock() + TRY_AGAIN_AFTER_NS
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
            effect="the quotas of before stay in force until the file is right",
        )


def _fingerprint(path: Path) -> tuple[int, ...] | None:
    """Changes whenever the file may have changed; None: it cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return None
    # The time of a change of its status too: a file that could not be read may be readable now.
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev
