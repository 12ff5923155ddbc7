"""Watches the files of `--config` and `--quotas-file`: reads them again when one changes, and applies both or neither.

It calls `stat` once a second (`proxy.config.fingerprints`) instead of using inotify.

An empty file is refused where it would change something: some editors and scripts truncate a file before they write it.
A file that changes while it is read is read again at once, for `READ_AGAIN_SECONDS`, and then a second later: one that
is rewritten 50 times a second is applied within two.

A file whose only problem is a host name that does not resolve may become valid unchanged: it is read again every 30
seconds, and its problems are logged again only when they change.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Final

from proxy.config.cautions import quota_warnings
from proxy.config.client_settings import ClientSettings
from proxy.config.config import Config
from proxy.config.errors import ConfigError, Problem
from proxy.config.fingerprints import fingerprints
from proxy.config.quotas_file import Quotas, quotas_in_force
from proxy.observability import logs
from proxy.observability.metrics import Metrics

POLL_SECONDS: Final = 1.0
READ_AGAIN_SECONDS: Final = 0.5
RETRY_AFTER_NS: Final = 30_000_000_000
"""Time until files that were refused only for unresolved host names are read again."""
MAX_PROBLEMS_LOGGED: Final = 20
_SIZE: Final = 0
"""Index of the file's size in a fingerprint."""
_REQUESTED: Final = "requested by a signal"

_log = logging.getLogger(__name__)


class ConfigWatch:
    """Watches the files of `config`, which has one of the two at least.

    `quotas` are those in force. `apply` is called in the event loop with a new configuration and its quotas, after
    `read_files` also with an unchanged one; it applies what may change (see `live_part`). `read_again` makes a
    configuration of the file of `--config` as it is then; None: that file is not watched. `clock` returns monotonic
    nanoseconds.
    """

    def __init__(
        self,
        config: Config,
        quotas: Quotas,
        apply: Callable[[Config, Quotas], None],
        metrics: Metrics,
        clock: Callable[[], int] = time.monotonic_ns,
        read_again: Callable[[], Config] | None = None,
    ) -> None:
        self._config = config
        #: That of the latest configuration, also if it was refused.
        self._quotas_file = config.quotas.file
        self._quotas = quotas
        self._apply = apply
        self._metrics = metrics
        self._clock = clock
        self._read_again = read_again
        self._refused: tuple[Problem, ...] = ()
        self._fixed: tuple[str, ...] = ()
        self._retry_ns: int | None = None
        self._seen: tuple[tuple[int, ...] | None, ...] | str = "not read yet"
        self._asked = asyncio.Event()

    async def run(self, done: Callable[[], None] = lambda: None) -> None:
        """Call `poll` once a second, and after `read_files`, until cancelled; then `done`, if no call is asked for."""
        while True:
            try:
                await self.poll()
            except Exception:  # noqa: BLE001 - a defect that one content shows must not end the watch
                self._metrics.reload_ok = False
                logs.event(_log, logging.ERROR, "config_watch_failed", exc_info=True)
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
        """Read the files if one changed; True if they were applied. A wrong or missing file changes nothing."""
        seen = await asyncio.to_thread(fingerprints, self._paths())
        is_new, is_requested = seen != self._seen, self._seen == _REQUESTED
        if not is_new and (self._retry_ns is None or self._clock() < self._retry_ns):
            return False
        self._seen = seen
        self._retry_ns = None
        try:
            found = await asyncio.to_thread(self._read)
        except ConfigError as error:
            self._refuse(error, is_new=is_new)
            return False
        if found is None:
            self._seen = "changed while they were read"
            return False
        config, fixed, quotas = found
        self._metrics.reload_ok = True
        self._warn_of_fixed(fixed)
        return await self._apply_changes(config, quotas, always=is_requested)

    def _paths(self) -> tuple[Path | None, ...]:
        return (self._config.file if self._read_again else None, self._quotas_file)

    def _read(self) -> tuple[Config, tuple[str, ...], Quotas] | None:
        """The configuration, changed options that need a restart, and the quotas, prepared for the event loop.

        None: the files changed during each reading. Blocks; raises ConfigError.
        """
        until = time.monotonic() + READ_AGAIN_SECONDS
        while True:
            seen = fingerprints(self._paths())
            problem: ConfigError | None = None
            try:
                config, fixed = self._read_config()
                seen = seen[0], *fingerprints(self._paths()[1:])  # the quotas file may be another one now
                quotas = quotas_in_force(config)
            except ConfigError as error:
                problem = error
            if fingerprints(self._paths()) == seen:
                break
            if time.monotonic() > until:
                return None
        if problem is not None:
            raise problem
        if quotas == self._quotas:
            quotas = self._quotas
        if quotas is not self._quotas or config != self._config:
            _check_content(self._paths(), seen)
            quotas.prepare()
        return config, fixed, quotas

    def _read_config(self) -> tuple[Config, tuple[str, ...]]:
        """The new configuration, and the names of changed options that need a restart."""
        if self._read_again is None:
            return self._config, ()
        fresh = self._read_again()
        config = live_part(self._config, fresh)
        self._quotas_file = config.quotas.file
        return config, tuple(_differing(config, fresh))

    async def _apply_changes(self, config: Config, quotas: Quotas, *, always: bool) -> bool:
        if config == self._config and quotas is self._quotas and not always:
            return False
        before, quotas_before = self._config, self._quotas
        self._config, self._quotas = config, quotas
        self._apply(config, quotas)
        if config != before:
            logs.event(
                _log,
                logging.INFO,
                "config_reloaded",
                file=config.file,
                changed=",".join(_differing(before, config)),
                dry_run=quotas.dry_run,
                throttle_mode=config.enforcement.throttle_mode,
                log_level=config.observability.log_level,
            )
        if quotas is not quotas_before:
            logs.event(
                _log,
                logging.INFO,
                "quotas_reloaded",
                file=config.quotas.file,
                entries=len(quotas.entries),
                before=len(quotas_before.entries),
                share=quotas.share,
                share_before=quotas_before.share,
                dry_run=quotas.dry_run,
            )
            logs.warn(_log, await asyncio.to_thread(quota_warnings, config.quotas, quotas))
        return True

    def _warn_of_fixed(self, names: tuple[str, ...]) -> None:
        if names and names != self._fixed:
            logs.event(_log, logging.WARNING, "restart_needed", options=",".join(names), file=self._config.file)
        self._fixed = names

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
                "config_refused",
                place=problem.place,
                message=problem.message,
                hint=problem.hint,
            )
        logs.event(
            _log,
            logging.WARNING,
            "config_kept",
            problems=len(error.problems),
            entries=len(self._quotas.entries),
            share=self._quotas.share,
            effect="what was in force before the change stays in force until the files are valid",
        )


def live_part(config: Config, fresh: Config) -> Config:
    """The configuration with what may change while the proxy runs taken from `fresh`."""
    quotas, enforcement, observability = fresh.quotas, fresh.enforcement, fresh.observability
    return replace(
        config,
        upstream=_content(config.upstream, fresh.upstream),
        usage=replace(config.usage, client=_content(config.usage.client, fresh.usage.client)),
        quotas=replace(config.quotas, entries=quotas.entries, file=quotas.file, share=quotas.share),
        enforcement=replace(config.enforcement, dry_run=enforcement.dry_run, throttle_mode=enforcement.throttle_mode),
        observability=replace(config.observability, log_level=observability.log_level),
    )


def _content(before: ClientSettings, after: ClientSettings) -> ClientSettings:
    """Of a file that is watched by itself; another file needs a restart."""
    return after if after.file == before.file else before


def _differing(one: object, other: object) -> list[str]:
    """The names of the fields, within groups too, that differ."""
    found: list[str] = []
    for field in fields(one):  # type: ignore[arg-type] # a dataclass
        mine, its = getattr(one, field.name), getattr(other, field.name)
        if mine != its:
            found += _differing(mine, its) if is_dataclass(mine) and is_dataclass(its) else [field.name]
    return found


def _check_content(paths: tuple[Path | None, ...], seen: tuple[tuple[int, ...] | None, ...]) -> None:
    """Raise ConfigError for an empty file that would change something: it may be about to be written."""
    for flag, path, found in zip(("--config", "--quotas-file"), paths, seen, strict=True):
        if found is not None and found[_SIZE] == 0:
            hint = "to remove all that it had, write a comment into the file: # empty"
            raise ConfigError((Problem(f"{flag} {str(path)!r}", "is empty", hint),))
