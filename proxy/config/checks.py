"""Makes one `Config` from the options that click parsed, or lists every error in them.

`proxy.config.values` checks single values; this module checks them together.
"""

from pathlib import Path

import click

from proxy.config.addresses import format_address
from proxy.config.config import OFF, PROXY, Config, ListeningOptions, UsageOptions
from proxy.config.connections import internal_client_of, upstream_of
from proxy.config.effective import sources_of
from proxy.config.errors import ConfigError
from proxy.config.given import Given
from proxy.config.option_types import ENVIRONMENT_PREFIX
from proxy.config.ports import listening_of
from proxy.config.quota_sources import Quotas
from proxy.config.quotas_file import read_quotas
from proxy.config.values import MAX_LABELS
from quotas.problems import Problem


def config_of(ctx: click.Context, *, need_upstream: bool = True, check_quotas: bool = True) -> Config:
    """The configuration of a context of `run`. Raises ConfigError with every problem.

    `need_upstream=False` accepts a file that leaves the bootstrap servers to a flag or variable. `check_quotas=False`
    leaves the quotas file and the entries together to `active_quotas`.
    """
    given = Given(ctx)
    upstream, servers = upstream_of(given)
    if need_upstream and servers is None and given.wrong.isdisjoint({"config", "bootstrap_servers"}):
        given.problems.append(
            Problem(
                "--bootstrap-servers",
                "is missing: there is nothing to forward to",
                f"give the brokers' HOST:PORT[,HOST:PORT...] with this flag or {ENVIRONMENT_PREFIX}BOOTSTRAP_SERVERS, "
                "as bootstrap_servers in the --config file, or as bootstrap.servers in the --command-config file",
            )
        )
    own, internal_servers = internal_client_of(given, upstream)
    listening = listening_of(given, {"bootstrap_servers": servers or (), "own_client_config": internal_servers})
    _check_usage(given)
    _check_quotas_topic(given)
    usage = given.made(UsageOptions, labels=_labels_of(given))
    if check_quotas:
        _check_quotas(given, listening)
    if given.problems:
        raise ConfigError(given.problems)
    made: dict[str, object] = {"upstream": upstream, "listening": listening, "usage": usage}
    made |= {"internal_client": own, "internal_servers": internal_servers, "sources": sources_of(ctx)}
    return given.made(Config, bootstrap_servers=servers or (), **made)


def _check_quotas(given: Given, listening: ListeningOptions) -> None:
    """The quotas file, and the entries of flags and file together."""
    path: Path | None = given.get("quotas_file")
    unknown_file = (None,) if "quotas_file" in given.wrong else ()
    try:
        read_quotas(given.params["quota"] + unknown_file, path, listening, given.place("quotas_file", str(path)))
    except ConfigError as error:
        given.problems += error.problems


def _check_usage(given: Given) -> None:
    topic, file = given.get("usage_topic"), given.get("usage_file")
    if topic is not None and file is not None:
        given.refuse("usage_file", str(file), f"and --usage-topic {topic} are both set", "records go to one of the two")
    is_shared = given.get("reuse_port") and given.get("sidecar_name") is None
    if is_shared and (topic, file) != (None, None):
        message = "needs --sidecar-name with usage records"
        given.problems.append(Problem("--reuse-port", message, "each process needs its own name in them"))
    elif given.get("usage_by_topic") and (topic, file) == (None, None):
        given.problems.append(Problem("--usage-by-topic", "has no effect without --usage-topic or --usage-file"))


def _check_quotas_topic(given: Given) -> None:
    topic, api = given.get("quotas_topic"), given.get("quota_api")
    for other in ("fleet_topic", "usage_topic"):
        if topic is not None and topic == given.get(other):
            given.refuse("quotas_topic", topic, f"is also the --{other.replace('_', '-')}", "each needs its own topic")
    if topic is None and api == PROXY:
        given.refuse("quota_api", api, "needs --quotas-topic", "the proxy keeps the quotas that it answers with there")
    elif given.get("quota_admins") and (topic is None or api not in {None, PROXY}):
        hint = "give --quotas-topic, without --quota-api or with --quota-api proxy"
        given.problems.append(Problem("--quota-admins", "has no effect: the proxy answers no quota API", hint))


def _labels_of(given: Given) -> tuple[tuple[str, str], ...]:
    labels = dict(given.get("label") or ())  # if a name is repeated, the last value wins
    if len(labels) > MAX_LABELS:
        given.problems.append(Problem("--label", f"{len(labels)} labels", f"at most {MAX_LABELS}"))
    return tuple(sorted(labels.items()))


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
    if config.quotas.cluster != OFF:
        parts.append(f"the cluster's own client quotas ({config.quotas.cluster})")
    if config.quotas.file is not None:
        parts[-1] += f" (with {config.quotas.file})"
    if quotas.share != 1:
        parts[-1] += f", every rate times {quotas.share:g}"
    if quotas.dry_run:
        parts.append("dry run")
    return "; ".join(parts)
