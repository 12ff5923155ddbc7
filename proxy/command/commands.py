"""The commands: `run`, `check`, `check-config`, `healthcheck`, `explain`, `top`, `fleet`, `advise`, `simulate`,
`quotas`, `schema`, `install-help`.

Exit codes: 0 after a clean drain, 2 for a bad configuration, 1 for anything else; one message on stderr, no traceback.
Slow imports (the server, HTTP, Kafka's schemas) are made only by the command that needs them.
"""

import json
import logging
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import cloup

from proxy.command.page_commands import PAGE_COMMANDS
from proxy.command.quotas_commands import quotas
from proxy.config.config import GROUPS, Config
from proxy.config.errors import ConfigError, StartError
from proxy.config.given import Given, check_values
from proxy.config.limits_help import CommandWithLimits
from proxy.config.option_types import ARGUMENTS, IGNORE_ENVIRONMENT, Checked
from proxy.config.values import parse_bytes_per_second, parse_duration, parse_size
from proxy.observability.build import BUILD
from proxy.observability.logs import one_line
from quotas.modes import MODES
from quotas.parsing.options import parse_request_cost
from quotas.problems import InvalidValue, Problem, did_you_mean

EXIT_FAILURE: Final = 1

_CONTEXT_SETTINGS: Final = cloup.Context.settings(
    help_option_names=["-h", "--help"],
    formatter_settings=cloup.HelpFormatter.settings(max_width=110, col1_max_width=34, row_sep=None),
)


class _Commands(cloup.Group):
    """Gives a hint to a user who forgets `run` or mistypes a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if any(error.option_name in param.opts for param in run.params):
                text = f"{error.option_name} is an option of run: kafka-quota-proxy run {shlex.join(given)}"
                raise click.UsageError(text, ctx) from error
            raise

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] not in self.commands:
            hint = "did you mean 'run'?" if args[0] in {"start", "serve"} else did_you_mean(args[0], self.commands)
            ctx.fail(f"There is no command {args[0]!r}: {hint}")
        return super().resolve_command(ctx, args)


@cloup.group(cls=_Commands, context_settings=_CONTEXT_SETTINGS)
@cloup.version_option(
    package_name="kafka-quota-proxy", prog_name="kafka-quota-proxy", message=f"%(prog)s, version %(version)s ({BUILD})"
)
def main() -> None:
    """A proxy for Kafka clients that enforces quotas smoothly, second by second.

    Start with a dry run, which forwards everything and only counts and logs what it would have throttled.

    \b
      kafka-quota-proxy run --dry-run --bootstrap-servers broker-1:9092 \\
          --quota 'client-id=<default>,producer_byte_rate=5MB'

    Then point bootstrap.servers of your client at 127.0.0.1:19092.

    Exit codes: 0 after a clean drain on SIGTERM or SIGINT, 2 for a bad configuration, 1 for anything else.
    """


def _all_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    for title, options in reversed(GROUPS.items()):
        command = cloup.option_group(title, *options)(command)
    return command


@main.command("run", cls=CommandWithLimits, short_help="Forward Kafka traffic and enforce quotas.")
@_all_groups
@click.pass_context
def run(ctx: click.Context, /, **_options: object) -> None:
    """Forward Kafka traffic and enforce quotas, until SIGTERM or SIGINT.

    Start with --dry-run, which forwards everything and only counts and logs what it would have throttled.

    \b
      kafka-quota-proxy run --dry-run --bootstrap-servers broker-1:9092 \\
          --quota 'client-id=<default>,producer_byte_rate=5MB'

    Then run it without --dry-run, here as a sidecar that counts all its traffic under one client id:

    \b
      kafka-quota-proxy run --bootstrap-servers broker-1:9092 \\
          --client-id spark-etl --quota 'client-id=spark-etl,producer_byte_rate=5MB'

    The value of an option comes from its flag, then its environment variable, then the file of --config, then its
    default. An empty variable counts as unset.
    """
    from proxy.config.cautions import repetitions
    from proxy.config.checks import config_of
    from proxy.config.variables import service_variables, unknown_variables
    from proxy.observability.logs import EventLog, configure

    unknown = unknown_variables(ctx, main.commands, os.environ)
    try:
        config = config_of(ctx)
    except ConfigError:  # perhaps because such a variable was meant to set something
        for _, fields in unknown:
            click.echo(f"warning: {fields['variable']}: unknown; did you mean {fields['did_you_mean']}?", err=True)
        raise
    configure(config.observability.log_format, config.observability.log_level)
    log = EventLog(__name__)
    log.warn_of(unknown)
    log.warn_of(repetitions(ctx, config))
    for variable, service in service_variables(ctx, os.environ):
        log.info("service_variable_ignored", variable=variable, service=service)
    if ignored := config.upstream.ignored:
        log.info("client_properties_ignored", file=config.upstream.file, keys=",".join(ignored))
    sys.exit(_serve(config, partial(_config_again, ctx.meta[ARGUMENTS])))


def _config_again(arguments: Sequence[str]) -> Config:
    """The configuration of this command line, with the file of --config as it is now. Raises ConfigError."""
    from proxy.config.checks import config_of

    try:
        ctx = run.make_context("run", list(arguments))
    except click.ClickException as error:
        raise ConfigError((Problem("--config", error.format_message()),)) from error
    with ctx:
        return config_of(ctx, check_quotas=False)


def _serve(config: Config, read_again: Callable[[], Config]) -> int:
    """Run the server; an error that ends it becomes one line on stderr and an exit code."""
    from proxy.process import server

    try:
        return server.run(config, read_again)
    except StartError:
        raise
    except Exception as error:
        if config.observability.log_level == "debug":
            logging.getLogger(__name__).debug("failed", exc_info=True)
        click.echo(f"error: {type(error).__name__}: {' '.join(str(error).split()) or 'no further details'}", err=True)
        click.echo("  --log-level debug shows where", err=True)
        return EXIT_FAILURE


@main.command(
    "check",
    short_help="Try what run needs: ports, brokers, TLS, logins, topics.",
    context_settings={"ignore_unknown_options": True},
)
@cloup.argument(
    "arguments", nargs=-1, type=click.UNPROCESSED, metavar="[FILE] [OPTIONS of run]", help="The options of run."
)
@click.pass_context
def check(ctx: click.Context, /, arguments: tuple[str, ...]) -> None:
    """Try what `run` needs before any client connects, with the same options, variables and files.

    FILE is the file of --config. This command binds the ports, asks each broker the way clients will, and opens the
    topics of usage records and fleets, creating missing ones as `run` does. It prints one line for each check: what
    works, or what to do. Exit codes: 0, 1 if something does not work, 2 for a bad configuration.

    \b
      kafka-quota-proxy check proxy.toml
    """
    import asyncio

    from proxy.command.check import results
    from proxy.config.checks import config_of
    from proxy.internal_clients.event_loops import new_loop
    from proxy.process.start_log import raise_descriptor_limit

    flag = ["--config"] if arguments and not arguments[0].startswith("-") else []
    with run.make_context("run", [*flag, *arguments], parent=ctx) as run_context:
        config = config_of(run_context)
    logging.disable()  # the printed lines contain the same
    raise_descriptor_limit(config)

    async def print_all() -> bool:
        ok = True
        async for result in results(config):
            ok &= isinstance(result, str)
            shown = "\n".join(map(one_line, str(result).splitlines()))  # a broker's words
            click.echo(f"{'✓' if isinstance(result, str) else '✗'} {shown}")
        return ok

    with asyncio.Runner(loop_factory=partial(new_loop, config.event_loop)) as runner:
        sys.exit(0 if runner.run(print_all()) else EXIT_FAILURE)


@main.command("check-config", short_help="Check files without starting anything.")
@cloup.option(
    "--quotas-file",
    type=cloup.Path(dir_okay=False),
    metavar="FILE.toml",
    help="Check this quotas file too, instead of the one that FILE names.",
)
@cloup.option("--show", is_flag=True, help="Print each option with its source, including environment variables of run.")
@cloup.argument(
    "file", type=cloup.Path(dir_okay=False), metavar="FILE", help="A file for --config, a quotas file, or *.properties."
)
@click.pass_context
def check_config(ctx: click.Context, /, file: str, quotas_file: str | None, *, show: bool) -> None:
    """Check a configuration file, and the quotas file that it names, without starting anything.

    Prints a summary and exits with 0, or lists every error with its place and exits with 2. Warnings list entries that
    are probably wrong, and exempt clients are listed after the summary. Flags and environment variables of `run` are
    ignored, except with --show.

    \b
      kafka-quota-proxy check-config --quotas-file quotas.toml proxy.toml
    """
    from proxy.config.cautions import quota_warnings, repetitions, secret_warnings
    from proxy.config.checks import config_of, summary_of
    from proxy.config.effective import page_of, text_of
    from proxy.config.quotas_file import active_quotas
    from proxy.config.toml_file import has_only_quotas
    from proxy.files.tls import TlsContexts
    from proxy.observability.metrics import Metrics

    ctx.meta[IGNORE_ENVIRONMENT] = not show
    option = "--command-config" if file.endswith(".properties") else "--config"
    if quotas_file is None and has_only_quotas(Path(file), {param.name or "" for param in run.params}):
        option = "--quotas-file"
    arguments = [option, file, *(["--quotas-file", quotas_file] if quotas_file else [])]
    with run.make_context("run", arguments, parent=ctx) as run_context:
        config = config_of(run_context, need_upstream=False)
    quotas = active_quotas(config)
    tls = TlsContexts(config, Metrics())
    repeated = repetitions(run_context, config)
    for _, fields in (*repeated, *quota_warnings(config, quotas), *secret_warnings(config), *tls.cautions):
        click.echo(_warning(fields), err=True)
    click.echo(f"{file}: ok: {summary_of(config, quotas)}")
    for line in [
        *([f"certificate of the listener: {tls.shown}"] if tls.shown else []),
        *(f"exempt: {each}" for each in quotas.exemptions),
        *(text_of(page_of(config, quotas)) if show else ()),
    ]:
        click.echo(line)


_BYTES: Final = Checked("BYTES", parse_size)


@main.command("advise", short_help="Print client settings for a limit.")
@cloup.option(
    "--rate",
    type=Checked("RATE", parse_bytes_per_second),
    required=True,
    help="The limit, in bytes per second: 5MB, 500kB.",
)
@cloup.option(
    "--producers", type=click.IntRange(1), default=1, help="Producers that share the limit (in Spark, executors)."
)
@cloup.option("--consumers", type=click.IntRange(1), help="Consumers that share the limit.")
@cloup.option(
    "--mode", type=click.Choice(MODES), default="auto", help="The throttle mode of the limit.", show_default=True
)
@cloup.option("--buffer-memory", type=_BYTES, help="Keep the size of the producer's buffer.")
@cloup.option("--batch-size", type=_BYTES, help="Keep the batch size.")
@cloup.option(
    "--request-cost",
    type=Checked("BYTES", parse_request_cost),
    help="The request_cost of the limit: batches are at least as large.",
)
@cloup.option("--delivery-timeout", type=Checked("DURATION", parse_duration), help="Keep the delivery timeout.")
@cloup.option("--record-size", type=_BYTES, default="1000", help="Average size of a record.", show_default=True)
@cloup.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def advise(ctx: click.Context, /, *, as_json: bool, **given: Any) -> None:
    """Print client settings with which no request times out and no record expires at a shared limit: options for
    Spark, and a configuration for librdkafka.

    \b
      kafka-quota-proxy advise --rate 5MB --producers 8
    """
    from proxy.config.advice import advice, text_of

    check_values(ctx)
    found = advice(given)
    click.echo(json.dumps(found, indent=2) if as_json else "\n".join(text_of(found, given["rate"])))


def _demand(value: Any) -> object:
    from simulation.demand import parse_demand

    return parse_demand(value)


def _svg(value: Any) -> Path:
    if Path(value).suffix != ".svg":
        raise InvalidValue(f"expected FILE.svg, not {value!r}", "any browser can display an SVG file")
    return Path(value)


@main.command("simulate", short_help="Show what a quotas file would do to clients.")
@cloup.option(
    "--client",
    type=Checked("CLIENT", _demand),
    multiple=True,
    required=True,
    help="'NAME: RATE[, N connections][, SIZE requests][, to TOPIC][, from ADDRESS]': a client id that produces at this"
    " rate over all its connections (one by default). 'NAME: consume RATE[, N connections]': one that consumes records"
    " arriving at this rate. Repeatable.",
)
@cloup.option(
    "--for",
    type=Checked("DURATION", partial(parse_duration, lowest=10, highest=600)),
    default="60s",
    help="How long the clients run, in virtual time; 1 GB takes about 3 s of CPU time.",
    show_default=True,
)
@cloup.option("--picture", type=Checked("FILE.svg", _svg), help="Write a chart of rates and waits by second.")
@cloup.option("--seed", type=click.IntRange(0), default=1, help="Seed of the random delays.", show_default=True)
@cloup.option("--json", "as_json", is_flag=True, help="Print JSON: the same figures, and those of each second.")
@cloup.argument("file", type=cloup.Path(exists=True, dir_okay=False), metavar="QUOTAS.toml", help="The quotas file.")
@click.pass_context
def simulate(ctx: click.Context, /, file: str, picture: Path | None, *, as_json: bool, **given: Any) -> None:
    """Show what a quotas file would do to clients, before it applies to any: how much each client gets, at which limit
    it is held and how long its records wait, who gets how much of a shared limit, and whether records expire.

    The command runs this proxy in virtual time, with model clients and a fast model broker. Producers behave like
    Java's, with default settings. HELD is the share of a client's time that it is held at limits.

    \b
      kafka-quota-proxy simulate quotas.toml --client 'etl: 30MB/s, 4 connections' --client 'web: 2MB/s'

    Exit codes: 0, whatever the quotas do; 2 for a wrong option or quotas file.
    """
    from simulation.forecast import forecast
    from simulation.forecast_chart import svg_of
    from simulation.forecast_text import text_of

    clients, problems = given["client"], Given(ctx).problems
    names = [each.client_id for each in clients if each is not None]
    hint = "give it more connections: 'NAME: RATE, 4 connections'"
    problems += [Problem("--client", f"{name!r} is given twice", hint) for name, n in Counter(names).items() if n > 1]
    if problems:
        raise ConfigError(problems)
    found = forecast(Path(file), clients, round(given["for"]), given["seed"])
    try:
        if picture is not None:
            picture.write_text(svg_of(found))
    except OSError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(found.as_json(), indent=2) if as_json else "\n".join(text_of(found)))


for _each in (*PAGE_COMMANDS, quotas):
    main.add_command(_each)


@main.command("schema", short_help="Print the JSON Schema of a file, for editors.")
@cloup.argument(
    "which",
    type=cloup.Choice(["config", "quotas", "record"]),
    help="The file of --config, the quotas file, or a record of --quotas-topic.",
)
def schema(which: str) -> None:
    """Print a JSON Schema. For editors: that of proxy.toml (config) or quotas.toml (quotas). For other programs: that
    of the values in --quotas-topic (record).
    """
    from proxy.config.json_schema import config_schema, quotas_schema, record_schema

    found = {"quotas": quotas_schema, "record": record_schema}.get(which, lambda: config_schema(run.params))()
    click.echo(json.dumps(found, indent=2))


@main.command("install-help", short_help="Write the man page and shell completions.")
@cloup.option(
    "--prefix",
    type=cloup.Path(),
    default="~/.local",
    help="Where to install; /usr/local is for all users.",
    show_default=True,
)
def install_help(prefix: str) -> None:
    """Write the man page, and completions for bash, zsh and fish, below PREFIX/share."""
    from importlib.metadata import version

    from proxy.command.manual import files

    try:
        for name, text in files(main, "kafka-quota-proxy", version("kafka-quota-proxy")).items():
            path = Path(prefix, "share", name).expanduser()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            click.echo(path)
    except OSError as error:
        raise click.ClickException(str(error)) from error


def _warning(fields: Mapping[str, object]) -> str:
    place = fields.get("entities") or fields.get("file") or fields["flag"]
    what = fields.get("values") or fields.get("keys")
    text = f"warning: {place}: {f'{what}: ' if what else ''}{fields['effect']}"
    if "entities" in fields and "flag" in fields:
        text += f" ({fields['flag']})"
    return f"{text}\n  {fields['hint']}" if "hint" in fields else text
