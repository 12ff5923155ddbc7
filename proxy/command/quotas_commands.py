"""The commands below `quotas`: set, unset, list, diff, apply and log.

Exit codes: 0, 1 if the topic cannot be read or written or a member has not applied the change in time, 2 for a bad
option, SPEC or file, and 3 if `diff` or `apply --dry-run` found a difference.
"""

import json
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import cloup

from proxy.config.config import Config
from proxy.config.errors import ConfigError
from proxy.config.option_types import Checked
from proxy.config.values import parse_duration
from proxy.observability.logs import one_line
from quotas.problems import InvalidValues, Problem

if TYPE_CHECKING:
    from proxy.command.quotas_topic import StoredQuotas
    from quotas.entry import QuotaEntry
    from quotas.fleet.versions import Versions
    from quotas.stored.record import Record

EXIT_DIFFERENCE: Final = 3
_CONNECTING: Final = {
    "--config": ("FILE.toml", "Read these options, and all others of run, from the file of --config."),
    "--bootstrap-servers": ("HOST:PORT[,HOST:PORT...]", "Brokers of the cluster, not the proxy."),
    "--command-config": ("FILE", "How to connect to brokers, as for run."),
    "--own-client-config": ("FILE", "How internal clients connect, as for run; overrides --command-config."),
    "--quotas-topic": ("NAME", "The topic that the proxies follow."),
    "--fleet-topic": ("TOPIC", "The topic of the fleets whose members the command waits for."),
}
T = TypeVar("T")


def _connecting(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of `run` that say where the topic is. Their environment variables count as well."""
    options = [cloup.option(flag, metavar=metavar, help=text) for flag, (metavar, text) in _CONNECTING.items()]
    return cloup.option_group("Connecting, with the environment variables of run", *options)(command)


_waiting: Final = cloup.option(
    "--timeout",
    type=Checked("DURATION", parse_duration),
    default="20s",
    show_default=True,
    help="How long to wait until all members of fleets apply the change. Those that were killed count for 16 s.",
)


def _config_of(ctx: click.Context, given: dict[str, Any]) -> Config:
    """The configuration of a `run` with these options. Raises ConfigError."""
    from proxy.config.checks import config_of

    flags = {flag: given.get(flag.removeprefix("--").replace("-", "_")) for flag in _CONNECTING}
    arguments = [part for flag, value in flags.items() if value is not None for part in (flag, value)]
    root = ctx.find_root()
    assert isinstance(root.command, click.Group)  # noqa: S101 - of the whole program
    with root.command.commands["run"].make_context("run", arguments, parent=root) as run_context:
        config = config_of(run_context, check_quotas=False)
    if config.quotas.topic is None:
        raise ConfigError([Problem("--quotas-topic", "is missing", "name the topic that the proxies follow")])
    return config


def _run(config: Config, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it in an event loop of internal clients. A failure becomes one line."""
    import asyncio

    from proxy.internal_clients.event_loops import new_loop
    from proxy.internal_clients.failures import LogFailed

    try:
        with asyncio.Runner(loop_factory=partial(new_loop, config.event_loop)) as runner:
            return runner.run(work())
    except LogFailed as error:
        raise click.ClickException(one_line(error.message)) from error


def _read(config: Config) -> "StoredQuotas":
    """The topic as it is now."""
    from proxy.command.quotas_topic import stored_quotas

    async def read() -> "StoredQuotas":
        async with stored_quotas(config, creates=False) as stored:
            return stored

    return _run(config, read)


async def _write(config: Config, timeout_seconds: float, change: "Callable[[StoredQuotas], Sequence[Record]]") -> bool:
    """Write what `change` makes of the quotas in the topic, and wait for the members of fleets. Returns whether all of
    them apply it.
    """
    from proxy.command.quotas_topic import Waiting, stored_quotas

    waiting = Waiting(config)
    try:
        async with stored_quotas(config, creates=True) as stored:
            records = change(stored)
            if not records:
                click.echo("# nothing to change")
                return True
            await waiting.open()
            began = time.monotonic()
            offset = await stored.write(records)
            versions = await waiting.wait(offset, timeout_seconds)
            seconds = time.monotonic() - began
    finally:
        await waiting.close()
    if waiting.problem:
        click.echo(f"# written as version {offset}; fleets cannot be read: {one_line(waiting.problem)}", err=True)
    else:
        _show(versions, offset, seconds)
    return not versions.missing


def _show(versions: "Versions", offset: int, seconds: float) -> None:
    applied, missing, silent = versions
    if applied or missing:
        click.echo(f"# in force at {applied} of {applied + len(missing)} members after {max(0.1, seconds):.1f} s")
    else:
        click.echo(f"# written as version {offset}. No member of a fleet follows this topic; other proxies apply it")
        click.echo("# within 2 s, which this command cannot see: /config of each shows the quotas in force")
    for name in missing:
        click.echo(f"# missing: {one_line(name)}")
    for name in silent:
        click.echo(f"# silent, perhaps it has not read this: {one_line(name)}")


def _change(config: Config, timeout_seconds: float, change: "Callable[[StoredQuotas], Sequence[Record]]") -> None:
    sys.exit(0 if _run(config, lambda: _write(config, timeout_seconds, change)) else 1)


@contextmanager
def _blaming(text: str) -> Iterator[None]:
    """Errors of a SPEC name it."""
    try:
        yield
    except InvalidValues as error:
        raise ConfigError(error.at(text)) from error


@cloup.group("quotas", short_help="Change the quotas of all proxies, in the topic that they follow.")
def quotas() -> None:
    """Show and change the quotas in the topic of --quotas-topic, which all proxies follow.

    \b
      kafka-quota-proxy quotas set 'client-id=flights-etl' producer_byte_rate=60MB

    Exit codes: 0; 1 if the topic cannot be read or written, or not all members of a fleet apply a change in time; 2 for
    a bad option, SPEC or file; 3 if diff or apply --dry-run finds a difference.
    """


@quotas.command("set", short_help="Set limits of one entity.")
@_connecting
@_waiting
@cloup.argument("entity", help="The scope of a SPEC, such as client-id=etl or user=alice,client-id=<default>.")
@cloup.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...", help="Limits and options of a SPEC.")
@click.pass_context
def set_limits(ctx: click.Context, /, entity: str, settings: tuple[str, ...], timeout: float, **given: Any) -> None:
    """Set limits and options of one entity, and keep its others. Members of a resource group are replaced key by key.

    \b
      kafka-quota-proxy quotas set 'user=alice,client-id=<default>' consumer_byte_rate=5MB burst_seconds=0.5
    """
    from proxy.command.quotas_topic import author_of
    from proxy.config.host_names import HostNames
    from quotas.parsing.text import split_spec
    from quotas.stored.changes import edited, parts_of
    from quotas.stored.record import Record, entity_of, key_of

    spec = ",".join((entity, *settings))
    config = _config_of(ctx, given)

    def change(stored: "StoredQuotas") -> "Sequence[Record]":
        before = stored.table.get(key_of(found)) or Record(found)
        after = edited(before, rest, (), author_of(config))
        return [] if after.fields == before.fields else [after]

    with _blaming(f"quotas set {spec!r}"):
        names, rest = parts_of(split_spec(spec), HostNames().addresses_of)
        found = entity_of(names)
        _change(config, timeout, change)


@quotas.command("unset", short_help="Remove limits of one entity.")
@_connecting
@_waiting
@cloup.argument("entity", help="The scope of a SPEC, such as client-id=etl.")
@cloup.argument("keys", nargs=-1, metavar="[KEY...]", help="What to remove; without any key, all.")
@click.pass_context
def unset(ctx: click.Context, /, entity: str, keys: tuple[str, ...], timeout: float, **given: Any) -> None:
    """Remove limits and options of one entity. It is not an error if they are not set."""
    from proxy.command.quotas_topic import author_of
    from proxy.config.host_names import HostNames
    from quotas.parsing.text import split_spec
    from quotas.stored.changes import edited, parts_of, removal
    from quotas.stored.record import entity_of, key_of

    config = _config_of(ctx, given)

    def change(stored: "StoredQuotas") -> "Sequence[Record]":
        before = stored.table.get(key_of(found))
        if before is None or (keys and before.fields.keys().isdisjoint(keys)):
            return []
        author = author_of(config)
        return [edited(before, {}, keys, author) if keys else removal(before, author)]

    with _blaming(f"quotas unset {entity!r}"):
        names, rest = parts_of(split_spec(entity), HostNames().addresses_of)
        found = entity_of(names)
        if rest:
            raise click.UsageError(f"{next(iter(rest))!r} is no part of the scope; name what to remove after it", ctx)
        _change(config, timeout, change)


@quotas.command("list", short_help="Show the quotas in the topic.")
@_connecting
@cloup.option("--json", "as_json", is_flag=True, help="Print a JSON list of records, for programs.")
@click.pass_context
def list_quotas(ctx: click.Context, /, *, as_json: bool, **given: Any) -> None:
    """Show the quotas in the topic, one line for each entity, and who set them last."""
    from quotas.stored.changes import shown
    from quotas.stored.record import as_json as json_of

    stored = _read(_config_of(ctx, given))
    records = sorted(stored.table.records.values(), key=lambda record: str(record.entity))
    if as_json:
        click.echo(json.dumps([json_of(record) for record in records]))
        return
    for each in records:
        click.echo(f"{one_line(shown(each))}  # {one_line(each.author.by or '?')}, {one_line(each.author.at)}")
    for line in stored.refused:
        click.echo(f"# ignored record at {one_line(line)}", err=True)


_file: Final = cloup.argument(
    "file", type=cloup.Path(exists=True, dir_okay=False), metavar="FILE.toml", help="A quotas file."
)


def _wanted(file: str) -> "tuple[Sequence[QuotaEntry], list[str]]":
    """The entries of a quotas file, and its settings, which are no quotas. Raises ConfigError."""
    from proxy.config.config import ListeningOptions
    from proxy.config.quotas_file import read_quotas

    sources, settings = read_quotas((), Path(file), ListeningOptions(broker_ports=None), file)
    return sources[file], list(settings)


def _differences(config: Config, file: str, stored: "StoredQuotas") -> "Sequence[Record]":
    """The changes that make the topic equal to the file; printed, one line for each limit."""
    from proxy.command.quotas_topic import author_of, records_of
    from quotas.stored.changes import differences, lines_of
    from quotas.stored.record import key_of

    entries, settings = _wanted(file)
    author = author_of(config)
    found = differences(stored.table.records, records_of(entries, author))
    changes = [replace(each, author=author) for each in found]
    for each in changes:
        for line in lines_of(stored.table.get(key_of(each.entity)), each):
            click.echo(one_line(line))
    for name in settings:
        click.echo(f"# {name} of {file} stays with each proxy's own file", err=True)
    with _blaming(file):  # before anyone confirms what cannot be written
        stored.table.check(changes)
    return changes


@quotas.command("diff", short_help="Show how a quotas file differs from the topic.")
@_connecting
@_file
@click.pass_context
def diff(ctx: click.Context, /, file: str, **given: Any) -> None:
    """Show what `apply` would change: + is new, - is removed, ~ is changed. Exits with 3 if there is a difference."""
    config = _config_of(ctx, given)
    _wanted(file)
    sys.exit(EXIT_DIFFERENCE if _differences(config, file, _read(config)) else 0)


@quotas.command("apply", short_help="Make the topic equal to a quotas file.")
@_connecting
@_waiting
@cloup.option("--dry-run", is_flag=True, help="Only show the differences: exit with 3 if there are any, for CI.")
@cloup.option("--yes", is_flag=True, help="Do not ask.")
@_file
@click.pass_context
def apply(ctx: click.Context, /, file: str, timeout: float, *, dry_run: bool, yes: bool, **given: Any) -> None:
    """Make the topic equal to a quotas file: set what differs, and remove the entities that the file does not have. It
    shows the changes, and asks before it writes them, all at once.
    """
    config = _config_of(ctx, given)
    _wanted(file)
    if dry_run:
        ctx.invoke(diff, file=file, **given)

    def change(stored: "StoredQuotas") -> "Sequence[Record]":
        changes = _differences(config, file, stored)
        if changes and not yes:
            click.confirm("Apply these changes?", abort=True)
        return changes

    _change(config, timeout, change)


@quotas.command("log", short_help="Show who has changed what.")
@_connecting
@cloup.option("--json", "as_json", is_flag=True, help="Print a JSON list, for programs.")
@click.pass_context
def log(ctx: click.Context, /, *, as_json: bool, **given: Any) -> None:
    """Show the changes that the topic still has, oldest first: all of the last 7 days, and the latest of each entity.
    The time is the broker's. Names are what the authors wrote: anyone who can write to the topic can write any.
    """
    found = []
    for each in _read(_config_of(ctx, given)).changes:
        at = datetime.fromtimestamp(each.time_ms / 1000, UTC).isoformat(timespec="seconds")
        found.append({"offset": each.offset, "at": at, **asdict(each.author), "changes": list(each.lines)})
    if as_json:
        click.echo(json.dumps(found))
        return
    for change in found:
        click.echo(one_line(f"{change['at']} by {change['by'] or '?'} from {change['origin'] or '?'}"))
        for line in change["changes"]:
            click.echo(f"  {one_line(line)}")
