"""The commands: `run`, `check`, `check-config`, `healthcheck`, `explain`, `top`, `fleet`, `advise`, `schema`,
`install-help`.

Exit codes: 0 after a clean drain, 2 for a bad configuration, 1 for anything else; one message on stderr, no traceback.
Slow imports (the server, HTTP, Kafka's schemas) are made only by the command that needs them.
"""

import difflib
import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import cloup

from proxy.config.config import GROUPS, Config
from proxy.config.errors import ConfigError, StartError
from proxy.config.given import Given
from proxy.config.limits_help import CommandWithLimits, values_of
from proxy.config.option_types import (
    ARGUMENTS,
    IGNORE_ENVIRONMENT,
    Checked,
    setting,
)
from proxy.config.values import parse_address, parse_bytes_per_second, parse_duration, parse_size
from proxy.observability.build import BUILD
from proxy.observability.logs import one_line
from quotas.modes import MODES
from quotas.problems import Problem, did_you_mean

EXIT_FAILURE: Final = 1

_CONTEXT_SETTINGS: Final = cloup.Context.settings(
    help_option_names=["-h", "--help"],
    formatter_settings=cloup.HelpFormatter.settings(max_width=110, col1_max_width=34, row_sep=None),
)


class _Commands(cloup.Group):
    """It answers who forgets `run`, or takes another word for a command."""

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
    """A proxy for Kafka clients that enforces quotas evenly, in every second.

    Begin with a dry run: it forwards everything, and counts and logs what it would have throttled.

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

    Begin with --dry-run: it forwards everything, and counts and logs what it would have throttled.

    \b
      kafka-quota-proxy run --dry-run --bootstrap-servers broker-1:9092 \\
          --quota 'client-id=<default>,producer_byte_rate=5MB'

    Then without --dry-run, as a sidecar that meters all its traffic under one client id:

    \b
      kafka-quota-proxy run --bootstrap-servers broker-1:9092 \\
          --client-id spark-etl --quota 'client-id=spark-etl,producer_byte_rate=5MB'

    The value of an option comes from its flag, else its environment variable, else the file of --config, else its
    default. An empty variable counts as not set.
    """
    from proxy.config.checks import config_of
    from proxy.config.variables import service_variables, unknown_variables
    from proxy.observability.logs import EventLog, configure

    unknown = unknown_variables(ctx, main.commands, os.environ)
    try:
        config = config_of(ctx)
    except ConfigError:  # perhaps for want of what such a variable should have set
        for _, fields in unknown:
            click.echo(f"warning: {fields['variable']}: unknown; did you mean {fields['did_you_mean']}?", err=True)
        raise
    configure(config.observability.log_format, config.observability.log_level)
    log = EventLog(__name__)
    log.warn_of(unknown)
    for flag, values in values_of(ctx.command, ctx.meta[ARGUMENTS]).items():
        if len(set(values)) > 1:
            log.warning("flag_repeated", flag=flag, values=", ".join(values), effect="the last value counts")
    for variable, service in service_variables(ctx, os.environ):
        log.info("service_variable_ignored", variable=variable, service=service)
    ignored = config.upstream.ignored
    if ignored:
        log.info("client_properties_ignored", file=config.upstream.file, keys=",".join(ignored))
    arguments = ctx.meta[ARGUMENTS]
    sys.exit(_serve(config, lambda: _config_again(arguments)))


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
    from proxy import server

    try:
        return server.run(config, read_again)
    except StartError:
        raise
    except Exception as error:
        if config.observability.log_level == "debug":
            logging.getLogger(__name__).debug("failed", exc_info=True)
        text = " ".join(str(error).split()) or "no further details"
        click.echo(f"error: {type(error).__name__}: {text}", err=True)
        click.echo("  --log-level debug shows where", err=True)
        return EXIT_FAILURE


@main.command(
    "check",
    short_help="Try what run needs: ports, brokers, TLS, logins, topics.",
    context_settings={"ignore_unknown_options": True},
)
@cloup.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[FILE] [OPTIONS of run]", help="As of run.")
@click.pass_context
def check(ctx: click.Context, /, arguments: tuple[str, ...]) -> None:
    """Try what `run` needs before any client connects, with the same options, variables and files.

    FILE is that of --config. The ports are bound, each broker is asked as clients will ask it, and the topics of usage
    records and fleets are opened, or created, as by a start. One line each: what works, or what to do. Exit codes: 0, 1
    if something does not work, 2 for a bad configuration.

    \b
      kafka-quota-proxy check proxy.toml
    """
    import asyncio

    from proxy.check import results
    from proxy.config.checks import config_of
    from proxy.event_loops import new_loop
    from proxy.observability.logs import one_line

    flag = ["--config"] if arguments and not arguments[0].startswith("-") else []
    with run.make_context("run", [*flag, *arguments], parent=ctx) as run_context:
        config = config_of(run_context)
    logging.disable()  # the lines have it

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
    help="Check this quotas file too, in place of the one that FILE names.",
)
@cloup.option("--show", is_flag=True, help="Print each option, with its source; variables of run count, too.")
@cloup.argument(
    "file", type=cloup.Path(dir_okay=False), metavar="FILE", help="A file of --config, of quotas, or *.properties."
)
@click.pass_context
def check_config(ctx: click.Context, /, file: str, quotas_file: str | None, *, show: bool) -> None:
    """Check a configuration file, and the quotas file that goes with it, without starting anything.

    Prints a summary and exits with 0, or lists every error with its place and exits with 2. Entries that are probably
    wrong are listed as warnings, exempt clients after the summary. Flags and environment variables of `run` are
    ignored, but for --show.

    \b
      kafka-quota-proxy check-config --quotas-file quotas.toml proxy.toml
    """
    from proxy.config.cautions import quota_warnings, secret_warnings
    from proxy.config.checks import config_of, summary_of
    from proxy.config.effective import page_of, text_of
    from proxy.config.quotas_file import active_quotas
    from proxy.config.toml_file import has_only_quotas
    from proxy.observability.metrics import Metrics
    from proxy.tls import TlsContexts

    ctx.meta[IGNORE_ENVIRONMENT] = not show
    option = "--command-config" if file.endswith(".properties") else "--config"
    if quotas_file is None and has_only_quotas(Path(file), {param.name or "" for param in run.params}):
        option = "--quotas-file"
    arguments = [option, file, *(["--quotas-file", quotas_file] if quotas_file else [])]
    with run.make_context("run", arguments, parent=ctx) as run_context:
        config = config_of(run_context, need_upstream=False)
    quotas = active_quotas(config)
    cautions = [*quota_warnings(config, quotas), *secret_warnings(config)]
    tls = TlsContexts(config, Metrics(config))
    for _, fields in (*cautions, *tls.cautions):
        click.echo(_warning(fields), err=True)
    click.echo(f"{file}: ok: {summary_of(config, quotas)}")
    for line in [
        *([f"certificate of the listener: {tls.shown}"] if tls.shown else []),
        *(f"exempt: {each}" for each in quotas.exemptions),
        *(text_of(page_of(config, quotas)) if show else ()),
    ]:
        click.echo(line)


@main.command("healthcheck", short_help="Ask a running proxy whether it works.")
@setting(
    "--metrics-listen",
    Checked("HOST:PORT", parse_address, default="127.0.0.1:19404"),
    "The address that the proxy got as --metrics-listen; for 0.0.0.0 and [::] loopback is asked.",
)
@cloup.option("--ready", is_flag=True, help="Ask /readyz, in place of /healthz: 0 only while brokers answer.")
@setting("--timeout", Checked("DURATION", parse_duration, default="3s"), "Longest wait for an answer. 500ms, 3s.")
@click.pass_context
def healthcheck(ctx: click.Context, /, metrics_listen: Any, timeout: Any, *, ready: bool) -> None:
    """Ask a running proxy whether it works, as a container's health check does: no shell and no curl is needed.

    Prints the answer. Exit codes: 0 if it works, 1 if it does not or does not answer, 2 for a wrong option.
    """
    from proxy.admin.healthcheck import check

    problems = Given(ctx).problems
    if problems:
        raise ConfigError(problems)
    ok, text = check(metrics_listen, timeout, ready=ready)
    click.echo(text, err=not ok)
    sys.exit(0 if ok else EXIT_FAILURE)


def _page(ctx: click.Context, proxy: Any, path: str) -> str:
    """The body of a page of a running proxy. Raises ClickException if it does not answer, or not with 200."""
    from http.client import OK, HTTPException

    from proxy.admin.healthcheck import get, url_of

    problems = Given(ctx).problems
    if problems:
        raise ConfigError(problems)
    try:
        status, body = get(proxy, path, timeout_seconds=10)
    except (OSError, HTTPException) as error:
        hint = "does the proxy run, and is this its --metrics-listen? Else give --proxy HOST:PORT"
        raise click.ClickException(f"{url_of(proxy, path)}: {error or type(error).__name__}; {hint}") from error
    if status != OK:
        raise click.ClickException(f"{url_of(proxy, path)}: {body.strip()}")
    return body


_proxy_option = setting(
    "--proxy",
    Checked("HOST:PORT", parse_address, default="127.0.0.1:19404"),
    "The admin port of a running proxy, its --metrics-listen.",
)


@main.command("explain", short_help="Say where the time of each client goes: is it the proxy?")
@_proxy_option
@cloup.option("--json", "as_json", is_flag=True, help="A list of findings, for programs.")
@cloup.argument("client", required=False, metavar="[CLIENT]", help="Only the clients with this client id or user.")
@click.pass_context
def explain(ctx: click.Context, /, proxy: Any, client: str | None, *, as_json: bool) -> None:
    """Say whether it is the proxy, and where the time of each client went in the last minute: at a limit of this proxy,
    at brokers, at a quota of the brokers, or by itself; which limit, who shares it, and what would help.

    \b
      kafka-quota-proxy explain etl

    Exit codes: 0, 1 if the proxy does not answer or has not seen this client, 2 for a wrong option.
    """
    from proxy.admin.explain import Finding, text_of

    found = [Finding(**each) for each in json.loads(_page(ctx, proxy, "/explain"))]
    shown = [each for each in found if client in {None, each.client_id, each.user}]
    if client is not None and not shown:
        close = difflib.get_close_matches(client, filter(None, (each.client_id for each in found)), n=3, cutoff=0)
        seen = ", ".join(map(one_line, close)) or "none"
        rest = text_of([each for each in found if each.is_refused], json.loads(_page(ctx, proxy, "/brokers")))
        raise click.ClickException("\n".join([f"no client {client!r} in the last minute; seen: {seen}", *rest]))
    if as_json:
        click.echo(json.dumps([each._asdict() for each in shown]))
    else:
        click.echo(_answer(ctx, proxy, client), nl=False)
        brokers = json.loads(_page(ctx, proxy, "/brokers")) if all(each.is_refused for each in shown) else []
        click.echo("\n".join(text_of(shown, brokers)))


def _answer(ctx: click.Context, proxy: Any, client: str | None) -> str:
    """Is it the proxy? For all clients: a line for each cause, and an empty one."""
    from proxy.page.answer import Cause

    found = [] if client is not None else json.loads(_page(ctx, proxy, "/answer"))["answers"]
    return "".join(f"{each}\n" for each in [*(Cause(**cause) for cause in found), *[""] * bool(found)])


@main.command("top", short_help="Watch clients, limits or brokers of a running proxy.")
@_proxy_option
@setting("--interval", Checked("DURATION", parse_duration, default="2s"), "Time between two looks.")
@cloup.option("--once", is_flag=True, help="Look once, for scripts.")
@cloup.argument("what", type=cloup.Choice(["clients", "limits", "brokers"]), default="clients", help="The table.")
@click.pass_context
def top(ctx: click.Context, /, proxy: Any, interval: float, what: str, *, once: bool) -> None:
    """Watch the clients of a running proxy, its limits or its brokers: a table that is drawn again, until Ctrl-C.

    LIMIT and BROKER are parts of the clients' time in the last minute, USED is the part of their nearest limit.
    """
    import shutil
    import time

    from proxy.admin.healthcheck import url_of
    from proxy.admin.tables import TABLES, table

    while True:
        rows = json.loads(_page(ctx, proxy, f"/{what}"))
        lines = shutil.get_terminal_size().lines - 4
        text = table(TABLES[what], rows, most=len(rows) if once else max(1, lines))
        if not once:
            click.clear()
            click.echo(f"{what} at {url_of(proxy, '/')}, {time.strftime('%H:%M:%S')}; Ctrl-C ends\n")
        click.echo(text if rows else f"no {what} in the last minute", nl=not rows)
        if once:
            return
        time.sleep(interval)


@main.command("fleet", short_help="Show who shares limits with a running proxy.")
@_proxy_option
@cloup.option("--json", "as_json", is_flag=True, help="The page /fleet as it is.")
@cloup.argument("name", required=False, metavar="[NAME]", help="The fleet that it should be a member of.")
@click.pass_context
def fleet(ctx: click.Context, /, proxy: Any, name: str | None, *, as_json: bool) -> None:
    """Show the members of a fleet, the limits that they share, and who uses how much, as one member sees it.

    Exit codes: 0, 1 if the proxy does not answer or is not in this fleet, 2 for a wrong option.
    """
    from proxy.admin.fleet import text_of
    from proxy.admin.healthcheck import url_of

    body = _page(ctx, proxy, "/fleet")
    page = json.loads(body)
    if name not in {None, page["fleet"]}:
        raise click.ClickException(f"{url_of(proxy, '/fleet')}: this proxy is in fleet {page['fleet']}, not in {name}")
    click.echo(body.strip() if as_json else "\n".join(text_of(page)))


_BYTES: Final = Checked("BYTES", parse_size)


@main.command("advise", short_help="Print client settings for a limit.")
@cloup.option(
    "--rate",
    type=Checked("RATE", parse_bytes_per_second),
    required=True,
    help="The limit, in bytes per second: 5MB, 500kB.",
)
@cloup.option("--producers", type=click.IntRange(1), default=1, help="Producers that share it: in Spark, executors.")
@cloup.option("--consumers", type=click.IntRange(1), help="Consumers that share it.")
@cloup.option("--mode", type=click.Choice(MODES), default="auto", help="Its throttle mode.", show_default=True)
@cloup.option("--buffer-memory", type=_BYTES, help="Keep this size of a producer's buffer.")
@cloup.option("--batch-size", type=_BYTES, help="Keep this size of a batch.")
@cloup.option("--delivery-timeout", type=Checked("DURATION", parse_duration), help="Keep this delivery timeout.")
@cloup.option("--record-size", type=_BYTES, default="1000", help="Mean size of a record.", show_default=True)
@cloup.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.pass_context
def advise(ctx: click.Context, /, *, as_json: bool, **given: Any) -> None:
    """Print settings with which no request times out and no record expires at a limit that clients share: options of
    Spark, and librdkafka's configuration.

    \b
      kafka-quota-proxy advise --rate 5MB --producers 8
    """
    from proxy.config.advice import advice, text_of

    problems = Given(ctx).problems
    if problems:
        raise ConfigError(problems)
    found = advice(given)
    click.echo(json.dumps(found, indent=2) if as_json else "\n".join(text_of(found, given["rate"])))


@main.command("schema", short_help="Print the JSON Schema of a file, for editors.")
@cloup.argument("which", type=cloup.Choice(["config", "quotas"]), help="The file of --config, or the quotas file.")
def schema(which: str) -> None:
    """Print the JSON Schema of a file, for editors: proxy.toml (config) or quotas.toml (quotas)."""
    from proxy.config.json_schema import config_schema, quotas_schema

    found = config_schema(run.params) if which == "config" else quotas_schema()
    click.echo(json.dumps(found, indent=2))


@main.command("install-help", short_help="Write the man page and shell completions.")
@cloup.option("--prefix", type=cloup.Path(), default="~/.local", help="/usr/local: for all users.", show_default=True)
def install_help(prefix: str) -> None:
    """Write the man page, and completions for bash, zsh and fish, below PREFIX/share."""
    from importlib.metadata import version

    from proxy.manual import files

    try:
        for name, text in files(main, "kafka-quota-proxy", version("kafka-quota-proxy")).items():
            path = Path(prefix, "share", name).expanduser()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            click.echo(path)
    except OSError as error:
        raise click.ClickException(str(error)) from error


def _warning(fields: Mapping[str, object]) -> str:
    place = fields.get("entities") or fields["file"]
    text = f"warning: {place}: {fields['effect']}"
    if "flag" in fields:
        text += f" ({fields['flag']})"
    return f"{text}\n  {fields['hint']}" if "hint" in fields else text
