"""What the log contains about the start: the limit on descriptors, where the proxy listens, and which quotas it has."""

import resource
from typing import Final

from proxy.config.addresses import format_address
from proxy.config.config import Config, ListeningOptions, SecurityOptions
from proxy.config.errors import StartError
from proxy.config.exemptions import MAX_LISTED
from proxy.config.quota_sources import Quotas
from proxy.config.values import NODE
from proxy.fleet.shared_limits import shared_and_own
from proxy.observability.logs import EventLog

USUAL_CONNECTIONS: Final = 1_000
FEWEST_DESCRIPTORS: Final = 32
"""Without the ports of brokers: 16 of an idle process, 16 for its admin port, files and topics, and for one client."""

_log = EventLog("proxy.process.server")


def raise_descriptor_limit(config: Config) -> int | None:
    """Raise the soft limit on descriptors to the hard one, and return it; None: there is no limit. Warns if it is too
    low for ``--max-connections``. Raises StartError if it is too low to start: the event loop would fail in ways that
    nobody understands.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return None
    needed = _needed_descriptors(config)
    if hard < needed:
        message = f"the limit on open files is {hard}, but at least {needed} are needed for the ports and one client"
        raise StartError(f"error: {message}\n  raise the hard limit (ulimit -Hn, LimitNOFILE=)")
    wanted, most = few_descriptors(config), most_connections(config, hard)
    if wanted:
        effect = f"at most {most} connections are accepted at once" if most < config.security.max_connections else None
        hint = "raise the hard limit (ulimit -Hn, LimitNOFILE=) or lower --max-connections"
        _log.warning("few_descriptors", limit=hard, wanted=wanted, effect=effect, hint=hint)
    return hard


def _needed_descriptors(config: Config) -> int:
    listening = config.listening
    return FEWEST_DESCRIPTORS + len({*(listening.broker_ports or ()), *listening.node_ports.values()})


def most_connections(config: Config, descriptors: int | None) -> int:
    """``--max-connections``, or fewer if the limit on descriptors allows only fewer: the admin port must always have
    some left, because the kubelet restarts a proxy that answers no probe.
    """
    wanted = config.security.max_connections
    if descriptors is None:
        return wanted
    # The client's, the broker's, and one of a connection that waits for its PROXY header.
    each = 3 if config.listening.proxy_protocol_from else 2
    return min(wanted, max(1, (descriptors - _needed_descriptors(config)) // each))


def few_descriptors(config: Config) -> int:
    """What the hard limit should be; 0 if it is high enough."""
    connections, hard = config.security.max_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # Few deployments need the default bound, so machines with usual limits should not get a warning at each start.
    wanted = 4 * (USUAL_CONNECTIONS if connections == SecurityOptions().max_connections else connections)
    return 0 if hard == resource.RLIM_INFINITY or hard >= wanted else wanted


def log_start(config: Config, quotas: Quotas, port: int, metrics_port: int) -> None:
    """The ports, and the limits. `port`: that of --listen."""
    listening = config.listening
    host = listening.address[0]
    _log.info(
        "listening",
        bootstrap=format_address((host, port)),
        advertised_host=listening.host_of(NODE),
        broker_ports=_in_words(listening),
        metrics=f"http://{format_address((config.observability.metrics_listen[0], metrics_port))}/metrics",
        upstream=",".join(format_address(address) for address in config.bootstrap_servers),
        dry_run=quotas.dry_run or None,
    )
    entries, fleet = quotas.entries, config.fleet
    limits = [f"{entry.entity} {name}={rate}" for entry in entries[:MAX_LISTED] for name, rate in entry.limits.items()]
    rest = len(entries) - MAX_LISTED
    held = "; ".join(limits + ([f"and {rest} more entries"] if rest > 0 else [])) or "none"
    through = "this process only" if fleet.name is None else "all members of the fleet if it is shared"
    scope = f"each limit applies to a client over all its connections and brokers, through {through}"
    if quotas.share != 1:
        scope += f"; every rate is scaled by the quota share {quotas.share:g}"
    _log.info("quotas", held=held, exempt="; ".join(quotas.exemptions) or None, scope=scope)
    if fleet.name is not None:
        shared, own = map(_listed, shared_and_own(entries, config.quotas.algorithm))
        sizes = {"topic": fleet.topic, "max_members": fleet.max_members}
        _log.info("fleet", name=fleet.name, **sizes, shared=shared, per_process=own)


def _listed(limits: list[str]) -> str:
    rest = len(limits) - MAX_LISTED
    return "; ".join(limits[:MAX_LISTED] + [f"and {rest} more"] * (rest > 0)) or "none"


def _in_words(listening: ListeningOptions) -> str:
    """The ports of brokers."""
    ports = listening.broker_ports
    if listening.sni_host is not None:
        return "none"
    of_range = f"{ports[0]}-{ports[-1]}" if ports else "chosen by the kernel"
    return ",".join([of_range, *(f"{node}={port}" for node, port in listening.node_ports.items())])
