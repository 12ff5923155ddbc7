"""The options of `kafka-quota-proxy run`, each defined once: flag, environment variable, TOML key, default, help.

click takes each value from the flag, else the environment, else the file of --config (its default map), else the
default.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import cloup

from proxy.config import values
from proxy.config.option_types import (
    ENVIRONMENT_PREFIX,
    Checked,
    Setting,
    Switch,
    file_path,
    mapping_rules,
    one_of,
    quota_spec,
)
from proxy.config.toml_file import take_defaults_from
from quotas.modes import MODES


def _setting(*flags: str, show_default: str = "none", **attributes: Any) -> Callable[[Any], Any]:
    """An option. `show_default`: in the help, where it has no `default`."""
    name, *aliases = (flag.lstrip("-").partition("/")[0].replace("-", "_") for flag in flags)
    return cloup.option(
        *flags,
        name,
        cls=Setting,
        envvar=ENVIRONMENT_PREFIX + name.upper(),
        alias_envvars=tuple(ENVIRONMENT_PREFIX + alias.upper() for alias in aliases),
        metavar=getattr(attributes["type"], "metavar", None),
        show_default=True if attributes.get("default") else show_default,
        **attributes,
    )


def _switch(flag: str, text: str) -> Callable[[Any], Any]:
    return _setting(f"{flag}/--no-{flag[2:]}", type=Switch(), default=False, show_default="off", help=text)


_ADDRESS: Final = partial(values.parse_address, zero_port=True)
_ONE_REQUEST: Final = 1_048_576
"""Java's default of max.request.size."""

UPSTREAM: Final = cloup.option_group(
    "Upstream",
    _setting(
        "--bootstrap-servers",
        "--bootstrap-server",
        type=Checked("HOST:PORT[,HOST:PORT...]", values.parse_addresses),
        show_default="bootstrap.servers of --command-config, required",
        help="Brokers to forward to; responses contain the other brokers. The variable may be named after either "
        "flag; ..._SERVERS counts first.",
    ),
    _setting(
        "--command-config",
        type=Checked("FILE", file_path),
        show_default="none, plaintext",
        help="How to connect to brokers: Kafka's client.properties, with PEM files for TLS. With "
        "sasl.* the proxy logs in, and clients do not; without, the logins of clients pass through. Its "
        "bootstrap.servers count where --bootstrap-servers is missing.",
    ),
)

LISTENING: Final = cloup.option_group(
    "Listening",
    _setting(
        "--listen",
        type=Checked("HOST:PORT", _ADDRESS),
        default="127.0.0.1:19092",
        help="Address for the bootstrap.servers of clients. Port 0: any free port.",
    ),
    _setting(
        "--broker-ports",
        type=Checked("FIRST-LAST|0", values.parse_port_range),
        show_default="the 20 ports after the listen port",
        help="One port for each broker: node N is FIRST + (N mod number of ports). 0: chosen by the kernel, for tests.",
    ),
    _setting(
        "--broker-port",
        type=Checked("NODE=PORT", values.parse_node_port),
        multiple=True,
        help="The port of one broker, if two would share one. Repeatable; in the environment separated by ';'.",
    ),
    _setting(
        "--advertised-host",
        type=Checked("HOST", values.parse_host),
        show_default="the listen host",
        help="Host in responses in place of the brokers' hosts. Required when listening on 0.0.0.0 or [::].",
    ),
    _setting(
        "--proxy-protocol-from",
        type=Checked("CIDR", values.parse_network),
        multiple=True,
        help="Network or address of a load balancer that sends the PROXY protocol, version 1 or 2. Its connections "
        "must begin with that header, and limits by ip apply to the client's address; others must not begin with it. "
        "Repeatable; in the environment separated by ';'.",
    ),
    _setting(
        "--ssl-certificate-location",
        type=Checked("FILE.pem", file_path),
        show_default="none, plaintext",
        help="Certificate for TLS from clients, with its chain, for all ports of --listen and --broker-ports. This "
        "file, the key and the CA are read again when they change; open connections stay.",
    ),
    _setting(
        "--ssl-key-location",
        type=Checked("FILE.pem", file_path),
        show_default="the file of the certificate",
        help="Its key, not encrypted.",
    ),
    _setting(
        "--ssl-ca-location",
        type=Checked("FILE.pem", file_path),
        help="Certificate authorities of client certificates.",
    ),
    _setting(
        "--ssl-client-auth",
        type=one_of("none", "requested", "required"),
        default="none",
        help="Whether clients show a certificate, as the broker's ssl.client.auth. requested: one that is shown must "
        "be valid.",
    ),
    _setting(
        "--ssl-principal-mapping-rules",
        type=Checked("RULES", mapping_rules),
        default="DEFAULT",
        help="How the user of a client is made of the name in its certificate, as the broker's "
        "ssl.principal.mapping.rules: RULE:pattern/replacement/[LU],... DEFAULT: the whole name, CN=etl,O=acme.",
    ),
    _setting(
        "--drain-timeout",
        type=Checked("DURATION", values.parse_duration),
        default="20s",
        help="After SIGTERM: time for requests in flight to finish. 500ms, 20s, 2m.",
    ),
)

QUOTAS: Final = cloup.option_group(
    "Quotas",
    _setting(
        "--client-id",
        type=Checked("NAME", values.parse_name),
        show_default="the client id that each client sends",
        help="Meter all clients under this client id. Spark generates client ids unless kafka.client.id is set.",
    ),
    _setting(
        "--principal",
        type=Checked("NAME", values.parse_name),
        show_default="the name that each client proves",
        help="Meter all clients under this user, in place of the name that a client proves by SASL or a certificate.",
    ),
    _setting(
        "--quota",
        type=Checked("SPEC", quota_spec),
        multiple=True,
        help="KEY=VALUE[,KEY=VALUE...]. The scope: user, client-id, or both; or one of ip, topic, listener, "
        "total=true, resource-group with its members; <default>: each name without its own entry. The limits: "
        "listed at the end; 5MB is 5,000,000 bytes per second. Options: mode, action, algorithm, burst_seconds. "
        "Repeatable; in the environment separated by ';' or line ends.",
    ),
    _setting(
        "--quotas-file",
        type=Checked("FILE.toml", file_path),
        help="[[quota]] and [[resource-group]] tables with the keys of SPEC; above them quota_share and dry_run. The "
        "proxy watches the file and applies a change as a whole. A limit of the file replaces that of a --quota of the "
        "same entity; quota_share and dry_run replace their flags.",
    ),
    _setting(
        "--quota-share",
        type=Checked("FRACTION", values.parse_fraction),
        default="1.0",
        help="Factor for every rate: 1/N for N proxies that share one total, since a limit is per process. Use "
        "quota_share in the --quotas-file to change it while the proxy runs.",
    ),
    _setting(
        "--quota-algorithm",
        type=one_of("token-bucket", "sampled-window", "ewma"),
        default="token-bucket",
        help="Algorithm of entries without one: a token bucket, even in every second; sampled windows, as in brokers; "
        "or a moving average of one minute. connection_creation_rate: sampled windows that pass at most one "
        "window's worth at once.",
    ),
    _setting(
        "--quota-window-num",
        type=Checked("N", values.whole_number(1, 10_000)),
        default="11",
        help="Number of windows of sampled-window, as the broker's quota.window.num.",
    ),
    _setting(
        "--quota-window-size-seconds",
        type=Checked("S", values.number_of_seconds),
        default="1",
        help="Length of one window, as the broker's quota.window.size.seconds.",
    ),
    _setting(
        "--first-window",
        type=Checked("on|off", values.parse_on_off),
        default="on",
        help="on: the rate of a new client is measured over its windows so far, at least one. off, as in brokers: a "
        "new client counts as idle before, so it can begin with a burst.",
    ),
    _setting(
        "--producer-id-quota-window-size-seconds",
        type=Checked("S", values.whole_number(1, 31_536_000)),
        default="3600",
        help="Window of producer_ids_rate, which limits the new producer ids within it.",
    ),
    _setting(
        "--producer-id-quota-window-count",
        type=Checked("N", values.whole_number(1, 1000)),
        default="4",
        help="Parts of that window; the ids of one part expire together.",
    ),
)

ENFORCEMENT: Final = cloup.option_group(
    "Enforcement",
    _setting(
        "--throttle-mode",
        type=one_of(*MODES),
        default="auto",
        help="What a client over its quota receives. notify: throttle_time_ms in its responses. delay: its responses "
        "late. pause: nothing. auto: notify if clients of that API version wait for throttle_time_ms, else delay. In "
        "each mode, a data request that finds debt is held until it is due.",
    ),
    _setting(
        "--max-throttle-ms",
        type=Checked("MS", values.whole_number(1)),
        default="5000",
        help="Largest throttle_time_ms in a response, and longest delay of one; the rest of the debt remains.",
    ),
    _setting(
        "--max-connection-hold",
        type=Checked("DURATION", values.parse_duration),
        default="8s",
        help="Longest wait of a connection over connection_creation_rate; one that would wait longer is closed after "
        "it. librdkafka gives up after 10s.",
    ),
    _switch(
        "--dry-run",
        "Decide, count and log, but forward everything unchanged. While the proxy runs, SIGUSR2 or dry_run in a "
        "watched file switches this off and on.",
    ),
)

OBSERVABILITY: Final = cloup.option_group(
    "Observability",
    _setting(
        "--metrics-listen",
        type=Checked("HOST:PORT", _ADDRESS),
        default="127.0.0.1:19404",
        help="Address of HTTP: /metrics /healthz /readyz /throttles. Port 0: any free port.",
    ),
    _setting(
        "--metrics-allowed-host",
        type=Checked("NAME", values.parse_host),
        multiple=True,
        help="A host name by which scrapers reach --metrics-listen. Requests for IP addresses, localhost and the "
        "listen host are always answered; any other Host gets 421, so that no web page can read this port through a "
        "browser (DNS rebinding). Repeatable; in the environment separated by ';'.",
    ),
    _setting(
        "--max-metric-entities",
        type=Checked("N", values.whole_number(1, 1_000_000)),
        default="1000",
        help="Number of clients with their own metrics; further ones are counted as 'other'.",
    ),
    _setting(
        "--log-format",
        type=one_of("text", "json"),
        default="text",
        help="Log lines as key=value, or as one JSON object each; on stderr.",
    ),
    _setting(
        "--log-level",
        type=one_of("debug", "info", "warn", "error"),
        default="info",
        help="Lowest severity to log. Tracebacks are logged at debug only.",
    ),
)

USAGE: Final = cloup.option_group(
    "Usage",
    _setting(
        "--usage-topic",
        type=Checked("TOPIC", values.parse_topic),
        show_default="none, off",
        help="Write usage records to this topic of the real brokers: who used what, and whom limits throttled. It is "
        "created with cleanup.policy=delete if it is missing; a compacted topic is refused.",
    ),
    _setting(
        "--usage-file",
        type=Checked("PATH", file_path),
        show_default="none, off",
        help="Write them to this file instead, one JSON object in each line. It is opened for each write, so it may be "
        "rotated.",
    ),
    _setting(
        "--usage-interval",
        type=Checked("DURATION", values.parse_usage_interval),
        default="10s",
        help="Time between two records of a series that changes; up to a fifth less, at random. A process that is "
        "killed loses what it counted in this time.",
    ),
    _setting(
        "--usage-bootstrap-servers",
        type=Checked("HOST:PORT[,HOST:PORT...]", values.parse_addresses),
        show_default="those of --bootstrap-servers",
        help="Brokers of --usage-topic.",
    ),
    _setting(
        "--usage-client-config",
        type=Checked("FILE", file_path),
        show_default="the file of --command-config",
        help="How to connect to them: a file like that of --command-config.",
    ),
    _switch(
        "--usage-by-topic",
        "Count record bytes by topic, too. This parses Produce requests and Fetch responses.",
    ),
    _setting(
        "--max-usage-series",
        type=Checked("N", values.whole_number(1, 1_000_000)),
        default="10000",
        help="Series with records of their own; further ones are counted as client id 'other'. Clients after "
        "--max-metric-entities are, too.",
    ),
    _setting(
        "--label",
        type=Checked("NAME=VALUE", values.parse_label),
        multiple=True,
        help="A label of all records, such as team=search. Repeatable; in the environment separated by ';'.",
    ),
    _setting(
        "--sidecar-name",
        type=Checked("NAME", values.parse_name),
        show_default="the name of the host",
        help="The name of this process in records; the same after a restart.",
    ),
)

SECURITY: Final = cloup.option_group(
    "Security",
    _setting(
        "--socket-request-max-bytes",
        type=Checked("BYTES", values.parse_size),
        default="104857600",
        help="Longest request, as the broker's socket.request.max.bytes. 100MB, 256MiB.",
    ),
    _setting(
        "--socket-response-max-bytes",
        type=Checked("BYTES", values.parse_size),
        default="1073741824",
        help="Longest response. One batch can make a Fetch response longer than fetch.max.bytes (50 MiB by default).",
    ),
    _setting(
        "--max-connections",
        type=Checked("N", values.whole_number(1, 10_000_000)),
        default="10000",
        help="Open client connections; further ones are closed and counted.",
    ),
    _setting(
        "--max-buffered-bytes",
        type=Checked("BYTES", partial(values.parse_size, smallest=_ONE_REQUEST)),
        default="256MiB",
        help="Memory for bytes that are not forwarded yet, of all connections together. When it is used up, "
        "connections are not read, and /readyz reports it. At least 1MiB, one request of most clients.",
    ),
    _setting(
        "--max-pending-requests",
        type=Checked("N", values.whole_number(1, 100_000)),
        default="1000",
        help="Requests of one connection that are forwarded and have no response yet. With more, the connection is not "
        "read until half of them have one. About 100 bytes of memory each.",
    ),
    _setting(
        "--stalled-client-timeout",
        type=Checked("DURATION", values.parse_duration),
        default="30s",
        help="While that memory is used up, connections with a peer that reads no byte for this long are closed, the "
        "one with most buffered bytes first. 500ms, 30s, 2m.",
    ),
    _setting(
        "--handshake-timeout",
        type=Checked("DURATION|off", values.parse_duration_or_off),
        default="30s",
        help="A connection without a complete request this long after it is served is closed, as is one without the "
        "header of --proxy-protocol-from.",
    ),
    _setting(
        "--connections-max-idle",
        type=Checked("DURATION|off", values.parse_duration_or_off),
        default="off",
        help="Close connections without traffic for this long, as the broker's connections.max.idle.ms. A throttled "
        "connection and one with a request in flight are not idle. On Linux.",
    ),
    _setting(
        "--sasl-oauthbearer-sub-claim-name",
        type=Checked("NAME", values.parse_name),
        default="sub",
        help="The claim that is the user of a client that logs in to the broker with a token (OAUTHBEARER), as the "
        "broker's sasl.oauthbearer.sub.claim.name.",
    ),
    _switch(
        "--allow-open-relay",
        "Accept clients from other hosts without --ssl-client-auth required though the proxy logs in: whoever "
        "reaches the port has the rights of its login.",
    ),
    _switch(
        "--pass-unknown-apis",
        "Forward APIs that are unknown to this proxy. Their responses may contain a broker's real address, which "
        "lets clients bypass quotas.",
    ),
)

PROCESS: Final = cloup.option_group(
    "Process",
    _setting(
        "--config",
        type=Checked("FILE.toml", file_path),
        is_eager=True,
        expose_value=True,
        help="Options from a file: keys are the names with underscores, repeatable ones are lists. A flag overrides "
        "the environment, which overrides the file. The proxy watches it: dry_run, throttle_mode, log_level, quota, "
        "quota_share and quotas_file change while it runs; the others need a restart.",
        callback=lambda ctx, _param, value: take_defaults_from(ctx, value),
    ),
    _setting(
        "--event-loop",
        type=one_of("uvloop", "asyncio"),
        default="uvloop",
        help="uvloop is faster.",
    ),
)

GROUPS: Final = (UPSTREAM, LISTENING, QUOTAS, ENFORCEMENT, OBSERVABILITY, USAGE, SECURITY, PROCESS)
