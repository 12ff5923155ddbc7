"""The configuration of one proxy process, checked and in final units.

The rest of the shell reads only `Config`, no flag, environment variable or file. It never changes. When the files of
`--config` and `--quotas-file` change, `proxy.config_watch` makes another `Config` and `proxy.active_config` applies it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path

from proxy.config.client_settings import ClientSettings
from quotas.entry import QuotaEntry

Address = tuple[str, int]
"""A host (name or IP literal, without brackets) and a TCP port."""

Network = IPv4Network | IPv6Network


def ip_literal(host: str) -> IPv4Address | IPv6Address | None:
    """The address; None: the host is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_wildcard(host: str) -> bool:
    """Whether the host means every interface: a socket can listen on it, but not connect to it (0.0.0.0, [::], 0)."""
    address = ip_literal(host)
    return host in {"", "0"} if address is None else address.is_unspecified


def format_address(address: Address) -> str:
    """`host:port`, with an IPv6 literal in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unmapped(host: str) -> str:
    """An IPv4 address without the `::ffff:` that a socket for both families puts before it."""
    return host.removeprefix("::ffff:") if "." in host else host


@dataclass(frozen=True, kw_only=True)
class ServerSsl:
    """TLS from clients. `ca`: of their certificates; `principal_rules`: how a user is made of the name in one."""

    certificate: Path
    key: Path
    ca: Path | None = None
    client_auth: str = "none"
    principal_rules: str = "DEFAULT"


@dataclass(frozen=True, kw_only=True)
class ListeningOptions:
    """Where clients connect. `ssl`: None: plaintext.

    `broker_ports`: None: the kernel chooses a port for each node. `node_ports`: by node id, in place of one of these.
    """

    address: Address = ("127.0.0.1", 19092)
    broker_ports: range | None = range(19093, 19113)
    node_ports: Mapping[int, int] = field(default_factory=dict)
    advertised_host: str = "127.0.0.1"
    proxy_protocol_from: tuple[Network, ...] = ()
    drain_timeout_seconds: float = 20.0
    ssl: ServerSsl | None = None


@dataclass(frozen=True, kw_only=True)
class QuotaOptions:
    """The quotas, the names that all clients are metered under, and the algorithms. `entries`: those given by flags;
    `share`: in (0, 1].
    """

    client_id: str | None = None
    principal: str | None = None
    entries: tuple[QuotaEntry, ...] = ()
    file: Path | None = None
    share: float = 1.0
    algorithm: str = "token-bucket"
    window_num: int = 11
    window_size_seconds: float = 1.0
    first_window: bool = True
    producer_id_window_size_seconds: int = 3600
    producer_id_window_count: int = 4


@dataclass(frozen=True, kw_only=True)
class EnforcementOptions:
    """What happens to a client over its quota."""

    throttle_mode: str = "auto"
    max_throttle_ms: int = 5000
    max_connection_hold_seconds: float = 8.0
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class ObservabilityOptions:
    """Metrics and logs."""

    metrics_listen: Address = ("127.0.0.1", 19404)
    metrics_allowed_hosts: tuple[str, ...] = ()
    max_metric_entities: int = 1000
    log_format: str = "text"
    log_level: str = "info"


@dataclass(frozen=True, kw_only=True)
class UsageOptions:
    """Usage records. At most one of `topic` and `file` is set; without either no records are written.

    `client`: the file of `--usage-client-config`, else that of `--command-config`.
    `sidecar_name`: None: the name of the host.
    """

    topic: str | None = None
    file: Path | None = None
    interval_seconds: float = 10.0
    bootstrap_servers: tuple[Address, ...] = ()
    client: ClientSettings = field(default_factory=ClientSettings)
    by_topic: bool = False
    max_series: int = 10_000
    labels: tuple[tuple[str, str], ...] = ()
    sidecar_name: str | None = None

    @property
    def is_on(self) -> bool:
        return self.topic is not None or self.file is not None


@dataclass(frozen=True, kw_only=True)
class SecurityOptions:
    """Bounds on what clients and brokers may use, and which APIs pass.

    `handshake_timeout_seconds`: for the PROXY header, the TLS handshake and the first complete request together.
    0, as of `connections_max_idle_seconds`: there is none.
    """

    max_request_bytes: int = 104_857_600
    max_response_bytes: int = 1_073_741_824
    max_connections: int = 10_000
    max_buffered_bytes: int = 268_435_456
    max_pending_requests: int = 1_000
    stalled_client_timeout_seconds: float = 30.0
    handshake_timeout_seconds: float = 30.0
    connections_max_idle_seconds: float = 0.0
    sasl_oauthbearer_sub_claim_name: str = "sub"
    pass_unknown_apis: bool = False


@dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of one proxy process, in the groups of `--help`, which says what each option is.

    The defaults are the same. `upstream`: the file of `--command-config`. `file`: that of `--config`.
    """

    bootstrap_servers: tuple[Address, ...]
    upstream: ClientSettings = field(default_factory=ClientSettings)
    listening: ListeningOptions = ListeningOptions()
    quotas: QuotaOptions = QuotaOptions()
    enforcement: EnforcementOptions = EnforcementOptions()
    observability: ObservabilityOptions = ObservabilityOptions()
    usage: UsageOptions = UsageOptions()
    security: SecurityOptions = SecurityOptions()
    event_loop: str = "uvloop"
    file: Path | None = None
