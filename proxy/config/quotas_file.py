"""The file of `--quotas-file`: read whole or refused whole, and put over the entries of the flags."""

from __future__ import annotations

import stat
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from proxy.config.errors import ConfigError, Problem
from proxy.config.host_names import addresses_of
from proxy.config.toml_file import read_toml
from proxy.config.values import InvalidValue, parse_fraction
from quotas.entity import DEFAULT_NAME, Default, Kind, Named
from quotas.spec.names import BOOTSTRAP
from quotas.spec.parse import Placed, duplicates, load_quotas, threshold_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from proxy.config.config import Address, Config
    from quotas.entity import AnyEntity
    from quotas.spec.batch import Wrong
    from quotas.spec.parse import QuotaEntry, SpecError

FLAG: Final = "--quota"
SHARE: Final = "quota_share"
"""The key of the file that takes the place of `--quota-share`."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """What is in force: the entries, each entity once, and the share that scales every rate, in (0, 1]."""

    entries: tuple[QuotaEntry, ...]
    share: float


@dataclass(frozen=True, slots=True)
class FileQuotas:
    """What one reading of the file found.

    placed     its tables, in its order, those that are wrong too; one without an entity stands for a file that could
               not be read at all
    share      None when it leaves that to the flag
    problems   what is wrong with the file, and with each of its tables
    """

    placed: tuple[Placed, ...] = ()
    share: float | None = None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Listeners:
    """The ports that this proxy listens on, as far as they are known before it does.

    bootstrap   the port of --listen, 0 when the kernel chooses it
    brokers     the ports that stand for brokers; empty when the kernel chooses them
    """

    bootstrap: int
    brokers: tuple[range, ...]

    @classmethod
    def of(cls, listen: Address, broker_ports: range | None, broker_port: Mapping[int, int]) -> Listeners:
        """Those of a configuration (see `proxy.config.config.Config`)."""
        if broker_ports is None:
            return cls(listen[1], ())
        return cls(listen[1], (broker_ports, *(range(port, port + 1) for port in broker_port.values())))

    def named(self, entity: AnyEntity) -> AnyEntity:
        """The entity; where it is the listener of --listen by its port, by its name."""
        if isinstance(entity, Named) and entity.kind is Kind.LISTENER and entity.name == str(self.bootstrap):
            return Named(Kind.LISTENER, BOOTSTRAP)
        return entity

    def problems(self, entity: AnyEntity, place: str) -> list[Problem]:
        """One, for a port that this proxy does not listen on: its limits would hold nobody."""
        if not isinstance(entity, Named) or entity.kind is not Kind.LISTENER or not self.brokers:
            return []
        port = entity.name
        if isinstance(port, Default) or port == BOOTSTRAP or any(int(port) in ports for ports in self.brokers):
            return []
        brokers = [f"{ports[0]}-{ports[-1]}" if len(ports) > 1 else str(ports[0]) for ports in self.brokers]
        allowed = ", ".join([BOOTSTRAP, DEFAULT_NAME, *brokers])
        return [Problem(place, f"{entity}: this proxy does not listen on port {port}", f"allowed: {allowed}")]


def read_quotas_file(path: Path, *, place: str | None = None) -> FileQuotas:
    """What the file says, and every problem: unreadable, no TOML, a wrong share, wrong entries.

    A pipe is refused: it can be read once only, and opening it may take for ever, where a file is read again and again.

    `place` names the file in a problem with the file as such; default: the flag. Blocks for the reading of the file and
    for the resolution of host names in it.
    """
    problems: list[Problem] = []
    place = place or f"--quotas-file {str(path)!r}"
    data: Mapping[str, object] = {}
    if _is_stream(path):
        problems.append(Problem(place, "is no regular file", "it is read again and again: give the path of a file"))
    else:
        data = read_toml(path, place=place, problems=problems)
    if problems:
        return FileQuotas((Placed(place),), None, tuple(problems))
    share: float | None = None
    if SHARE in data:
        try:
            share = parse_fraction(data[SHARE])
        except InvalidValue as error:
            problems.append(Problem(f"{path}: {SHARE} = {data[SHARE]!r}", error.message, error.hint))
    found = load_quotas(data, addresses_of, settings=(SHARE,))
    problems += _at(path, found.errors)
    return FileQuotas(found.placed, share, tuple(problems))


def _at(path: Path, errors: Iterable[SpecError]) -> list[Problem]:
    return [Problem(f"{path}: {one.place}", one.message, one.hint, one.may_pass) for one in errors]


def _is_stream(path: Path) -> bool:
    """A pipe, a device or a socket; what cannot be looked at is told of by who reads it."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def quotas_in_force(config: Config) -> Quotas:
    """Those of the flags and of the file as it stands now. An entry of the file replaces the flag's of the same entity,
    and so does the share.

    Raises ConfigError when the file cannot be taken over. Blocks as `read_quotas_file`.
    """
    in_file = FileQuotas() if config.quotas_file is None else read_quotas_file(config.quotas_file)
    listeners = Listeners.of(config.listen, config.broker_ports, config.broker_port)
    entries = entries_together(config.quotas, in_file, config.quotas_file, listeners)
    return Quotas(entries, config.quota_share if in_file.share is None else in_file.share)


def entries_together(
    by_flag: Iterable[QuotaEntry],
    in_file: FileQuotas,
    path: Path | None,
    listeners: Listeners,
    *,
    all_flags_known: bool = True,
) -> tuple[QuotaEntry, ...]:
    """Those of flags and of the file at `path`. Raises ConfigError with all that is wrong with the file, and with the
    entries together.

    Tables that are wrong are judged by whom they are for, as far as that can be said; and nothing is called wrong that
    they, or flags that are not known, might put right.
    """
    problems = list(in_file.problems)
    by_entity = _distinct(by_flag, listeners, problems)
    whom = [(each.place, listeners.named(each.entity)) for each in in_file.placed if each.entity is not None]
    for place, owner in whom:
        problems += listeners.problems(owner, f"{path}: {place}")
    if path is not None:
        problems += _at(path, duplicates(whom))
    wrong: list[Wrong] = [] if all_flags_known else [(None, {})]
    for each in in_file.placed:
        entity = each.entity and listeners.named(each.entity)
        if each.entry is None or entity is None:
            wrong.append((entity, each.limits))
        else:
            by_entity[entity] = _of(entity, each.entry)
    entries = tuple(by_entity.values())
    where = FLAG if path is None else str(path)
    problems += [Problem(where, error.message, error.hint) for error in threshold_errors(entries, wrong)]
    if problems:
        raise ConfigError(problems)
    return entries


def _distinct(
    entries: Iterable[QuotaEntry], listeners: Listeners, problems: list[Problem]
) -> dict[AnyEntity, QuotaEntry]:
    """The entries of flags by their entities, and a problem more for each that is there already or nowhere."""
    by_entity: dict[AnyEntity, QuotaEntry] = {}
    for entry in entries:
        entity = listeners.named(entry.entity)
        if entity in by_entity:
            problems.append(Problem(FLAG, f"{entity} is given twice", "put its limits into one entry"))
        else:
            problems += listeners.problems(entity, FLAG)
        by_entity[entity] = _of(entity, entry)
    return by_entity


def _of(entity: AnyEntity, entry: QuotaEntry) -> QuotaEntry:
    return entry if entity is entry.entity else replace(entry, entity=entity)
