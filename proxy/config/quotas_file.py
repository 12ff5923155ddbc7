"""The file of `--quotas-file`: read or refused as a whole; its limits replace those of the flags."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from proxy.config.config import Address, Config
from proxy.config.errors import ConfigError
from proxy.config.exemptions import exemptions_of
from proxy.config.host_names import addresses_of
from proxy.config.toml_file import read_toml
from proxy.config.values import parse_fraction, parse_switch
from quotas.entity import DEFAULT_NAME, AnyEntity, Default, Kind, Named
from quotas.entry import QuotaEntry
from quotas.parsing.batch import duplicates, threshold_errors
from quotas.parsing.entry import Reading
from quotas.parsing.file import load_quotas
from quotas.parsing.names import BOOTSTRAP
from quotas.problems import Problem, Refusal
from quotas.registry.configured import Configured

FLAG: Final = "--quota"
_SETTINGS: Final[Mapping[str, Callable[[object], Any]]] = {"quota_share": parse_fraction, "dry_run": parse_switch}
"""Keys of the whole file, each in place of the flag of its name, and their parsers."""


@dataclass(frozen=True)
class Quotas:
    """The active quotas: the entries, those of flags first, and the share that scales every rate, in (0, 1].

    `dry_run`: they are not enforced.
    A file may have a million entries: `prepare` and comparisons take seconds then.
    """

    entries: tuple[QuotaEntry, ...]
    share: float
    dry_run: bool = False

    @cached_property
    def configured(self) -> Configured:
        return Configured(self.entries)

    @cached_property
    def exemptions(self) -> tuple[str, ...]:
        return exemptions_of(self.entries, self.share)

    def prepare(self) -> None:
        """Compute both, outside of the event loop."""
        _ = self.configured, self.exemptions


@dataclass(frozen=True, slots=True)
class Listeners:
    """The ports that this proxy will listen on, as far as they are known before.

    bootstrap   the port of --listen, 0 when the kernel chooses it
    brokers     the ports of brokers; empty when the kernel chooses them
    """

    bootstrap: int
    brokers: tuple[range, ...]

    @classmethod
    def of(cls, address: Address, broker_ports: range | None, node_ports: Mapping[int, int]) -> "Listeners":
        if broker_ports is None:
            return cls(address[1], ())
        return cls(address[1], (broker_ports, *(range(port, port + 1) for port in node_ports.values())))

    def normalized(self, reading: Reading) -> Reading:
        """The entry; the port of --listen becomes `listener=bootstrap`."""
        if reading.entity != Named(Kind.LISTENER, str(self.bootstrap)):
            return reading
        entity = Named(Kind.LISTENER, BOOTSTRAP)
        return reading._replace(entity=entity, entry=reading.entry and replace(reading.entry, entity=entity))

    def problems(self, entity: AnyEntity, place: str) -> list[Problem]:
        """One problem for a port that this proxy does not listen on: no connection would have these limits."""
        if not isinstance(entity, Named) or entity.kind is not Kind.LISTENER or not self.brokers:
            return []
        port = entity.name
        if isinstance(port, Default) or port == BOOTSTRAP or any(int(port) in ports for ports in self.brokers):
            return []
        brokers = [f"{ports[0]}-{ports[-1]}" if len(ports) > 1 else str(ports[0]) for ports in self.brokers]
        allowed = ", ".join([BOOTSTRAP, DEFAULT_NAME, *brokers])
        return [Problem(place, f"{entity}: this proxy does not listen on port {port}", f"allowed: {allowed}")]


def _in(path: Path | None, problems: Iterable[Problem]) -> list[Problem]:
    return [replace(problem, place=f"{path}: {problem.place}") for problem in problems]


def active_quotas(config: Config) -> Quotas:
    """The quotas of the flags and of the file as it is now. A limit of the file replaces the flag's of the same
    name and entity; `quota_share` and `dry_run` of the file replace the flags'.

    Raises ConfigError when the file has a problem. Blocks while it reads the file and resolves host names in it.
    """
    options, listening = config.quotas, config.listening
    listeners = Listeners.of(listening.address, listening.broker_ports, listening.node_ports)
    entries, settings = read_quotas(options.entries, options.file, listeners)
    return Quotas(
        entries, settings.get("quota_share", options.share), settings.get("dry_run", config.enforcement.dry_run)
    )


def read_quotas(
    by_flag: Iterable[QuotaEntry],
    path: Path | None,
    listeners: Listeners,
    *,
    place: str | None = None,
    all_flags_known: bool = True,
) -> tuple[tuple[QuotaEntry, ...], Mapping[str, Any]]:
    """The entries of flags and of the file at `path`, and the values of its keys above all tables. Raises ConfigError
    with every problem of the file, and of the entries together.

    `place` names the file in problems of the whole file; default: the flag. A wrong table counts by its entity, where
    that is known. No problem is reported that a wrong table or an unknown flag could solve once it is correct.
    """
    problems: list[Problem] = []
    settings: dict[str, Any] = {}
    placed = () if path is None else _read_file(path, place or f"--quotas-file {str(path)!r}", settings, problems)
    flags = [listeners.normalized(Reading(FLAG, entry.entity, entry)) for entry in by_flag]
    of_file = [listeners.normalized(reading) for reading in placed]
    problems += _errors_together(flags, listeners)
    problems += _in(path, _errors_together(of_file, listeners))
    wrong = [reading for reading in of_file if reading.entry is None]
    if not all_flags_known:
        wrong.append(Reading(FLAG))
    entries = _merged(_entries(flags), _entries(of_file))
    problems += [replace(error, place=str(path or FLAG)) for error in threshold_errors(entries, wrong)]
    if problems:
        raise ConfigError(problems)
    return entries, settings


def _read_file(path: Path, place: str, settings: dict[str, Any], problems: list[Problem]) -> tuple[Reading, ...]:
    """Its tables, wrong ones included; one without an entity if it cannot be read. Adds its settings and problems."""
    data = read_toml(path, place=place, problems=problems)
    if problems:
        return (Reading(str(path)),)
    for key, parse in _SETTINGS.items():
        if key in data:
            try:
                settings[key] = parse(data[key])
            except Refusal as error:
                problems += error.at(f"{path}: {key} = {data[key]!r}")
    found = load_quotas(data, addresses_of, settings=tuple(_SETTINGS))
    problems += _in(path, found.errors)
    return found.placed


def _errors_together(readings: Iterable[Reading], listeners: Listeners) -> Iterator[Problem]:
    """An error for each listener that is none, and for each entity that is there twice."""
    entities = [(reading.place, reading.entity) for reading in readings if reading.entity is not None]
    for place, entity in entities:
        yield from listeners.problems(entity, place)
    yield from duplicates(entities)


def _entries(readings: Iterable[Reading]) -> list[QuotaEntry]:
    return [reading.entry for reading in readings if reading.entry is not None]


def _merged(by_flag: list[QuotaEntry], of_file: list[QuotaEntry]) -> tuple[QuotaEntry, ...]:
    """The entries of flags without the limits that the file has for the same entity, and the entries of the file."""
    flags = {entry.entity: entry for entry in by_flag}
    for entry in of_file:
        flag = flags.get(entry.entity)
        if flag is not None:
            replaced = {*entry.limits, *entry.unlimited}
            limits = {name: rate for name, rate in flag.limits.items() if name not in replaced}
            unlimited = tuple(name for name in flag.unlimited if name not in replaced)
            flags[entry.entity] = replace(flag, limits=limits, unlimited=unlimited, group=entry.group)
    return (*(flag for flag in flags.values() if flag.limits or flag.unlimited), *of_file)
