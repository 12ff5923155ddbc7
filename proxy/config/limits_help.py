"""The part of `run --help` about SPEC: the keys of scopes, limits and options."""

from collections.abc import Iterator, Sequence
from typing import Final

import click
import cloup

from proxy.config.option_types import ARGUMENTS, problems_of
from quotas.limit_kinds import LIMIT_KINDS
from quotas.modes import MODES
from quotas.parsing.limits import scope_keys
from quotas.problems import Problem

_SCOPES: Final = (
    ("user=, client-id=", "A client by its user, its client id, or both; each name has its own limit."),
    ("ip=", "An address, a host name, or a network such as 10.1.0.0/16, whose addresses share the limit."),
    ("topic=", "A topic, for all producers together."),
    ("listener=", "'bootstrap' (where clients connect first), or the port of a broker; HOST:PORT is its port."),
    ("total=true", "All traffic of this process."),
    (
        "resource-group=",
        "A name for members in the same entry: user=, client-id= and topic=, each repeatable; spark-* is every name "
        "that begins with spark-. The members share the limit.",
    ),
    ("...=<default>", "Each name without its own entry; not for total and resource-group."),
)
_LIFTED: Final = "Lifts the limit for this scope: no weaker entry applies; resource groups and the total do."
_OPTIONS: Final = (
    ("mode=", f"{' or '.join(MODES)}, in place of the proxy's throttle mode."),
    (
        "action=",
        "throttle (the default), or reject: a request of which every topic is over its limit is answered with an "
        "error, where the producer sends it again in order.",
    ),
    ("algorithm=", "token-bucket, sampled-window or ewma, in place of the proxy's algorithm."),
    (
        "exempt-user=, exempt-client-id=",
        "Clients that do not count for a topic, a resource group or the total, and are not held by it; repeatable, "
        "spark-* is a prefix.",
    ),
    ("burst_seconds=", "Size of the token bucket as seconds of the rate, 1 by default."),
    ("scope=", "process: the limits of the entry apply to this process by itself, in a fleet, too."),
)


class CommandWithLimits(cloup.Command):
    """A command with the keys of SPEC at the end of its help, and its command line in the context."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, and keep it: see `ARGUMENTS`."""
        ctx.meta[ARGUMENTS] = given = tuple(args)
        servers = list(dict.fromkeys(_servers_in(given)))
        if len(servers) > 1:
            message = f"is given twice: {servers[0]!r} and {servers[1]!r}"
            problem = Problem("--bootstrap-servers", message, f"give one, with commas: {','.join(servers)}")
            problems_of(ctx)["bootstrap_servers"].append(problem)
        try:
            return super().parse_args(ctx, args)
        except click.BadOptionUsage as error:
            name, takes_none = error.option_name, f"{error.option_name}=" in " ".join(given)
            hint = f" {name} switches it on, --no-{name[2:]} off." * takes_none
            raise click.BadOptionUsage(name, error.message + hint, ctx) from error

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limits = [(f"{name}=", f"{kind.counts} ({', '.join(scope_keys(kind))})") for name, kind in LIMIT_KINDS.items()]
        for title, rows in (
            ("Scopes of a quota", _SCOPES),
            ("Limits, with the scopes they can have", [*limits, ("...=unlimited", _LIFTED)]),
            ("Options of a quota", _OPTIONS),
        ):
            with formatter.section(title):
                formatter.write_dl(rows)


def _servers_in(args: Sequence[str]) -> Iterator[str]:
    """Each value of --bootstrap-servers: of several click takes the last, and Kafka's tools take none."""
    for at, arg in enumerate(args):
        flag, equals, value = arg.partition("=")
        if flag in {"--bootstrap-servers", "--bootstrap-server"}:
            yield value if equals else "".join(args[at + 1 : at + 2])
