"""Watches the files of `--config` and `--quotas-file`: reads them again when one changes, and applies both or neither.

An empty file is refused: some editors and scripts truncate a file before they write it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Final

from proxy.config.cautions import BELOW_FLOOR, quota_warnings
from proxy.config.client_settings import ClientSettings
from proxy.config.config import Config
from proxy.config.host_names import are_answered
from proxy.config.quota_sources import Quotas
from proxy.config.quotas_file import active_quotas
from proxy.files.file_watch import FileWatch
from proxy.observability.logs import EventLog
from proxy.observability.metrics import Clock, Metrics

_log = EventLog(__name__)

#: The options that may change while the proxy runs.
LIVE: Final = ("dry_run", "throttle_mode", "log_level", "quota", "quota_share", "quotas_file")

Take = Callable[[Config, Quotas], Awaitable[None]]
ReadAgain = Callable[[], Config] | None
Found = tuple[Config, list[str], Quotas]
"""A configuration, its changed options that need a restart, and its quotas, prepared for the event loop."""


class ConfigWatch(FileWatch[Found]):
    """Watches the files of `config`, which has one of the two at least.

    `quotas` are the active ones. `take` is called in the event loop with a new configuration and its quotas, after
    `read_files` also with an unchanged one; it applies what may change (see `live_part`). `read_again` makes a
    configuration of the file of `--config` as it is then; None: that file is not watched.
    """

    def __init__(
        self, config: Config, quotas: Quotas, take: Take, metrics: Metrics, clock: Clock, read_again: ReadAgain = None
    ) -> None:
        super().__init__("config", metrics, clock)
        self._config = config
        #: That of the latest configuration, also if it was refused.
        self._quotas_file = config.quotas.file
        self._quotas = quotas
        self._take = take
        self._read_again = read_again
        #: Host names that the latest reading left out.
        self._pending = quotas.pending

    def paths(self) -> tuple[Path | None, ...]:
        return (self._config.file if self._read_again else None, self._quotas_file)

    def is_due(self) -> bool:
        return super().is_due() or are_answered(self._pending)

    def read(self) -> Found:
        self._pending = frozenset()
        config, fixed = self._config, list[str]()
        if self._read_again is not None:
            fresh = self._read_again()
            config = live_part(config, fresh)
            fixed = _differing(config, fresh)
            self._quotas_file = config.quotas.file
        quotas = active_quotas(config)
        self._pending = quotas.pending
        if quotas == self._quotas:
            quotas = self._quotas
        if quotas is not self._quotas or config != self._config:
            quotas.prepare()
        return config, fixed, quotas

    async def apply(self, found: Found, *, is_requested: bool) -> bool:
        config, fixed, quotas = found
        if fixed:
            _log.warning("restart_needed", options=",".join(fixed), file=self._config.file)
        if config == self._config and quotas is self._quotas and not is_requested:
            return False
        before, quotas_before = self._config, self._quotas
        self._config, self._quotas = config, quotas
        await self._take(config, quotas)
        if config != before:
            _log.info(
                "config_reloaded",
                file=config.file,
                changed=",".join(_differing(before, config)),
                dry_run=quotas.dry_run,
                throttle_mode=config.enforcement.throttle_mode,
                log_level=config.observability.log_level,
            )
        if quotas is not quotas_before:
            _log.info(
                "quotas_reloaded",
                file=config.quotas.file,
                entries=len(quotas.entries),
                before=len(quotas_before.entries),
                share=quotas.share,
                share_before=quotas_before.share,
                dry_run=quotas.dry_run,
            )
            cautions = await asyncio.to_thread(quota_warnings, config, quotas)
            # For clients that report how full their buffers are, `records_expire_soon` replaces this guess.
            guess = BELOW_FLOOR if self._metrics.client_reports else None
            _log.warn_of(each for each in cautions if each[0] != guess)
        return True


def live_part(config: Config, fresh: Config) -> Config:
    """The configuration with what may change while the proxy runs taken from `fresh`."""
    quotas, enforcement, observability = fresh.quotas, fresh.enforcement, fresh.observability
    return replace(
        config,
        upstream=_content(config.upstream, fresh.upstream),
        internal_client=_content(config.internal_client, fresh.internal_client),
        quotas=replace(config.quotas, entries=quotas.entries, file=quotas.file, share=quotas.share),
        enforcement=replace(config.enforcement, dry_run=enforcement.dry_run, throttle_mode=enforcement.throttle_mode),
        observability=replace(config.observability, log_level=observability.log_level),
        sources={**config.sources, **{name: fresh.sources[name] for name in LIVE if name in fresh.sources}},
    )


def _content(before: ClientSettings, after: ClientSettings) -> ClientSettings:
    """The new content of a file that has a watch of its own; another file needs a restart."""
    return after if after.file == before.file else before


def _differing(one: object, other: object) -> list[str]:
    """The names of the fields, within groups too, that differ."""
    found: list[str] = []
    for field in fields(one):  # type: ignore[arg-type] # a dataclass
        mine, its = getattr(one, field.name), getattr(other, field.name)
        if field.compare and mine != its:
            found += _differing(mine, its) if is_dataclass(mine) and is_dataclass(its) else [field.name]
    return found
