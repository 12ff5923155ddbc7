"""The configuration of one proxy process, checked and in final units: each field is an option of `run`, defined once.

A field has a flag (which also names its environment variable and TOML key), a default and a help text. click takes a
value from the flag, then the environment, then the file of --config (its default map), then the default.
`proxy.config.checks` checks the values together, and makes the `Config`.

The rest of the shell reads only the `Config`, which never changes: no flag, environment variable or file. When the
files of `--config` and `--quotas-file` change, `proxy.process.config_watch` makes another `Config` and
`proxy.process.active_config` applies it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from proxy.config import values
from proxy.config.addresses import Address, Network
from proxy.config.client_settings import ClientSettings
from proxy.config.option_types import Checked, file_path, mapping_rules, one_of, option, options_of, quota_spec, switch
from proxy.config.toml_file import take_defaults_from
from quotas.adaptive.disk_guard import DiskMarks
from quotas.entry import QuotaEntry
from quotas.exemption import Exemption
from quotas.modes import MODES

_ADDRESS: Final = partial(values.parse_address, zero_port=True)
_ONE_REQUEST: Final = 1_048_576
"""Java's default of max.request.size."""
OFF, PER_BROKER = "off", "per-broker"
"""Of --cluster-quotas."""
PROXY, CLUSTER = "proxy", "cluster"
"""Of --quota-api."""


@dataclass(frozen=True, kw_only=True)
class ServerSsl:
    """TLS from clients. `ca` signs their certificates; `principal_rules` turn the name in a certificate into a user."""

    certificate: Path = option(
        Checked("FILE.pem", file_path, shown="none, plaintext"),
        "Certificate with its chain, for TLS from clients on all ports of --listen and --broker-ports. This file, the"
        " key and the CA are reloaded when they change; open connections are kept.",
        flags="--ssl-certificate-location",
    )
    key: Path = option(
        Checked("FILE.pem", file_path, shown="the file of the certificate"),
        "Its unencrypted key.",
        flags="--ssl-key-location",
    )
    ca: Path | None = option(
        Checked("FILE.pem", file_path), "Certificate authorities for client certificates.", flags="--ssl-ca-location"
    )
    client_auth: str = option(
        one_of("none", "requested", "required", default="none"),
        "Whether clients must present a certificate, like the broker's ssl.client.auth. requested: a certificate is "
        "optional but must be valid.",
        flags="--ssl-client-auth",
    )
    principal_rules: str = option(
        Checked("RULES", mapping_rules, default="DEFAULT"),
        "How the name in a client's certificate becomes its user, like the broker's ssl.principal.mapping.rules: "
        "RULE:pattern/replacement/[LU],... DEFAULT: the whole name, CN=etl,O=acme.",
        flags="--ssl-principal-mapping-rules",
    )


@dataclass(frozen=True, kw_only=True)
class ListeningOptions:
    """Where clients connect. Without `ssl`, in plaintext.

    `broker_ports`: if None, the kernel chooses a port for each node; if empty, all nodes have the port of --listen.
    `node_ports` override these by node id. `max_connection_age_seconds` of 0 means no maximum.
    """

    address: Address = option(
        Checked("HOST:PORT", _ADDRESS, default="127.0.0.1:19092"),
        "Address for the bootstrap.servers of clients. Port 0: any free port.",
        flags="--listen",
    )
    broker_ports: range | None = option(
        Checked("FIRST-LAST|0", values.parse_port_range, shown="the 20 ports after the listen port"),
        "One port for each broker: node N is at FIRST + (N mod number of ports). 0: the kernel chooses the ports, for"
        " tests.",
        unset=range(19093, 19113),
    )
    node_ports: Mapping[int, int] = option(
        Checked("NODE=PORT", values.parse_node_port),
        "Port of one broker, if two brokers would have the same one.",
        multiple=True,
        unset={},
        flags="--broker-port",
    )
    advertised_host: str = option(
        Checked("HOST", values.parse_host, shown="the listen host"),
        "Host that replaces the brokers' hosts in responses; ignored with --sni-host. Required when listening on all "
        "interfaces (*, [::] or 0.0.0.0).",
        unset="127.0.0.1",
    )
    sni_host: str | None = option(
        Checked("HOST[:PORT]", values.parse_sni_host, shown="none, a port for each broker"),
        "Use one TLS port for all brokers, the port of --listen: this is the host of each broker in responses, with "
        "{node} for its id, as in broker-{node}.kafka.example.com. The server name in a client's handshake (SNI) "
        "selects the broker; any other name, or none, selects a bootstrap server. :PORT is the port of a load "
        "balancer, if it differs.",
    )
    proxy_protocol_from: tuple[Network, ...] = option(
        Checked("CIDR", values.parse_network),
        "Network or address of a load balancer that sends the PROXY protocol, version 1 or 2. Its connections must "
        "begin with that header, and limits by ip apply to the client's address in it; other connections must not "
        "begin with it.",
        multiple=True,
    )
    ssl: ServerSsl | None = field(default=None, metadata={"options": options_of(ServerSsl)})
    reuse_port: bool = switch(
        "Share --listen and --broker-ports with other processes of this host and user, one for each core: the kernel "
        "distributes connections among them (SO_REUSEPORT). Each process needs its own --metrics-listen and "
        "--sidecar-name; --fleet makes them share the limits."
    )
    max_connection_age_seconds: float = option(
        Checked("DURATION|off", partial(values.parse_duration_or_off, lowest=1), default="off"),
        "Close connections of this age (±10 %) once their requests are answered. Clients reconnect, possibly to "
        "another replica.",
        flags="--max-connection-age",
    )
    drain_timeout_seconds: float = option(
        Checked("DURATION", values.parse_duration, default="20s"),
        "Time for requests in flight to finish after SIGTERM, such as 500ms, 20s or 2m.",
        flags="--drain-timeout",
    )

    def host_of(self, node: int | str) -> str:
        """The host in responses for a node."""
        if self.sni_host is None:
            return self.advertised_host
        return self.sni_host.partition(":")[0].replace(values.NODE, str(node))


@dataclass(frozen=True, kw_only=True)
class QuotaOptions:
    """The quotas, the names that all clients are metered under, and the algorithms. `entries` are those of flags;
    `share` is in (0, 1].
    """

    client_id: str | None = option(
        Checked("NAME", values.parse_name, shown="the client id that each client sends"),
        "Count all clients under this client id. Spark generates client ids unless kafka.client.id is set.",
    )
    principal: str | None = option(
        Checked("NAME", values.parse_name, shown="the name that each client proves"),
        "Count all clients under this user, instead of the name that they prove by SASL or a certificate.",
    )
    entries: tuple[QuotaEntry, ...] = option(
        Checked("SPEC", quota_spec),
        "KEY=VALUE[,KEY=VALUE...]. The scope: user, client-id, or both; or one of ip, topic, listener, total=true, "
        "resource-group with its members; <default>: each name without its own entry. The limits are listed below; "
        "5MB is 5,000,000 bytes per second. Options: mode, action, algorithm, burst_seconds, scope, request_cost.",
        multiple=True,
        flags="--quota",
    )
    file: Path | None = option(
        Checked("FILE.toml", file_path),
        "File with [[quota]] and [[resource-group]] tables, whose keys are those of SPEC, preceded by quota_share and"
        " dry_run. The proxy watches the file and applies each change as a whole. A limit in the file replaces that "
        "of a --quota for the same entity; quota_share and dry_run replace their flags.",
        flags="--quotas-file",
    )
    cluster: str = option(
        one_of(OFF, "total", PER_BROKER, default=OFF),
        "Read the cluster's own client quotas (kafka-configs) every 10 s and on SIGHUP, and enforce them here. total:"
        " a quota is the client's total through this proxy; per-broker: Kafka's meaning, the quota times the number "
        "of brokers. --quota and entries of the --quotas-file override them. Needs DescribeConfigs on the cluster.",
        flags="--cluster-quotas",
    )
    topic: str | None = option(
        Checked("NAME", values.parse_topic, shown="none, off"),
        "Follow the quotas in this compacted topic of the real brokers, which all proxies share: a change by "
        "kafka-quota-proxy quotas applies within 2 s, also to open connections. Overrides --cluster-quotas, but "
        "never raises what --quota and the --quotas-file allow a client. The topic is created if it is missing.",
        flags="--quotas-topic",
    )
    api: str | None = option(
        one_of(OFF, PROXY, CLUSTER, shown="proxy with --quotas-topic, otherwise cluster"),
        "Who answers DescribeClientQuotas and AlterClientQuotas (kafka-configs, Admin clients). proxy: the proxy, with "
        "the quotas of --quotas-topic; cluster: the cluster, with its own quotas; off: no one.",
        flags="--quota-api",
    )
    admins: tuple[str, ...] = option(
        Checked("PRINCIPAL", values.parse_principal, shown="none, no one"),
        "User that may describe and alter the quotas of --quotas-topic through the proxy: alice or User:alice. "
        "User:ANONYMOUS is everyone who has not logged in.",
        multiple=True,
        flags="--quota-admins",
    )
    share: float = option(
        Checked("FRACTION", values.parse_fraction, default="1.0"),
        "Multiply every rate by this, because limits are per process: 0.025 or 1/40 for 40 proxies that share one "
        "total. To change it while the proxy runs, use quota_share in the --quotas-file.",
        flags="--quota-share",
    )
    algorithm: str = option(
        one_of("token-bucket", "sampled-window", "ewma", default="token-bucket"),
        "Algorithm of entries without one: a token bucket, smooth second by second; sampled windows, like brokers; or"
        " a moving average over one minute. connection_creation_rate always uses sampled windows, which admit at most"
        " one window's worth at once.",
        flags="--quota-algorithm",
    )
    window_num: int = option(
        Checked("N", values.whole_number(1, 10_000), default="11"),
        "Number of windows for sampled-window, like the broker's quota.window.num.",
        flags="--quota-window-num",
    )
    window_size_seconds: float = option(
        Checked("S", partial(values.parse_duration, lowest=0.001), default="1"),
        "Length of one window, like the broker's quota.window.size.seconds.",
        flags="--quota-window-size-seconds",
    )
    first_window: bool = option(
        Checked("on|off", values.parse_switch, default="on"),
        "on: the rate of a new client is measured over its windows so far, at least one. off, like brokers: a new "
        "client counts as idle until now, so it can start with a burst.",
    )
    producer_id_window_size_seconds: int = option(
        Checked("S", values.whole_number(1, 31_536_000), default="3600"),
        "Window in which producer_ids_rate limits new producer ids.",
        flags="--producer-id-quota-window-size-seconds",
    )
    producer_id_window_count: int = option(
        Checked("N", values.whole_number(1, 1000), default="4"),
        "Number of parts of that window; the ids of one part expire together.",
        flags="--producer-id-quota-window-count",
    )

    @property
    def answers_api(self) -> bool:
        """Whether the proxy answers Kafka's quota API."""
        return self.topic is not None and self.api in {None, PROXY}


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """The fleet that shares the limits of this process."""

    name: str | None = option(
        Checked("NAME", values.parse_fleet, shown="none, each limit is this process's"),
        "Share all token-bucket limits on rates with the other proxies of this name, through a topic of the real "
        "brokers: together they keep within each limit. Limits on connections, producer ids and thresholds, and "
        "entries with scope=process, are not shared.",
        flags="--fleet",
    )
    topic: str = option(
        Checked("TOPIC", values.parse_topic, default="kafka-quota-proxy-fleet"),
        "Topic of all fleets. It is created if it is missing; an unsuitable topic is refused.",
        flags="--fleet-topic",
    )
    max_members: int = option(
        Checked("N", values.whole_number(1, 10_000), default="100"),
        "The most proxies that the fleet will have, the same value in each: a proxy may always use 1/N of 2 % of a "
        "limit (20 % if the entry is for <default>).",
        flags="--fleet-max-members",
    )
    fallback: str = option(
        one_of("share", "floor", default="share"),
        "What this proxy may use of a limit after the topic has been unavailable for 15 s. share: 1/N of it; floor: "
        "its guaranteed minimum only.",
        flags="--fleet-fallback",
    )
    admin_address: Address | None = option(
        Checked(
            "HOST:PORT", values.parse_address, shown="that of --metrics-listen, or instead of 0.0.0.0 that of this host"
        ),
        "Where people reach the admin port of this proxy: the members advertise it to each other, for explain, top and "
        "fleet with --fleet.",
        flags="--fleet-admin-address",
    )


@dataclass(frozen=True, kw_only=True)
class EnforcementOptions:
    """What happens to a client over its quota."""

    throttle_mode: str = option(
        one_of(*MODES, default="auto"),
        "How a client over its quota is throttled. notify: throttle_time_ms in its responses; delay: its responses "
        "are late; pause: neither; auto: notify if clients of that API version honor throttle_time_ms, otherwise "
        "delay. In each mode, a data request that finds debt is held until it is due.",
    )
    max_throttle_ms: int = option(
        Checked("MS", values.whole_number(1), default="5000"),
        "Largest throttle_time_ms in a response, and longest delay of a response; the rest of the debt remains.",
    )
    max_connection_hold_seconds: float = option(
        Checked("DURATION", values.parse_duration, default="8s"),
        "Longest wait of a connection over connection_creation_rate; if it would have to wait longer, it is closed at"
        " the end of this time. librdkafka gives up after 10s.",
        flags="--max-connection-hold",
    )
    disk_guard: DiskMarks | None = option(
        Checked("SOFT..HARD", values.parse_disk_marks, shown="none, off"),
        "Slow down all producers while any broker's disk is between these marks, so that no disk passes HARD. At HARD, "
        "Produce requests wait, and then get KAFKA_STORAGE_ERROR. Marks are used shares (85%..95%) or free bytes "
        "(50GB..20GB). "
        "Needs Describe on the cluster and Kafka 3.3.",
    )
    disk_guard_exempt: tuple[Exemption, ...] = option(
        Checked("user=NAME|client-id=NAME", values.parse_exempt),
        "A producer that --disk-guard never slows; NAME may end with *.",
        multiple=True,
    )
    dry_run: bool = switch(
        "Decide, count and log, but forward everything unchanged. While the proxy runs, SIGUSR2 or dry_run in a "
        "watched file toggles it."
    )


@dataclass(frozen=True, kw_only=True)
class ObservabilityOptions:
    """Metrics and logs."""

    metrics_listen: Address = option(
        Checked("HOST:PORT", _ADDRESS, default="127.0.0.1:19404"),
        "Address for HTTP: /metrics, probes (/healthz, /readyz, /started), and what the proxy does (/answer, "
        "/explain, /clients, /limits, /brokers, /throttles, /fleet, /config). Port 0: any free port.",
    )
    metrics_allowed_hosts: tuple[str, ...] = option(
        Checked("NAME", values.parse_host_header),
        "A host name by which scrapers reach --metrics-listen. Requests for IP addresses, localhost and the "
        "listen host are always answered; any other Host gets 421, so that no web page can read this port through a "
        "browser (DNS rebinding).",
        multiple=True,
        flags="--metrics-allowed-host",
    )
    max_metric_entities: int = option(
        Checked("N", values.whole_number(1, 1_000_000), default="1000"),
        "Number of clients, their throttles, and limits that have their own metrics; further ones are counted as "
        "'other'.",
    )
    client_telemetry: bool = switch(
        "Ask clients for their metrics (KIP-714): Java since 3.7 and librdkafka since 2.5.3 push them every 10 s, "
        "including buffer usage, times and errors. If the brokers accept these metrics, they are forwarded instead."
    )
    log_format: str = option(
        one_of("text", "json", default="text"), "Format of log lines on stderr: key=value, or one JSON object per line."
    )
    log_level: str = option(
        one_of("debug", "info", "warn", "error", default="info"),
        "Lowest severity to log. Tracebacks are only logged at debug.",
    )


@dataclass(frozen=True, kw_only=True)
class UsageOptions:
    """Usage records. At most one of `topic` and `file` is set; without either no records are written.

    Without a `sidecar_name`, the name of the host is used.
    """

    topic: str | None = option(
        Checked("TOPIC", values.parse_topic, shown="none, off"),
        "Write usage records to this topic of the real brokers: who used what, and whom limits throttled. It is "
        "created with cleanup.policy=delete if it is missing; a compacted topic is refused.",
        flags="--usage-topic",
    )
    file: Path | None = option(
        Checked("PATH", file_path, shown="none, off"),
        "Write usage records to this file instead, one JSON object per line. It is reopened for each write, so it can"
        " be rotated.",
        flags="--usage-file",
    )
    interval_seconds: float = option(
        Checked("DURATION", partial(values.parse_duration, lowest=1, highest=600), default="10s"),
        "Time between two records of a series that changes, reduced at random by up to 20 %. A process that is killed"
        " loses what it counted in this time.",
        flags="--usage-interval",
    )
    by_topic: bool = switch(
        "Also count record bytes by topic. This parses Produce requests and Fetch responses.", flags="--usage-by-topic"
    )
    max_series: int = option(
        Checked("N", values.whole_number(1, 1_000_000), default="10000"),
        "Number of series with their own records; further ones are counted as client id 'other', and so are clients "
        "beyond --max-metric-entities.",
        flags="--max-usage-series",
    )
    labels: tuple[tuple[str, str], ...] = option(
        Checked("NAME=VALUE", values.parse_label),
        "A label for all records, such as team=search. If a name is repeated, the last value wins.",
        multiple=True,
        flags="--label",
    )
    sidecar_name: str | None = option(
        Checked("NAME", values.parse_name, shown="the name of the host"),
        "Name of this process in records; keep it across restarts.",
    )

    @property
    def is_on(self) -> bool:
        return self.topic is not None or self.file is not None


@dataclass(frozen=True, kw_only=True)
class SecurityOptions:
    """Bounds on what clients and brokers may use, and which APIs pass.

    `handshake_timeout_seconds` covers the PROXY header, the TLS handshake and the first complete request together.
    0 means no timeout, as it does for `connections_max_idle_seconds`.
    """

    max_request_bytes: int = option(
        Checked("BYTES", values.parse_size, default="104857600"),
        "Longest request, like the broker's socket.request.max.bytes. 100MB, 256MiB.",
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
        "Memory for bytes that are not forwarded yet, for all connections together. When it is used up, connections "
        "are not read, and /readyz reports it. At least 1MiB, which most clients need for one request.",
    )
    max_pending_requests: int = option(
        Checked("N", values.whole_number(1, 100_000), default="1000"),
        "Requests of one connection that are forwarded and not answered yet. Above this, the connection is not read "
        "until half of them are answered. Each takes about 100 bytes of memory.",
    )
    stalled_client_timeout_seconds: float = option(
        Checked("DURATION", values.parse_duration, default="30s"),
        "While the memory for buffered bytes is used up, close connections whose peer has read nothing for this long,"
        " those with the most buffered bytes first.",
        flags="--stalled-client-timeout",
    )
    handshake_timeout_seconds: float = option(
        Checked("DURATION|off", values.parse_duration_or_off, default="30s"),
        "Close connections that have not sent a complete request, or the header for --proxy-protocol-from, within "
        "this time.",
        flags="--handshake-timeout",
    )
    connections_max_idle_seconds: float = option(
        Checked("DURATION|off", values.parse_duration_or_off, default="off"),
        "Close connections without traffic for this long, like the broker's connections.max.idle.ms. Throttled "
        "connections and those with a request in flight are not idle. Linux only.",
        flags="--connections-max-idle",
    )
    sasl_oauthbearer_sub_claim_name: str = option(
        Checked("NAME", values.parse_name, default="sub"),
        "Claim of a token (OAUTHBEARER) that contains the user, like the broker's sasl.oauthbearer.sub.claim.name.",
    )
    allow_open_relay: bool = switch(
        "Accept clients from other hosts without --ssl-client-auth required although the proxy logs in: anyone who "
        "can reach the port has the rights of its login."
    )
    pass_unknown_apis: bool = switch(
        "Forward APIs that this proxy does not know. Their responses may contain a broker's real address, with which "
        "clients can bypass quotas."
    )


@dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of one proxy process, in the groups of `--help`, which describes each option.

    The defaults are those of the options. `upstream` is the file of `--command-config`. `internal_client` is the file
    for the proxy's internal clients: that of `--own-client-config`, or otherwise the same one. `internal_servers` are
    its bootstrap.servers, or () for those of all connections. `file` is that of `--config`. For `sources` see
    `proxy.config.effective`.
    """

    bootstrap_servers: tuple[Address, ...] = option(
        Checked(
            "HOST:PORT[,HOST:PORT...]", values.parse_addresses, shown="bootstrap.servers of --command-config, required"
        ),
        "Brokers to forward to; the proxy learns the others from their responses. The variable can be named after "
        "either flag; ..._SERVERS takes precedence.",
        unset=(),
        flags="--bootstrap-servers --bootstrap-server",
    )
    upstream: ClientSettings = option(
        Checked("FILE", file_path, shown="none, plaintext"),
        "How to connect to brokers: Kafka's client.properties, with PEM files for TLS. With sasl.* the proxy logs in "
        "and clients do not; otherwise the logins of clients pass through. Its bootstrap.servers are used if "
        "--bootstrap-servers is missing.",
        unset=ClientSettings(),
        flags="--command-config",
    )
    internal_client: ClientSettings = option(
        Checked("FILE", file_path, shown="the file of --command-config"),
        "How the proxy's internal clients connect to brokers, for the topics of fleets, usage records and quotas and "
        "for --cluster-quotas: a file like that of --command-config. They use its bootstrap.servers. Needed where "
        "clients log in themselves.",
        unset=ClientSettings(),
        flags="--own-client-config",
    )
    internal_servers: tuple[Address, ...] = ()
    listening: ListeningOptions = ListeningOptions()
    quotas: QuotaOptions = QuotaOptions()
    fleet: FleetOptions = FleetOptions()
    enforcement: EnforcementOptions = EnforcementOptions()
    observability: ObservabilityOptions = ObservabilityOptions()
    usage: UsageOptions = UsageOptions()
    security: SecurityOptions = SecurityOptions()
    file: Path | None = option(
        Checked("FILE.toml", file_path),
        "Read options from a file: keys are option names with underscores, and repeatable options are lists. A flag "
        "overrides the environment, which overrides the file. The proxy watches the file: dry_run, throttle_mode, "
        "log_level, quota, quota_share and quotas_file change while it runs; other changes need a restart.",
        is_eager=True,
        expose_value=True,
        callback=lambda ctx, _param, value: take_defaults_from(ctx, value),
        flags="--config",
    )
    event_loop: str = option(one_of("uvloop", "asyncio", default="uvloop"), "The event loop; uvloop is faster.")
    sources: Mapping[str, tuple[str, str]] = field(default_factory=dict, compare=False, repr=False)


GROUPS: Final = {
    "Upstream": options_of(Config)[:3],
    "Listening": options_of(ListeningOptions),
    "Quotas": options_of(QuotaOptions) + options_of(FleetOptions),
    "Enforcement": options_of(EnforcementOptions),
    "Observability": options_of(ObservabilityOptions),
    "Usage": options_of(UsageOptions),
    "Security": options_of(SecurityOptions),
    "Process": options_of(Config)[3:],
}
"""The options of `run` by title, in the order of --help."""
