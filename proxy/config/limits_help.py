"""The part of `run --help` about SPEC: the keys of scopes, limits and options."""

from collections.abc import Sequence

import click
import cloup

from proxy.config.option_types import ARGUMENTS, problems_of
from proxy.config.values import SWITCH_WORDS
from quotas.limit_kinds import LIMIT_KINDS
from quotas.parsing.help import LIFTED, OPTIONS, SCOPES
from quotas.parsing.limits import scope_keys
from quotas.parsing.names import ENTITY_KEYS
from quotas.problems import Problem, closest
from quotas.slips import slip_in


class CommandWithLimits(cloup.Command):
    """A command whose help ends with the keys of SPEC, and whose context contains the command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, and keep it: see `ARGUMENTS`."""
        ctx.meta[ARGUMENTS] = given = tuple(args)
        ctx.allow_extra_args = True  # to find the flag that was meant
        values = values_of(ctx.command, given)
        servers = list(dict.fromkeys(values.pop("--bootstrap-servers", ())))
        if len(servers) > 1:
            message, hint = f"is given twice: {servers[0]!r} and {servers[1]!r}", "give one, with commas: "
            hint += ",".join(filter(None, servers))
            problems_of(ctx)["bootstrap_servers"].append(Problem("--bootstrap-servers", message, hint))
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.possibilities or error.option_name.startswith("--"):
                raise
            of_one_dash = next(each for each in given if each.startswith(error.option_name))
            raise click.UsageError(f"No such option {of_one_dash!r}: {_meant_by(ctx, of_one_dash)}", ctx) from error
        except click.BadOptionUsage as error:
            name, takes_none = error.option_name, f"{error.option_name}=" in " ".join(given)
            switch = name.removeprefix("--").removeprefix("no-")
            hint = f" --{switch} switches it on, --no-{switch} off." * takes_none
            raise click.BadOptionUsage(name, error.message + hint, ctx) from error
        if rest:
            ctx.fail(f"Unexpected argument {rest[0]!r}: {_meant_by(ctx, rest[0])}")
        return rest

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limits = [(f"{name}=", f"{kind.counts} ({', '.join(scope_keys(kind))})") for name, kind in LIMIT_KINDS.items()]
        for title, rows in (
            ("Scopes of a quota", SCOPES),
            ("Limits, with the scopes they can have", [*limits, ("...=unlimited", LIFTED)]),
            ("Options of a quota", OPTIONS),
        ):
            with formatter.section(title):
                formatter.write_dl(rows)


def values_of(command: click.Command, args: Sequence[str]) -> dict[str, list[str]]:
    """The values of each single-valued option, by its first flag; click would silently take the last of several."""
    params = [each for each in command.params if isinstance(each, click.Option) and not each.is_flag]
    options = {flag: param for param in params for flag in param.opts}
    values: dict[str, list[str]] = {}
    rest = iter(args)
    for arg in rest:
        flag, equals, value = arg.partition("=")
        param = options.get(flag)
        value = value if equals or param is None else next(rest, "")
        if param is not None and not param.multiple:
            values.setdefault(param.opts[0], []).append(value)
    return values


def _meant_by(ctx: click.Context, argument: str) -> str:
    """What is probably wrong with an argument that belongs to no flag."""
    if slip := slip_in(argument, plain=True):
        return slip
    if argument and argument.lower() in SWITCH_WORDS:
        return "a switch takes no value: --dry-run is on, --no-dry-run off"
    name, equals, _ = argument.lstrip("-").partition("=")
    if name in (*LIMIT_KINDS, *ENTITY_KEYS) and equals:
        return "a SPEC is one argument without spaces, in single quotes: --quota 'client-id=etl,producer_byte_rate=5MB'"
    if argument.endswith(".toml"):
        return f"give a file with --config {argument} or --quotas-file {argument}"
    meant = closest(f"--{name.replace('_', '-')}", [flag for each in ctx.command.params for flag in each.opts])
    if meant == argument:  # no option follows a -- alone
        return "remove the -- before it"
    return f"did you mean {meant}?" if meant else "the flag before it, if any, takes no further value"
