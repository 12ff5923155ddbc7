"""The configuration of one proxy process, checked and in final units: each field is an option of `run`, defined once.

A field has its flag, and so its environment variable and TOML key, its default and its help. click takes a value from
the flag, else the environment, else the file of --config (its default map), else the default. `proxy.config.checks`
checks the values together, and makes the `Config`.

The rest of the shell reads only that, no flag, environment variable or file. It never changes. When the files of
`--config` and `--quotas-file` change, `proxy.config_watch` makes another `Config` and `proxy.active_config` applies it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from proxy.config import values
from proxy.config.addresses import Address, Network
from proxy.config.client_settings import ClientSettings
from proxy.config.option_types import (
    Checked,
    file_path,
    gone,
    mapping_rules,
    one_of,
    option,
    options_of,
    quota_spec,
    switch,
)
from proxy.config.toml_file import take_defaults_from
from quotas.entry import QuotaEntry
from quotas.modes import MODES

_ADDRESS: Final = partial(values.parse_address, zero_port=True)
_ONE_REQUEST: Final = 1_048_576
"""Java's default of max.request.size."""
OFF, PER_BROKER = "off", "per-broker"
"""Of --cluster-quotas."""


@dataclass(frozen=True, kw_only=True)
class ServerSsl:
    """TLS from clients. `ca`: of their certificates; `principal_rules`: how a user is made of the name in one."""

    certificate: Path = option(
        Checked("FILE.pem", file_path, shown="none, plaintext"),
        "Certificate for TLS from clients, with its chain, for all ports of --listen and --broker-ports. This "
        "file, the key and the CA are read again when they change; open connections stay.",
        flags="--ssl-certificate-location",
    )
    key: Path = option(
        Checked("FILE.pem", file_path, shown="the file of the certificate"),
        "Its key, not encrypted.",
        flags="--ssl-key-location",
    )
    ca: Path | None = option(
        Checked("FILE.pem", file_path), "Certificate authorities of client certificates.", flags="--ssl-ca-location"
    )
    client_auth: str = option(
        one_of("none", "requested", "required", default="none"),
        "Whether clients show a certificate, as the broker's ssl.client.auth. requested: one that is shown must "
        "be valid.",
        flags="--ssl-client-auth",
    )
    principal_rules: str = option(
        Checked("RULES", mapping_rules, default="DEFAULT"),
        "How the user of a client is made of the name in its certificate, as the broker's "
        "ssl.principal.mapping.rules: RULE:pattern/replacement/[LU],... DEFAULT: the whole name, CN=etl,O=acme.",
        flags="--ssl-principal-mapping-rules",
    )


@dataclass(frozen=True, kw_only=True)
class ListeningOptions:
    """Where clients connect. `ssl`: None: plaintext.

    `broker_ports`: None: the kernel chooses a port for each node; empty: all have that of --listen. `node_ports`: by
    node id, in place of one of these. `max_connection_age_seconds`: 0: there is none.
    """

    address: Address = option(
        Checked("HOST:PORT", _ADDRESS, default="127.0.0.1:19092"),
        "Address for the bootstrap.servers of clients. Port 0: any free port.",
        flags="--listen",
    )
    broker_ports: range | None = option(
        Checked("FIRST-LAST|0", values.parse_port_range, shown="the 20 ports after the listen port"),
        "One port for each broker: node N is FIRST + (N mod number of ports). 0: chosen by the kernel, for tests.",
        unset=range(19093, 19113),
    )
    node_ports: Mapping[int, int] = option(
        Checked("NODE=PORT", values.parse_node_port),
        "The port of one broker, if two would share one.",
        multiple=True,
        unset={},
        flags="--broker-port",
    )
    advertised_host: str = option(
        Checked("HOST", values.parse_host, shown="the listen host"),
        "Host in responses in place of the brokers' hosts, but with --sni-host. Required when listening on all "
        "interfaces (*, [::] or 0.0.0.0).",
        unset="127.0.0.1",
    )
    sni_host: str | None = option(
        Checked("HOST[:PORT]", values.parse_sni_host, shown="none, a port for each broker"),
        "One TLS port for all brokers, that of --listen: the host in responses for each of them, with {node} for its "
        "id, as in broker-{node}.kafka.example.com. The server name of a client's handshake (SNI) chooses the broker; "
        "any other name, or none, leads to a bootstrap server. :PORT: of a load balancer that listens on another port.",
    )
    proxy_protocol_from: tuple[Network, ...] = option(
        Checked("CIDR", values.parse_network),
        "Network or address of a load balancer that sends the PROXY protocol, version 1 or 2. Its connections "
        "must begin with that header, and limits by ip apply to the client's address; others must not begin with it.",
        multiple=True,
    )
    ssl: ServerSsl | None = field(default=None, metadata={"options": options_of(ServerSsl)})
    reuse_port: bool = switch(
        "Share --listen and --broker-ports with other processes of this host and user, one for each core: the kernel "
        "spreads connections (SO_REUSEPORT). Each has its own --metrics-listen and --sidecar-name, and --fleet shares "
        "the limits."
    )
    max_connection_age_seconds: float = option(
        Checked("DURATION|off", partial(values.parse_duration_or_off, lowest=1), default="off"),
        "End a connection this old, give or take a tenth, once its requests are answered: clients connect again, to "
        "any replica.",
        flags="--max-connection-age",
    )
    drain_timeout_seconds: float = option(
        Checked("DURATION", values.parse_duration, default="20s"),
        "After SIGTERM: time for requests in flight to finish. 500ms, 20s, 2m.",
        flags="--drain-timeout",
    )

    def host_of(self, node: int | str) -> str:
        """The host in responses for a node."""
        if self.sni_host is None:
            return self.advertised_host
        return self.sni_host.partition(":")[0].replace(values.NODE, str(node))


@dataclass(frozen=True, kw_only=True)
class QuotaOptions:
    """The quotas, the names that all clients are metered under, and the algorithms. `entries`: those given by flags;
    `share`: in (0, 1].
    """

    client_id: str | None = option(
        Checked("NAME", values.parse_name, shown="the client id that each client sends"),
        "Meter all clients under this client id. Spark generates client ids unless kafka.client.id is set.",
    )
    principal: str | None = option(
        Checked("NAME", values.parse_name, shown="the name that each client proves"),
        "Meter all clients under this user, in place of the name that a client proves by SASL or a certificate.",
    )
    entries: tuple[QuotaEntry, ...] = option(
        Checked("SPEC", quota_spec),
        "KEY=VALUE[,KEY=VALUE...]. The scope: user, client-id, or both; or one of ip, topic, listener, "
        "total=true, resource-group with its members; <default>: each name without its own entry. The limits: "
        "listed at the end; 5MB is 5,000,000 bytes per second. Options: mode, action, algorithm, burst_seconds, scope.",
        multiple=True,
        flags="--quota",
    )
    file: Path | None = option(
        Checked("FILE.toml", file_path),
        "[[quota]] and [[resource-group]] tables with the keys of SPEC; above them quota_share and dry_run. The "
        "proxy watches the file and applies a change as a whole. A limit of the file replaces that of a --quota of the "
        "same entity; quota_share and dry_run replace their flags.",
        flags="--quotas-file",
    )
    cluster: str = option(
        one_of(OFF, "total", PER_BROKER, default=OFF),
        "Read the cluster's own client quotas (kafka-configs) every 10 s and at SIGHUP, and enforce them here: total: "
        "a figure is the client's total through this proxy; per-broker: Kafka's meaning, the figure times the number "
        "of brokers. Each --quota or entry of the --quotas-file overrides them. Needs DescribeConfigs on the cluster.",
        flags="--cluster-quotas",
    )
    share: float = option(
        Checked("FRACTION", values.parse_fraction, default="1.0"),
        "Factor for every rate: 0.025, or 1/40, for 40 proxies that share one total, since a limit is per process. Use "
        "quota_share in the --quotas-file to change it while the proxy runs.",
        flags="--quota-share",
    )
    algorithm: str = option(
        one_of("token-bucket", "sampled-window", "ewma", default="token-bucket"),
        "Algorithm of entries without one: a token bucket, even in every second; sampled windows, as in brokers; "
        "or a moving average of one minute. connection_creation_rate: sampled windows that pass at most one "
        "window's worth at once.",
        flags="--quota-algorithm",
    )
    window_num: int = option(
        Checked("N", values.whole_number(1, 10_000), default="11"),
        "Number of windows of sampled-window, as the broker's quota.window.num.",
        flags="--quota-window-num",
    )
    window_size_seconds: float = option(
        Checked("S", partial(values.parse_duration, lowest=0.001), default="1"),
        "Length of one window, as the broker's quota.window.size.seconds.",
        flags="--quota-window-size-seconds",
    )
    first_window: bool = option(
        Checked("on|off", values.parse_switch, default="on"),
        "on: the rate of a new client is measured over its windows so far, at least one. off, as in brokers: a "
        "new client counts as idle before, so it can begin with a burst.",
    )
    producer_id_window_size_seconds: int = option(
        Checked("S", values.whole_number(1, 31_536_000), default="3600"),
        "Window of producer_ids_rate, which limits the new producer ids within it.",
        flags="--producer-id-quota-window-size-seconds",
    )
    producer_id_window_count: int = option(
        Checked("N", values.whole_number(1, 1000), default="4"),
        "Parts of that window; the ids of one part expire together.",
        flags="--producer-id-quota-window-count",
    )


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """The fleet that shares the limits of this process."""

    name: str | None = option(
        Checked("NAME", values.parse_fleet, shown="none, each limit is this process's"),
        "Share all limits on rates by token buckets with the other proxies of this name, through a topic of the real "
        "brokers: all together keep within each limit. Not shared: limits on connections, producer ids and thresholds, "
        "and entries with scope=process.",
        flags="--fleet",
    )
    topic: str = option(
        Checked("TOPIC", values.parse_topic, default="kafka-quota-proxy-fleet"),
        "The topic of all fleets. It is created if it is missing; one of another kind is refused.",
        flags="--fleet-topic",
    )
    max_members: int = option(
        Checked("N", values.whole_number(1, 10_000), default="100"),
        "The most proxies that the fleet will have, the same for all: each may always use 1/N of 2 % of a limit (of 20 "
        "% of one by a <default> entry).",
        flags="--fleet-max-members",
    )
    fallback: str = option(
        one_of("share", "floor", default="share"),
        "What this proxy may use of a limit while the topic is away for longer than 15 s: share: 1/N of it. floor: as "
        "above.",
        flags="--fleet-fallback",
    )


@dataclass(frozen=True, kw_only=True)
class EnforcementOptions:
    """What happens to a client over its quota."""

    throttle_mode: str = option(
        one_of(*MODES, default="auto"),
        "What a client over its quota receives. notify: throttle_time_ms in its responses. delay: its responses "
        "late. pause: nothing. auto: notify if clients of that API version wait for throttle_time_ms, else delay. In "
        "each mode, a data request that finds debt is held until it is due.",
    )
    max_throttle_ms: int = option(
        Checked("MS", values.whole_number(1), default="5000"),
        "Largest throttle_time_ms in a response, and longest delay of one; the rest of the debt remains.",
    )
    max_connection_hold_seconds: float = option(
        Checked("DURATION", values.parse_duration, default="8s"),
        "Longest wait of a connection over connection_creation_rate; one that would wait longer is closed after "
        "it. librdkafka gives up after 10s.",
        flags="--max-connection-hold",
    )
    dry_run: bool = switch(
        "Decide, count and log, but forward everything unchanged. While the proxy runs, SIGUSR2 or dry_run in a "
        "watched file switches this off and on."
    )


@dataclass(frozen=True, kw_only=True)
class ObservabilityOptions:
    """Metrics and logs."""

    metrics_listen: Address = option(
        Checked("HOST:PORT", _ADDRESS, default="127.0.0.1:19404"),
        "Address of HTTP: /metrics /healthz /readyz /throttles. Port 0: any free port.",
    )
    metrics_allowed_hosts: tuple[str, ...] = option(
        Checked("NAME", values.parse_host),
        "A host name by which scrapers reach --metrics-listen. Requests for IP addresses, localhost and the "
        "listen host are always answered; any other Host gets 421, so that no web page can read this port through a "
        "browser (DNS rebinding).",
        multiple=True,
        flags="--metrics-allowed-host",
    )
    max_metric_entities: int = option(
        Checked("N", values.whole_number(1, 1_000_000), default="1000"),
        "Number of clients, of their throttles and of limits with their own metrics; further ones are counted as "
        "'other'.",
    )
    client_telemetry: bool = switch(
        "Ask clients for their metrics (KIP-714): Java since 3.7 and librdkafka since 2.5 push them every 10 s, such "
        "as the fill of their buffers, times and errors. Where brokers take these themselves, they go to the brokers."
    )
    log_format: str = option(
        one_of("text", "json", default="text"), "Log lines as key=value, or as one JSON object each; on stderr."
    )
    log_level: str = option(
        one_of("debug", "info", "warn", "error", default="info"),
        "Lowest severity to log. Tracebacks are logged at debug only.",
    )


@dataclass(frozen=True, kw_only=True)
class UsageOptions:
    """Usage records. At most one of `topic` and `file` is set; without either no records are written.

    `sidecar_name`: None: the name of the host.
    """

    topic: str | None = option(
        Checked("TOPIC", values.parse_topic, shown="none, off"),
        "Write usage records to this topic of the real brokers: who used what, and whom limits throttled. It is "
        "created with cleanup.policy=delete if it is missing; a compacted topic is refused.",
        flags="--usage-topic",
    )
    file: Path | None = option(
        Checked("PATH", file_path, shown="none, off"),
        "Write them to this file instead, one JSON object in each line. It is opened for each write, so it may be "
        "rotated.",
        flags="--usage-file",
    )
    interval_seconds: float = option(
        Checked("DURATION", partial(values.parse_duration, lowest=1, highest=600), default="10s"),
        "Time between two records of a series that changes; up to a fifth less, at random. A process that is "
        "killed loses what it counted in this time.",
        flags="--usage-interval",
    )
    by_topic: bool = switch(
        "Count record bytes by topic, too. This parses Produce requests and Fetch responses.", flags="--usage-by-topic"
    )
    max_series: int = option(
        Checked("N", values.whole_number(1, 1_000_000), default="10000"),
        "Series with records of their own; further ones are counted as client id 'other'. Clients after "
        "--max-metric-entities are, too.",
        flags="--max-usage-series",
    )
    labels: tuple[tuple[str, str], ...] = option(
        Checked("NAME=VALUE", values.parse_label),
        "A label of all records, such as team=search. Of one name the last counts.",
        multiple=True,
        flags="--label",
    )
    sidecar_name: str | None = option(
        Checked("NAME", values.parse_name, shown="the name of the host"),
        "The name of this process in records; the same after a restart.",
    )

    @property
    def is_on(self) -> bool:
        return self.topic is not None or self.file is not None


@dataclass(frozen=True, kw_only=True)
class SecurityOptions:
    """Bounds on what clients and brokers may use, and which APIs pass.

    `handshake_timeout_seconds`: for the PROXY header, the TLS handshake and the first complete request together.
    0, as of `connections_max_idle_seconds`: there is none.
    """

    max_request_bytes: int = option(
        Checked("BYTES", values.parse_size, default="104857600"),
        "Longest request, as the broker's socket.request.max.bytes. 100MB, 256MiB.",
        flags="--socket-request-max-bytes",
    )
    max_response_bytes: int = option(
        Checked("BYTES", values.parse_size, default="1073741824"),
        "Longest response. One batch can make a Fetch response longer than fetch.max.bytes (50 MiB by default).",
        flags="--socket-response-max-bytes",
    )
    max_connections: int = option(
        Checked("N", values.whole_number(1, 10_000_000), default="10000"),
        "Open client connections; further ones are closed and counted.",
    )
    max_buffered_bytes: int = option(
        Checked("BYTES", partial(values.parse_size, smallest=_ONE_REQUEST), default="256MiB"),
        "Memory for bytes that are not forwarded yet, of all connections together. When it is used up, "
        "connections are not read, and /readyz reports it. At least 1MiB, one request of most clients.",
    )
    max_pending_requests: int = option(
        Checked("N", values.whole_number(1, 100_000), default="1000"),
        "Requests of one connection that are forwarded and have no response yet. With more, the connection is not "
        "read until half of them have one. About 100 bytes of memory each.",
    )
    stalled_client_timeout_seconds: float = option(
        Checked("DURATION", values.parse_duration, default="30s"),
        "While that memory is used up, connections with a peer that reads no byte for this long are closed, the "
        "one with most buffered bytes first. 500ms, 30s, 2m.",
        flags="--stalled-client-timeout",
    )
    handshake_timeout_seconds: float = option(
        Checked("DURATION|off", values.parse_duration_or_off, default="30s"),
        "A connection without a complete request this long after it is served is closed, as is one without the "
        "header of --proxy-protocol-from.",
        flags="--handshake-timeout",
    )
    connections_max_idle_seconds: float = option(
        Checked("DURATION|off", values.parse_duration_or_off, default="off"),
        "Close connections without traffic for this long, as the broker's connections.max.idle.ms. A throttled "
        "connection and one with a request in flight are not idle. On Linux.",
        flags="--connections-max-idle",
    )
    sasl_oauthbearer_sub_claim_name: str = option(
        Checked("NAME", values.parse_name, default="sub"),
        "The claim that is the user of a client that logs in to the broker with a token (OAUTHBEARER), as the "
        "broker's sasl.oauthbearer.sub.claim.name.",
    )
    allow_open_relay: bool = switch(
        "Accept clients from other hosts without --ssl-client-auth required though the proxy logs in: whoever "
        "reaches the port has the rights of its login."
    )
    pass_unknown_apis: bool = switch(
        "Forward APIs that are unknown to this proxy. Their responses may contain a broker's real address, which "
        "lets clients bypass quotas."
    )


@dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of one proxy process, in the groups of `--help`, which says what each option is.

    The defaults are the same. `upstream`: the file of `--command-config`. `own_client`: of the proxy's own clients, the
    file of `--own-client-config`, else the same; `own_servers`: its bootstrap.servers, (): those of all connections.
    `file`: that of `--config`. `sources`: see `proxy.config.effective`.
    """

    bootstrap_servers: tuple[Address, ...] = option(
        Checked(
            "HOST:PORT[,HOST:PORT...]", values.parse_addresses, shown="bootstrap.servers of --command-config, required"
        ),
        "Brokers to forward to; responses contain the other brokers. The variable may be named after either "
        "flag; ..._SERVERS counts first.",
        unset=(),
        flags="--bootstrap-servers --bootstrap-server",
    )
    upstream: ClientSettings = option(
        Checked("FILE", file_path, shown="none, plaintext"),
        "How to connect to brokers: Kafka's client.properties, with PEM files for TLS. With "
        "sasl.* the proxy logs in, and clients do not; without, the logins of clients pass through. Its "
        "bootstrap.servers count where --bootstrap-servers is missing.",
        unset=ClientSettings(),
        flags="--command-config",
    )
    own_client: ClientSettings = option(
        Checked("FILE", file_path, shown="the file of --command-config"),
        "How the proxy's own clients connect to brokers, for the topics of fleets and of usage records and for "
        "--cluster-quotas: a file like that of --command-config; its bootstrap.servers count for them. Needed where "
        "clients log in themselves.",
        unset=ClientSettings(),
        flags="--own-client-config",
    )
    own_servers: tuple[Address, ...] = ()
    listening: ListeningOptions = ListeningOptions()
    quotas: QuotaOptions = QuotaOptions()
    fleet: FleetOptions = FleetOptions()
    enforcement: EnforcementOptions = EnforcementOptions()
    observability: ObservabilityOptions = ObservabilityOptions()
    usage: UsageOptions = UsageOptions()
    security: SecurityOptions = SecurityOptions()
    file: Path | None = option(
        Checked("FILE.toml", file_path),
        "Options from a file: keys are the names with underscores, repeatable ones are lists. A flag overrides "
        "the environment, which overrides the file. The proxy watches it: dry_run, throttle_mode, log_level, quota, "
        "quota_share and quotas_file change while it runs; the others need a restart.",
        is_eager=True,
        expose_value=True,
        callback=lambda ctx, _param, value: take_defaults_from(ctx, value),
        flags="--config",
    )
    event_loop: str = option(one_of("uvloop", "asyncio", default="uvloop"), "uvloop is faster.")
    sources: Mapping[str, tuple[str, str]] = field(default_factory=dict, compare=False, repr=False)


GROUPS: Final = {
    "Upstream": options_of(Config)[:3],
    "Listening": options_of(ListeningOptions),
    "Quotas": options_of(QuotaOptions) + options_of(FleetOptions),
    "Enforcement": options_of(EnforcementOptions),
    "Observability": options_of(ObservabilityOptions),
    "Usage": options_of(UsageOptions) + tuple(map(gone, ("--usage-client-config", "--usage-bootstrap-servers"))),
    "Security": options_of(SecurityOptions),
    "Process": options_of(Config)[3:],
}
"""The options of `run` by title, in the order of --help."""
