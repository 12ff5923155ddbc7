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

_REPEATABLE: Final = " Repeatable; in the environment separated by ';' or line ends."


def _setting(flags: str, value: Checked | Switch, text: str, **attributes: Any) -> Callable[[Any], Any]:
    """An option: its flags, separated by spaces, its value, and its help."""
    names = [flag.lstrip("-").partition("/")[0].replace("-", "_") for flag in flags.split()]
    return cloup.option(
        *flags.split(),
        names[0],
        cls=Setting,
        type=value,
        default=value.default,
        show_default=value.shown,
        help=text + _REPEATABLE * attributes.get("multiple", False),
        envvar=[ENVIRONMENT_PREFIX + each.upper() for each in names],
        metavar=value.metavar,
        **attributes,
    )


def _switch(flag: str, text: str) -> Callable[[Any], Any]:
    return _setting(f"{flag}/--no-{flag[2:]}", Switch(), text)


_ADDRESS: Final = partial(values.parse_address, zero_port=True)
_ONE_REQUEST: Final = 1_048_576
"""Java's default of max.request.size."""

UPSTREAM: Final = cloup.option_group(
    "Upstream",
    _setting(
        "--bootstrap-servers --bootstrap-server",
        Checked(
            "HOST:PORT[,HOST:PORT...]", values.parse_addresses, shown="bootstrap.servers of --command-config, required"
        ),
        "Brokers to forward to; responses contain the other brokers. The variable may be named after either "
        "flag; ..._SERVERS counts first.",
    ),
    _setting(
        "--command-config",
        Checked("FILE", file_path, shown="none, plaintext"),
        "How to connect to brokers: Kafka's client.properties, with PEM files for TLS. With "
        "sasl.* the proxy logs in, and clients do not; without, the logins of clients pass through. Its "
        "bootstrap.servers count where --bootstrap-servers is missing.",
    ),
)

LISTENING: Final = cloup.option_group(
    "Listening",
    _setting(
        "--listen",
        Checked("HOST:PORT", _ADDRESS, default="127.0.0.1:19092"),
        "Address for the bootstrap.servers of clients. Port 0: any free port.",
    ),
    _setting(
        "--broker-ports",
        Checked("FIRST-LAST|0", values.parse_port_range, shown="the 20 ports after the listen port"),
        "One port for each broker: node N is FIRST + (N mod number of ports). 0: chosen by the kernel, for tests.",
    ),
    _setting(
        "--broker-port",
        Checked("NODE=PORT", values.parse_node_port),
        "The port of one broker, if two would share one.",
        multiple=True,
    ),
    _setting(
        "--advertised-host",
        Checked("HOST", values.parse_host, shown="the listen host"),
        "Host in responses in place of the brokers' hosts. Required when listening on 0.0.0.0 or [::].",
    ),
    _setting(
        "--proxy-protocol-from",
        Checked("CIDR", values.parse_network),
        "Network or address of a load balancer that sends the PROXY protocol, version 1 or 2. Its connections "
        "must begin with that header, and limits by ip apply to the client's address; others must not begin with it.",
        multiple=True,
    ),
    _setting(
        "--ssl-certificate-location",
        Checked("FILE.pem", file_path, shown="none, plaintext"),
        "Certificate for TLS from clients, with its chain, for all ports of --listen and --broker-ports. This "
        "file, the key and the CA are read again when they change; open connections stay.",
    ),
    _setting(
        "--ssl-key-location",
        Checked("FILE.pem", file_path, shown="the file of the certificate"),
        "Its key, not encrypted.",
    ),
    _setting("--ssl-ca-location", Checked("FILE.pem", file_path), "Certificate authorities of client certificates."),
    _setting(
        "--ssl-client-auth",
        one_of("none", "requested", "required", default="none"),
        "Whether clients show a certificate, as the broker's ssl.client.auth. requested: one that is shown must "
        "be valid.",
    ),
    _setting(
        "--ssl-principal-mapping-rules",
        Checked("RULES", mapping_rules, default="DEFAULT"),
        "How the user of a client is made of the name in its certificate, as the broker's "
        "ssl.principal.mapping.rules: RULE:pattern/replacement/[LU],... DEFAULT: the whole name, CN=etl,O=acme.",
    ),
    _setting(
        "--drain-timeout",
        Checked("DURATION", values.parse_duration, default="20s"),
        "After SIGTERM: time for requests in flight to finish. 500ms, 20s, 2m.",
    ),
)

QUOTAS: Final = cloup.option_group(
    "Quotas",
    _setting(
        "--client-id",
        Checked("NAME", values.parse_name, shown="the client id that each client sends"),
        "Meter all clients under this client id. Spark generates client ids unless kafka.client.id is set.",
    ),
    _setting(
        "--principal",
        Checked("NAME", values.parse_name, shown="the name that each client proves"),
        "Meter all clients under this user, in place of the name that a client proves by SASL or a certificate.",
    ),
    _setting(
        "--quota",
        Checked("SPEC", quota_spec),
        "KEY=VALUE[,KEY=VALUE...]. The scope: user, client-id, or both; or one of ip, topic, listener, "
        "total=true, resource-group with its members; <default>: each name without its own entry. The limits: "
        "listed at the end; 5MB is 5,000,000 bytes per second. Options: mode, action, algorithm, burst_seconds.",
        multiple=True,
    ),
    _setting(
        "--quotas-file",
        Checked("FILE.toml", file_path),
        "[[quota]] and [[resource-group]] tables with the keys of SPEC; above them quota_share and dry_run. The "
        "proxy watches the file and applies a change as a whole. A limit of the file replaces that of a --quota of the "
        "same entity; quota_share and dry_run replace their flags.",
    ),
    _setting(
        "--quota-share",
        Checked("FRACTION", values.parse_fraction, default="1.0"),
        "Factor for every rate: 1/N for N proxies that share one total, since a limit is per process. Use "
        "quota_share in the --quotas-file to change it while the proxy runs.",
    ),
    _setting(
        "--quota-algorithm",
        one_of("token-bucket", "sampled-window", "ewma", default="token-bucket"),
        "Algorithm of entries without one: a token bucket, even in every second; sampled windows, as in brokers; "
        "or a moving average of one minute. connection_creation_rate: sampled windows that pass at most one "
        "window's worth at once.",
    ),
    _setting(
        "--quota-window-num",
        Checked("N", values.whole_number(1, 10_000), default="11"),
        "Number of windows of sampled-window, as the broker's quota.window.num.",
    ),
    _setting(
        "--quota-window-size-seconds",
        Checked("S", partial(values.parse_duration, lowest=0.001), default="1"),
        "Length of one window, as the broker's quota.window.size.seconds.",
    ),
    _setting(
        "--first-window",
        Checked("on|off", values.parse_switch, default="on"),
        "on: the rate of a new client is measured over its windows so far, at least one. off, as in brokers: a "
        "new client counts as idle before, so it can begin with a burst.",
    ),
    _setting(
        "--producer-id-quota-window-size-seconds",
        Checked("S", values.whole_number(1, 31_536_000), default="3600"),
        "Window of producer_ids_rate, which limits the new producer ids within it.",
    ),
    _setting(
        "--producer-id-quota-window-count",
        Checked("N", values.whole_number(1, 1000), default="4"),
        "Parts of that window; the ids of one part expire together.",
    ),
)

ENFORCEMENT: Final = cloup.option_group(
    "Enforcement",
    _setting(
        "--throttle-mode",
        one_of(*MODES, default="auto"),
        "What a client over its quota receives. notify: throttle_time_ms in its responses. delay: its responses "
        "late. pause: nothing. auto: notify if clients of that API version wait for throttle_time_ms, else delay. In "
        "each mode, a data request that finds debt is held until it is due.",
    ),
    _setting(
        "--max-throttle-ms",
        Checked("MS", values.whole_number(1), default="5000"),
        "Largest throttle_time_ms in a response, and longest delay of one; the rest of the debt remains.",
    ),
    _setting(
        "--max-connection-hold",
        Checked("DURATION", values.parse_duration, default="8s"),
        "Longest wait of a connection over connection_creation_rate; one that would wait longer is closed after "
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
        Checked("HOST:PORT", _ADDRESS, default="127.0.0.1:19404"),
        "Address of HTTP: /metrics /healthz /readyz /throttles. Port 0: any free port.",
    ),
    _setting(
        "--metrics-allowed-host",
        Checked("NAME", values.parse_host),
        "A host name by which scrapers reach --metrics-listen. Requests for IP addresses, localhost and the "
        "listen host are always answered; any other Host gets 421, so that no web page can read this port through a "
        "browser (DNS rebinding).",
        multiple=True,
    ),
    _setting(
        "--max-metric-entities",
        Checked("N", values.whole_number(1, 1_000_000), default="1000"),
        "Number of clients, of their throttles and of limits with their own metrics; further ones are counted as "
        "'other'.",
    ),
    _setting(
        "--log-format",
        one_of("text", "json", default="text"),
        "Log lines as key=value, or as one JSON object each; on stderr.",
    ),
    _setting(
        "--log-level",
        one_of("debug", "info", "warn", "error", default="info"),
        "Lowest severity to log. Tracebacks are logged at debug only.",
    ),
)

USAGE: Final = cloup.option_group(
    "Usage",
    _setting(
        "--usage-topic",
        Checked("TOPIC", values.parse_topic, shown="none, off"),
        "Write usage records to this topic of the real brokers: who used what, and whom limits throttled. It is "
        "created with cleanup.policy=delete if it is missing; a compacted topic is refused.",
    ),
    _setting(
        "--usage-file",
        Checked("PATH", file_path, shown="none, off"),
        "Write them to this file instead, one JSON object in each line. It is opened for each write, so it may be "
        "rotated.",
    ),
    _setting(
        "--usage-interval",
        Checked("DURATION", partial(values.parse_duration, lowest=1, highest=600), default="10s"),
        "Time between two records of a series that changes; up to a fifth less, at random. A process that is "
        "killed loses what it counted in this time.",
    ),
    _setting(
        "--usage-bootstrap-servers",
        Checked("HOST:PORT[,HOST:PORT...]", values.parse_addresses, shown="those of --bootstrap-servers"),
        "Brokers of --usage-topic.",
    ),
    _setting(
        "--usage-client-config",
        Checked("FILE", file_path, shown="the file of --command-config"),
        "How to connect to them: a file like that of --command-config.",
    ),
    _switch("--usage-by-topic", "Count record bytes by topic, too. This parses Produce requests and Fetch responses."),
    _setting(
        "--max-usage-series",
        Checked("N", values.whole_number(1, 1_000_000), default="10000"),
        "Series with records of their own; further ones are counted as client id 'other'. Clients after "
        "--max-metric-entities are, too.",
    ),
    _setting(
        "--label",
        Checked("NAME=VALUE", values.parse_label),
        "A label of all records, such as team=search. Of one name the last counts.",
        multiple=True,
    ),
    _setting(
        "--sidecar-name",
        Checked("NAME", values.parse_name, shown="the name of the host"),
        "The name of this process in records; the same after a restart.",
    ),
)

SECURITY: Final = cloup.option_group(
    "Security",
    _setting(
        "--socket-request-max-bytes",
        Checked("BYTES", values.parse_size, default="104857600"),
        "Longest request, as the broker's socket.request.max.bytes. 100MB, 256MiB.",
    ),
    _setting(
        "--socket-response-max-bytes",
        Checked("BYTES", values.parse_size, default="1073741824"),
        "Longest response. One batch can make a Fetch response longer than fetch.max.bytes (50 MiB by default).",
    ),
    _setting(
        "--max-connections",
        Checked("N", values.whole_number(1, 10_000_000), default="10000"),
        "Open client connections; further ones are closed and counted.",
    ),
    _setting(
        "--max-buffered-bytes",
        Checked("BYTES", partial(values.parse_size, smallest=_ONE_REQUEST), default="256MiB"),
        "Memory for bytes that are not forwarded yet, of all connections together. When it is used up, "
        "connections are not read, and /readyz reports it. At least 1MiB, one request of most clients.",
    ),
    _setting(
        "--max-pending-requests",
        Checked("N", values.whole_number(1, 100_000), default="1000"),
        "Requests of one connection that are forwarded and have no response yet. With more, the connection is not "
        "read until half of them have one. About 100 bytes of memory each.",
    ),
    _setting(
        "--stalled-client-timeout",
        Checked("DURATION", values.parse_duration, default="30s"),
        "While that memory is used up, connections with a peer that reads no byte for this long are closed, the "
        "one with most buffered bytes first. 500ms, 30s, 2m.",
    ),
    _setting(
        "--handshake-timeout",
        Checked("DURATION|off", values.parse_duration_or_off, default="30s"),
        "A connection without a complete request this long after it is served is closed, as is one without the "
        "header of --proxy-protocol-from.",
    ),
    _setting(
        "--connections-max-idle",
        Checked("DURATION|off", values.parse_duration_or_off, default="off"),
        "Close connections without traffic for this long, as the broker's connections.max.idle.ms. A throttled "
        "connection and one with a request in flight are not idle. On Linux.",
    ),
    _setting(
        "--sasl-oauthbearer-sub-claim-name",
        Checked("NAME", values.parse_name, default="sub"),
        "The claim that is the user of a client that logs in to the broker with a token (OAUTHBEARER), as the "
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
        Checked("FILE.toml", file_path),
        "Options from a file: keys are the names with underscores, repeatable ones are lists. A flag overrides "
        "the environment, which overrides the file. The proxy watches it: dry_run, throttle_mode, log_level, quota, "
        "quota_share and quotas_file change while it runs; the others need a restart.",
        is_eager=True,
        expose_value=True,
        callback=lambda ctx, _param, value: take_defaults_from(ctx, value),
    ),
    _setting("--event-loop", one_of("uvloop", "asyncio", default="uvloop"), "uvloop is faster."),
)

GROUPS: Final = (UPSTREAM, LISTENING, QUOTAS, ENFORCEMENT, OBSERVABILITY, USAGE, SECURITY, PROCESS)
