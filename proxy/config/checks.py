"""From the options as click found them to one `Config`, or to a list of everything that is wrong with them.

What one value must look like stands in `proxy.config.values`; here stands what values must be together.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from click.core import ParameterSource

from proxy.config.config import Config, format_address, is_wildcard
from proxy.config.errors import ConfigError, Problem
from proxy.config.option_types import ENVIRONMENT_PREFIX, Invalid, Setting, place_of
from proxy.config.quotas_file import FileQuotas, Listeners, entries_together, quotas_in_force, read_quotas_file
from proxy.config.toml_file import file_problems
from proxy.config.values import MAX_PORT
from quotas.entity import Entity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import click

    from proxy.config.config import Address
    from quotas.spec.parse import QuotaEntry

DEFAULT_BROKER_PORTS: Final = 20

_RENAMED: Final = {
    "drain_timeout": "drain_timeout_seconds",
    "max_connection_hold": "max_connection_hold_seconds",
    "metrics_allowed_host": "metrics_allowed_hosts",
    "quota": "quotas",
    "stalled_client_timeout": "stalled_client_timeout_seconds",
}
_REPEATABLE: Final = frozenset({"quota", "broker_port", "metrics_allowed_host"})
_CONFIG_FIELDS: Final = frozenset(field.name for field in fields(Config))


def config_of(ctx: click.Context, *, need_upstream: bool = True) -> Config:
    """The configuration that a context of `run` describes. Raises ConfigError with every problem found.

    `need_upstream=False` accepts a file that leaves the bootstrap servers to a flag or variable.
    """
    problems = file_problems(ctx)
    file_was_read = not problems
    given: dict[str, Any] = {}
    for name, value in ctx.params.items():
        values = value if isinstance(value, tuple) and name in _REPEATABLE else (value,)
        wrong = [item for item in values if isinstance(item, Invalid)]
        problems += [
            Problem(place_of(ctx, name, item.given), message, hint) for item in wrong for message, hint in item.findings
        ]
        if not wrong and value is not None:
            given[_RENAMED.get(name, name)] = value
    problems += _variables_at_odds(ctx)
    wrong_names = {name for name, value in ctx.params.items() if name in _CONFIG_FIELDS and isinstance(value, Invalid)}

    if need_upstream and file_was_read and ctx.params["bootstrap_servers"] is None:
        problems.append(
            Problem(
                "--bootstrap-servers",
                "is missing: there is nothing to forward to",
                f"give the brokers' HOST:PORT[,HOST:PORT...] by this flag, by {ENVIRONMENT_PREFIX}BOOTSTRAP_SERVERS, "
                "or as bootstrap_servers in the file of --config",
            )
        )
    if not wrong_names & {"listen", "broker_ports"}:
        problems += _take_ports(ctx, given)
    if "listen" not in wrong_names:
        problems += _take_advertised_host(ctx, given)
    problems += _check_quotas(ctx, given)
    if problems:
        raise ConfigError(problems)
    given.setdefault("bootstrap_servers", ())
    return Config(**{name: value for name, value in given.items() if name in _CONFIG_FIELDS})


def _variables_at_odds(ctx: click.Context) -> Iterator[Problem]:
    """Two variables of one option that say different things, where the environment decides."""
    for option in ctx.command.params:
        if isinstance(option, Setting) and ctx.get_parameter_source(str(option.name)) is ParameterSource.ENVIRONMENT:
            (first, value), *others = option.variables_set().items()
            for other, other_value in others:
                if other_value != value:
                    yield Problem(f"{other} {other_value!r}", f"{first} says {value!r}", "set one of them only")


def _place(ctx: click.Context, name: str, value: str) -> str:
    """As `place_of`, for a value that was parsed; a default is shown too, since the user may not have written it."""
    if ctx.get_parameter_source(name) is ParameterSource.DEFAULT:
        return f"--{name.replace('_', '-')} {value!r} (the default)"
    return place_of(ctx, name, value)


def _take_ports(ctx: click.Context, given: dict[str, Any]) -> Iterator[Problem]:
    """Settle `broker_ports` and `broker_port`, and see that no port is wanted twice."""
    listen: Address = given["listen"]
    ports: range | None = given.get("broker_ports")
    if ports is None and listen[1] > 0:
        ports = range(listen[1] + 1, listen[1] + 1 + DEFAULT_BROKER_PORTS)
        if ports[-1] > MAX_PORT:
            yield Problem(
                _place(ctx, "listen", format_address(listen)),
                f"leaves no room for {DEFAULT_BROKER_PORTS} broker ports after it",
                "give --broker-ports FIRST-LAST",
            )
            return
    given["broker_ports"] = ports or None
    range_name = f"--broker-ports {ports[0]}-{ports[-1]}" if ports else ""
    if ports and ctx.params.get("broker_ports") is None:
        range_name += " (the default: the 20 ports after the listen port)"

    nodes: dict[int, int] = {}
    owners: dict[int, str] = {}
    for node, port in given.get("broker_port", ()):
        place = place_of(ctx, "broker_port", f"{node}={port}")
        if node in nodes:
            yield Problem(place, f"node {node} has a port already: {nodes[node]}")
        elif port in owners:
            yield Problem(place, f"port {port} is taken already by {owners[port]}")
        nodes.setdefault(node, port)
        owners.setdefault(port, f"--broker-port {node}={port}")
    given["broker_port"] = nodes

    if listen[1]:
        if ports and listen[1] in ports:
            yield Problem(range_name, f"contains the port of --listen {format_address(listen)}", "each needs its own")
        if listen[1] in owners:
            yield Problem(owners[listen[1]], f"is the port of --listen {format_address(listen)}", "each needs its own")
    metrics: Address | None = given.get("metrics_listen")
    if metrics and metrics[1] and _same_interface(metrics[0], listen[0]):
        place = _place(ctx, "metrics_listen", format_address(metrics))
        if metrics[1] == listen[1]:
            yield Problem(place, "is the address of --listen too", "each needs its own port")
        elif ports and metrics[1] in ports:
            yield Problem(place, f"is in the range {range_name}", "move --metrics-listen or --broker-ports")
        elif metrics[1] in owners:
            yield Problem(place, f"is the port of {owners[metrics[1]]}", "each needs its own")
    own_ports = {listen[1], *(ports or ()), *owners} - {0}
    own_hosts = [
        listen[0],
        given.get("advertised_host") or listen[0],
        *(["localhost"] if is_wildcard(listen[0]) else []),
    ]
    for host, port in given.get("bootstrap_servers", ()):
        if port in own_ports and any(_same_host(host, own) for own in own_hosts):
            yield Problem(
                place_of(ctx, "bootstrap_servers", format_address((host, port))),
                "is a port that this proxy listens on itself",
                "it names the real brokers; clients are given the address of --listen",
            )


def _take_advertised_host(ctx: click.Context, given: dict[str, Any]) -> Iterator[Problem]:
    listen: Address = given["listen"]
    advertised: str | None = given.get("advertised_host")
    if advertised is None:
        if is_wildcard(listen[0]) and not isinstance(ctx.params.get("advertised_host"), Invalid):
            yield Problem(
                _place(ctx, "listen", format_address(listen)),
                "needs --advertised-host HOST",
                "clients are told where each broker is to be reached, and nobody can connect to "
                f"{listen[0]!r}: give the host name or IP address under which clients reach this proxy",
            )
        given["advertised_host"] = listen[0]
    elif is_wildcard(advertised):
        yield Problem(
            place_of(ctx, "advertised_host", advertised),
            "is no address that a client could connect to",
            "give the host name or IP address under which clients reach this proxy",
        )


def _check_quotas(ctx: click.Context, given: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the quotas file, and with the entries of flags and file together."""
    path: Path | None = given.get("quotas_file")
    in_file = FileQuotas()
    if path is not None:
        in_file = read_quotas_file(path, place=place_of(ctx, "quotas_file", str(path)))
    specs = ctx.params["quota"]
    by_flag = [entry for entry in specs if not isinstance(entry, Invalid)]
    all_known = len(by_flag) == len(specs) and not isinstance(ctx.params["quotas_file"], Invalid)
    try:
        entries_together(by_flag, in_file, path, _listeners(ctx, given), all_flags_known=all_known)
    except ConfigError as error:
        return list(error.problems)
    return []


def _listeners(ctx: click.Context, given: Mapping[str, Any]) -> Listeners:
    """Those of the options so far; where they are wrong themselves, any port may be one."""
    exceptions_are_right = not any(isinstance(value, Invalid) for value in ctx.params["broker_port"])
    if not exceptions_are_right or not isinstance(given.get("broker_port"), dict):
        return Listeners(0, ())
    return Listeners.of(given["listen"], given["broker_ports"], given["broker_port"])


_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def _same_interface(one: str, other: str) -> bool:
    """Whether listening on the same port of both cannot work."""
    return is_wildcard(one) or is_wildcard(other) or _same_host(one, other)


def _same_host(one: str, other: str) -> bool:
    return one.lower() == other.lower() or {one.lower(), other.lower()} <= _LOOPBACK_NAMES


Caution = tuple[str, dict[str, object]]
"""An event of the log and its fields."""


def warnings_of(config: Config) -> list[Caution]:
    """What is allowed but likely not meant."""
    found: list[Caution] = []
    entries = quotas_in_force(config).entries
    named = [str(entry.entity) for entry in entries if _is_of_users(entry)]
    if named and config.principal is None:
        effect = "clients' own names are not read from SASL in this version: without --principal all are ANONYMOUS"
        found.append(("user_quota_without_principal", {"entities": ", ".join(named), "effect": effect}))
    bursts = [str(entry.entity) for entry in entries if entry.burst_seconds is not None and entry.algorithm is None]
    if bursts and config.quota_algorithm != "token-bucket":
        effect = f"burst_seconds is for token buckets, and --quota-algorithm is {config.quota_algorithm}"
        found.append(("burst_without_bucket", {"entities": ", ".join(bursts), "effect": effect}))
    if config.pass_unknown_apis:
        effect = "responses of unknown APIs are forwarded unread: they may show clients a broker's real address"
        found.append(("unknown_apis_pass", {"effect": effect}))
    return found


def _is_of_users(entry: QuotaEntry) -> bool:
    """Whether users stand in it, alone, with a client id, or as members of a group."""
    if isinstance(entry.entity, Entity):
        return entry.entity.user is not None
    return entry.group is not None and bool(entry.group.users)


def summary_of(config: Config) -> str:
    """One line on what a configuration asks for."""
    quotas = quotas_in_force(config)
    entries = quotas.entries
    servers = ", ".join(map(format_address, config.bootstrap_servers))
    parts = [
        f"forwards to {servers}" if servers else "bootstrap_servers left to a flag or variable",
        f"listens on {format_address(config.listen)}",
        f"{len(entries)} quota {'entry' if len(entries) == 1 else 'entries'}",
    ]
    if config.quotas_file is not None:
        parts[-1] += f" (with {config.quotas_file})"
    if quotas.share != 1:
        parts[-1] += f", every rate times {quotas.share:g}"
    if config.dry_run:
        parts.append("dry run")
    return "; ".join(parts)
