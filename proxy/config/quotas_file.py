"""The file of `--quotas-file`, read or refused as a whole, and checked together with the flags."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from proxy.config.config import Config, ListeningOptions
from proxy.config.entry_lines import lines_of
from proxy.config.errors import ConfigError
from proxy.config.files import read_text
from proxy.config.host_names import HostNames
from proxy.config.quota_sources import Quotas, QuotaSources, merged
from proxy.config.toml_file import read_toml
from proxy.config.values import parse_fraction, parse_switch
from quotas.entity import DEFAULT_NAME, AnyEntity, Default, EntityKind, Named
from quotas.entry import QuotaEntry
from quotas.parsing.batch import duplicates, errors_together
from quotas.parsing.entry import Reading
from quotas.parsing.file import load_quotas
from quotas.parsing.names import BOOTSTRAP, IP, entity_name, is_host_name
from quotas.problems import InvalidValue, Problem

FLAG: Final = "--quota"
_SETTINGS: Final[Mapping[str, Callable[[object], Any]]] = {"quota_share": parse_fraction, "dry_run": parse_switch}
"""Keys of the whole file, each overriding the flag of its name, and their parsers."""


def active_quotas(config: Config) -> Quotas:
    """The quotas of the flags and of the file as it is now; those of the file are stronger. `quota_share` and
    `dry_run` of the file replace the flags'.

    Raises ConfigError when the file has a problem. Blocks while it reads the file, and for a second while it waits for
    host names.
    """
    options, names = config.quotas, HostNames()
    sources, settings = read_quotas(options.entries, options.file, config.listening, names=names)
    where = config.sources.get("quota", ("", "flag"))[1]
    if where not in {"flag", "default"}:  # a variable, or the file of --config
        sources = {where if name == FLAG else name: each for name, each in sources.items()}
    share, dry_run = settings.get("quota_share", options.share), settings.get("dry_run", config.enforcement.dry_run)
    return Quotas(sources, share, dry_run, frozenset(names.pending))


def read_quotas(
    by_flag: Iterable[QuotaEntry | None],
    path: Path | None,
    listening: ListeningOptions,
    place: str | None = None,
    names: HostNames | None = None,
) -> tuple[QuotaSources, Mapping[str, Any]]:
    """The entries of flags, None for a wrong one, and of the file at `path`, merged, and the values of its keys above
    all tables. Raises ConfigError with every problem of the file, and of the entries together.

    `place` names the file in problems of the whole file; default: the flag. A wrong table counts by its entity, where
    that is known. No problem is reported that a wrong table or an unknown flag could solve once it is correct.
    """
    problems: list[Problem] = []
    settings: dict[str, Any] = {}
    names = names or HostNames()
    placed = {FLAG: [_of_flag(entry, names, problems) for entry in by_flag]}
    if path is not None:
        placed[str(path)] = _read_file(path, place or f"--quotas-file {str(path)!r}", settings, problems, names)
    placed = {name: [_normalized(reading, listening) for reading in readings] for name, readings in placed.items()}
    for name, readings in placed.items():
        problems += _in(name, _errors_together(readings, listening))
    problems += _in(str(path), _of_one_address(placed[FLAG], placed.get(str(path), ())))
    sources = merged({name: _entries(readings) for name, readings in placed.items()})
    wrong = [reading for readings in placed.values() for reading in readings if reading.entry is None]
    *_, strongest = placed
    problems += _in(strongest, errors_together(tuple(chain.from_iterable(sources.values())), wrong))
    if problems:
        raise ConfigError(problems)
    return sources, settings


def _in(source: str, problems: Iterable[Problem]) -> list[Problem]:
    return [replace(each, place=f"{source}: {each.place}" if each.place else source) for each in problems]


def _entries(readings: Iterable[Reading]) -> tuple[QuotaEntry, ...]:
    return tuple(reading.entry for reading in readings if reading.entry is not None)


def _of_flag(entry: QuotaEntry | None, names: HostNames, problems: list[Problem]) -> Reading:
    """An entry of a flag: a host that was not known when the flag was parsed may be known now."""
    if entry is None:
        return Reading("")
    entity = entry.entity
    if isinstance(entity, Named) and entity.kind is EntityKind.IP and is_host_name(entity.name):
        try:
            entity = Named(EntityKind.IP, entity_name(IP, entity.name, real_name=True, resolve=names.addresses_of))
        except InvalidValue as error:
            problems += error.at(f"{FLAG} 'ip={entity.name}'")
            return Reading("")
        entry = replace(entry, entity=entity)
    return Reading("", entity, entry)


def _read_file(
    path: Path, place: str, settings: dict[str, Any], problems: list[Problem], names: HostNames
) -> list[Reading]:
    """Its tables, wrong ones included; one without an entity if it cannot be read. Adds its settings and problems."""
    of_file: list[Problem] = []
    data = read_toml(path, place=place, problems=of_file)
    problems += of_file
    if of_file:
        return [Reading("")]
    for key, parse in _SETTINGS.items():
        if key in data:
            try:
                settings[key] = parse(data[key])
            except InvalidValue as error:
                problems += error.at(f"{path}: {key} = {data[key]!r}")
    found = load_quotas(data, names.addresses_of, settings=tuple(_SETTINGS))
    problems += _in(str(path), found.errors)
    lines = lines_of(read_text(path, place=place))
    return [_with_line(reading, lines.get(reading.place, 0)) for reading in found.placed]


def _with_line(reading: Reading, line: int) -> Reading:
    return reading._replace(entry=reading.entry and replace(reading.entry, line=line))


def _normalized(reading: Reading, listening: ListeningOptions) -> Reading:
    """The entry; the port of --listen becomes `listener=bootstrap`."""
    if reading.entity != Named(EntityKind.LISTENER, str(listening.address[1])):
        return reading
    entity = Named(EntityKind.LISTENER, BOOTSTRAP)
    return reading._replace(entity=entity, entry=reading.entry and replace(reading.entry, entity=entity))


def _errors_together(readings: Iterable[Reading], listening: ListeningOptions) -> Iterator[Problem]:
    """An error for each listener that is none, and for each entity that is there twice. That of host names with one
    address may pass.
    """
    entities = [(_place_of(reading), reading.entity) for reading in readings if reading.entity is not None]
    for place, entity in entities:
        yield from _listener_problems(entity, place, listening)
    resolved = {reading.entity for reading in readings if reading.entry is not None and reading.entry.host}
    for may_pass in (False, True):
        found = duplicates(each for each in entities if (each[1] in resolved) == may_pass)
        yield from [replace(each, may_pass=may_pass) for each in found]


def _place_of(reading: Reading) -> str:
    """The place of an entry; with its host name, whose address its entity has."""
    host = f"ip={reading.entry.host}" if reading.entry is not None and reading.entry.host else ""
    return " ".join(filter(None, [reading.place, host]))


def _of_one_address(by_flag: Iterable[Reading], of_file: Iterable[Reading]) -> Iterator[Problem]:
    """An error for each address that flags and file have by two names: the file is not meant to replace that limit."""
    entries = {reading.entity: reading.entry for reading in by_flag if reading.entry is not None}
    for reading in of_file:
        other, entry = entries.get(reading.entity), reading.entry
        if other is not None and entry is not None and other.host.lower() != entry.host.lower():
            hint = f"put its limits into one entry: {FLAG} ip={other.host or str(other.entity).partition(':')[2]}"
            yield Problem(_place_of(reading), f"{entry.entity} is given twice", hint, may_pass=True)


def _listener_problems(entity: AnyEntity, place: str, listening: ListeningOptions) -> Iterator[Problem]:
    """One for a port that this proxy will not listen on, as far as that is known: no connection has these limits."""
    ports, nodes = listening.broker_ports, listening.node_ports.values()
    if not isinstance(entity, Named) or entity.kind is not EntityKind.LISTENER or ports is None:
        return
    port = entity.name
    if not (isinstance(port, Default) or port == BOOTSTRAP or int(port) in ports or int(port) in nodes):
        of_range = [f"{ports[0]}-{ports[-1]}"] if ports else []
        allowed = ", ".join([BOOTSTRAP, DEFAULT_NAME, *of_range, *map(str, nodes)])
        yield Problem(place, f"{entity}: this proxy does not listen on port {port}", f"allowed: {allowed}")
