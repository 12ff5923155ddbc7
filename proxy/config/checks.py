"""Makes one `Config` of the options that click parsed, or lists every error in them.

`proxy.config.values` checks single values; this module checks them together.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from proxy.config.client_file import read_client_file
from proxy.config.client_settings import ClientSettings
from proxy.config.config import (
    Config,
    EnforcementOptions,
    ListeningOptions,
    ObservabilityOptions,
    QuotaOptions,
    SecurityOptions,
    UsageOptions,
    format_address,
)
from proxy.config.connections import take_ssl, take_upstream
from proxy.config.errors import ConfigError
from proxy.config.option_types import ENVIRONMENT_PREFIX, Invalid, place_of, settings_of
from proxy.config.ports import take_advertised_host, take_ports
from proxy.config.quota_sources import Quotas
from proxy.config.quotas_file import Listeners, read_quotas
from proxy.config.toml_file import file_problems
from proxy.config.values import MAX_LABELS
from quotas.problems import Problem

#: Options whose field has a name of its own. Others have that of the option, without its group's and with a unit.
_FIELDS: Final = {
    "listen": "address",
    "broker_port": "node_ports",
    "metrics_allowed_host": "metrics_allowed_hosts",
    "quota": "entries",
    "label": "labels",
    "socket_request_max_bytes": "max_request_bytes",
    "socket_response_max_bytes": "max_response_bytes",
}

_OF_TOPIC: Final = ("usage_bootstrap_servers", "usage_client_config")


def config_of(ctx: click.Context, *, need_upstream: bool = True, check_quotas: bool = True) -> Config:
    """The configuration of a context of `run`. Raises ConfigError with every problem.

    `need_upstream=False` accepts a file that leaves the bootstrap servers to a flag or variable. `check_quotas=False`
    leaves the quotas file and the entries together to `active_quotas`.
    """
    problems = file_problems(ctx)
    file_was_read = not problems
    given, wrong_names = _parsed(ctx, problems)
    problems += take_upstream(ctx, given)
    if need_upstream and file_was_read and "bootstrap_servers" not in given | dict.fromkeys(wrong_names):
        problems.append(
            Problem(
                "--bootstrap-servers",
                "is missing: there is nothing to forward to",
                f"give the brokers' HOST:PORT[,HOST:PORT...] by this flag, by {ENVIRONMENT_PREFIX}BOOTSTRAP_SERVERS, "
                "as bootstrap_servers in the file of --config, or as bootstrap.servers in that of --command-config",
            )
        )
    if not wrong_names & {"listen", "broker_ports", "broker_port"}:
        problems += take_ports(ctx, given)
    if "listen" not in wrong_names:
        problems += take_advertised_host(ctx, given)
    problems += take_ssl(ctx, given)
    problems += _take_usage(ctx, given)
    if check_quotas:
        problems += _check_quotas(ctx, given)
    if problems:
        raise ConfigError(problems)
    fields = _fields_by_group(ctx, given)
    return Config(
        bootstrap_servers=given.get("bootstrap_servers", ()),
        upstream=given.get("upstream", ClientSettings()),
        listening=ListeningOptions(**fields["Listening"], ssl=given.get("ssl")),
        quotas=QuotaOptions(**fields["Quotas"]),
        enforcement=EnforcementOptions(**fields["Enforcement"]),
        observability=ObservabilityOptions(**fields["Observability"]),
        usage=UsageOptions(**fields["Usage"], client=given["usage_client"]),
        security=SecurityOptions(**fields["Security"]),
        event_loop=given["event_loop"],
        file=given.get("config"),
    )


def _fields_by_group(ctx: click.Context, given: Mapping[str, Any]) -> Mapping[str, dict[str, Any]]:
    """The values by title of the option's group in --help, then by field of that group's class."""
    fields: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, option in settings_of(ctx).items():
        if option.group is not None and name in given:
            unit = "_seconds" if option.type.name.startswith("DURATION") else ""
            field = _FIELDS.get(name) or re.sub("quotas?_|usage_", "", name) + unit
            fields[option.group.title][field] = given[name]
    return fields


def _parsed(ctx: click.Context, problems: list[Problem]) -> tuple[dict[str, Any], set[str]]:
    """The values by option, and the names of options with a wrong value, whose problems are added."""
    given: dict[str, Any] = {}
    wrong_names: set[str] = set()
    for name, value in ctx.params.items():
        wrong = [item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, Invalid)]
        problems += [replace(one, place=place_of(ctx, name, item.given)) for item in wrong for one in item.problems]
        if wrong:
            wrong_names.add(name)
        elif value is not None:
            given[name] = value
    return given, wrong_names


def _check_quotas(ctx: click.Context, given: Mapping[str, Any]) -> tuple[Problem, ...]:
    """The problems of the quotas file, and of the entries of flags and file together."""
    path: Path | None = given.get("quotas_file")
    place = place_of(ctx, "quotas_file", str(path))
    specs = ctx.params["quota"]
    by_flag = [entry for entry in specs if not isinstance(entry, Invalid)]
    all_known = len(by_flag) == len(specs) and not isinstance(ctx.params["quotas_file"], Invalid)
    listeners = Listeners(0, ())  # any port, if the options of ports are wrong
    if isinstance(given.get("broker_port"), dict):
        listeners = Listeners.of(given["listen"], given["broker_ports"], given["broker_port"])
    try:
        read_quotas(by_flag, path, listeners, place=place, all_flags_known=all_known)
    except ConfigError as error:
        return error.problems
    return ()


def _take_usage(ctx: click.Context, given: dict[str, Any]) -> Iterator[Problem]:
    """Set `label`, and the settings of the client in place of its file; check that the options fit together."""
    topic, file = given.get("usage_topic"), given.get("usage_file")
    if topic is not None and file is not None:
        yield Problem(
            place_of(ctx, "usage_file", str(file)),
            f"and --usage-topic {topic} are both set",
            "records go to one of the two",
        )
    for name in _OF_TOPIC:
        if name in given and topic is None:
            yield Problem(place_of(ctx, name, ctx.params[name]), "has no effect without --usage-topic")
    if given.get("usage_by_topic") and topic is None and file is None:
        yield Problem("--usage-by-topic", "has no effect without --usage-topic or --usage-file")
    labels = dict(given.get("label", ()))  # of one name the last counts
    if len(labels) > MAX_LABELS:
        yield Problem("--label", f"{len(labels)} labels", f"at most {MAX_LABELS}")
    given["label"] = tuple(sorted(labels.items()))
    yield from _take_client(ctx, given)


def _take_client(ctx: click.Context, given: dict[str, Any]) -> Iterator[Problem]:
    topic, path = given.get("usage_topic"), given.pop("usage_client_config", None)
    settings = given.get("upstream", ClientSettings())
    if path is not None:
        settings, problems = read_client_file(path, place=place_of(ctx, "usage_client_config", str(path)))
        yield from problems
    if topic is not None and settings.protocol.startswith("SASL") and settings.login is None:
        hint = "give one by --usage-client-config"
        yield Problem(f"--usage-topic {topic}", f"has no login: {settings.file} has no sasl settings", hint)
    given["usage_client"] = settings


def summary_of(config: Config, quotas: Quotas) -> str:
    """One line: where the proxy forwards to, where it listens, and how many quotas it has."""
    entries = quotas.entries
    servers, upstream = ", ".join(map(format_address, config.bootstrap_servers)), config.upstream
    parts = [f"forwards to {servers}" if servers else "bootstrap_servers left to a flag or variable"]
    if upstream.file is not None:
        parts.append(f"by {upstream.file}: {upstream.protocol}, {upstream.login or 'no login of its own'}")
    if upstream.ignored:
        parts.append(f"ignores {', '.join(upstream.ignored)}")
    parts += [
        f"listens on {format_address(config.listening.address)}",
        f"{len(entries)} quota {'entry' if len(entries) == 1 else 'entries'}",
    ]
    if config.quotas.file is not None:
        parts[-1] += f" (with {config.quotas.file})"
    if quotas.share != 1:
        parts[-1] += f", every rate times {quotas.share:g}"
    if quotas.dry_run:
        parts.append("dry run")
    return "; ".join(parts)
