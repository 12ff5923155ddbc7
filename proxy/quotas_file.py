"""The file of `--quotas-file`: read whole or refused whole, and put over the entries of the flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.config_file import read_toml
from proxy.errors import ConfigError, Problem
from quotas.spec import SpecErrors, load_quotas

if TYPE_CHECKING:
    from pathlib import Path

    from proxy.config import Config
    from quotas.spec import QuotaEntry


def read_quotas_file(path: Path, *, place: str | None = None) -> list[QuotaEntry]:
    """The entries of the file. Raises ConfigError with every problem: unreadable, no TOML, wrong entries.

    `place` names the file in a problem with the file as such; default: the flag.
    """
    problems: list[Problem] = []
    data = read_toml(path, place=place or f"--quotas-file {str(path)!r}", problems=problems)
    if problems:
        raise ConfigError(problems)
    try:
        return load_quotas(dict(data))
    except SpecErrors as error:
        raise ConfigError([Problem(f"{path}: {one.place}", one.message, one.hint) for one in error.errors]) from error


def entries_in_force(config: Config) -> tuple[QuotaEntry, ...]:
    """The entries of the flags and of the file as it stands now; the file's replace those of the same entity.

    Raises ConfigError when the file cannot be taken over. Blocks for the reading of a file.
    """
    by_entity = {entry.entity: entry for entry in config.quotas}
    if config.quotas_file is not None:
        by_entity.update((entry.entity, entry) for entry in read_quotas_file(config.quotas_file))
    return tuple(by_entity.values())
