"""From flags, environment and file to one Config, or to a list of everything that is wrong."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from ipaddress import ip_network
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from proxy.config.cautions import warnings_of
from proxy.config.client_file import read_client_settings
from proxy.config.config import Config, ServerSsl
from proxy.config.quotas_file import active_quotas
from proxy.config.values import parse_disk_marks
from quotas.exemption import Exemption
from quotas.parsing.parse import parse_spec
from tests.proxy.command_line import UPSTREAM, config, errors


@pytest.fixture
def toml(tmp_path: Path) -> Any:
    """Writes a TOML file, and returns its path."""

    def write(text: str, name: str = "proxy.toml") -> Path:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def entries(found: Config) -> dict[str, Mapping[str, Any]]:
    return {str(entry.entity): dict(entry.limits) for entry in active_quotas(found).entries}


# ---- defaults and precedence
def test_the_command_line_and_the_class_have_the_same_defaults() -> None:
    assert config(*UPSTREAM) == Config(bootstrap_servers=(("broker", 9092),))


def test_the_key_is_in_the_file_of_the_certificate_unless_it_has_its_own() -> None:
    found = config(*UPSTREAM, "--ssl-certificate-location", "proxy.pem").listening.ssl
    assert found == ServerSsl(certificate=Path("proxy.pem"), key=Path("proxy.pem"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ssl-key-location", "k"], "--ssl-key-location 'k': has no effect without --ssl-certificate-location"),
        (["--ssl-client-auth", "required"], "has no effect without --ssl-certificate-location"),
        (["--ssl-certificate-location", "c", "--ssl-client-auth", "required"], "needs --ssl-ca-location, the CA"),
        (["--ssl-certificate-location", "c", "--ssl-ca-location", "ca"], "does not use --ssl-ca-location: set"),
        (["--ssl-principal-mapping-rules", "RULE:(/x/"], "pattern '('"),
        (["--ssl-client-auth", "require"], "did you mean 'required'?"),
    ],
)
def test_options_of_tls_that_do_not_fit_together(flags: list[str], message: str) -> None:
    assert any(message in each for each in errors(*UPSTREAM, *flags))


RULES = "RULE:^CN=(.*?),.*$/$1/L,DEFAULT"
NETWORKS = (ip_network("10.0.0.0/8"), ip_network("::1/128"))
#: Flags, and the field that each sets.
FIELDS: dict[str, tuple[str, object]] = {
    "--listen 0.0.0.0:9000": ("listening.address", ("0.0.0.0", 9000)),  # noqa: S104  (a test of just that)
    "--fleet etl": ("fleet.name", "etl"),
    "--fleet-topic shared": ("fleet.topic", "shared"),
    "--fleet-max-members 40": ("fleet.max_members", 40),
    "--fleet-fallback floor": ("fleet.fallback", "floor"),
    "--fleet-admin-address etl-7:80": ("fleet.admin_address", ("etl-7", 80)),
    "--broker-ports 9100-9101": ("listening.broker_ports", range(9100, 9102)),
    "--broker-port 7=9200 --broker-port 8=9201": ("listening.node_ports", {7: 9200, 8: 9201}),
    "--advertised-host proxy.svc": ("listening.advertised_host", "proxy.svc"),
    "--proxy-protocol-from 10.0.0.0/8 --proxy-protocol-from ::1": ("listening.proxy_protocol_from", NETWORKS),
    "--ssl-certificate-location crt --ssl-key-location key --ssl-ca-location ca --ssl-client-auth requested "
    f"--ssl-principal-mapping-rules {RULES}": (
        "listening.ssl",
        ServerSsl(
            certificate=Path("crt"), key=Path("key"), ca=Path("ca"), client_auth="requested", principal_rules=RULES
        ),
    ),
    "--reuse-port": ("listening.reuse_port", True),
    "--max-connection-age 1h": ("listening.max_connection_age_seconds", 3600.0),
    "--drain-timeout 500ms": ("listening.drain_timeout_seconds", 0.5),
    "--max-connections 5": ("security.max_connections", 5),
    "--socket-request-max-bytes 1MB": ("security.max_request_bytes", 1_000_000),
    "--socket-response-max-bytes 2MiB": ("security.max_response_bytes", 2_097_152),
    "--max-buffered-bytes 3MB": ("security.max_buffered_bytes", 3_000_000),
    "--max-pending-requests 50": ("security.max_pending_requests", 50),
    "--stalled-client-timeout 5s": ("security.stalled_client_timeout_seconds", 5.0),
    "--handshake-timeout off": ("security.handshake_timeout_seconds", 0.0),
    "--connections-max-idle 10m": ("security.connections_max_idle_seconds", 600.0),
    "--sasl-oauthbearer-sub-claim-name email": ("security.sasl_oauthbearer_sub_claim_name", "email"),
    "--allow-open-relay": ("security.allow_open_relay", True),
    "--pass-unknown-apis": ("security.pass_unknown_apis", True),
    "--client-id spark-etl": ("quotas.client_id", "spark-etl"),
    "--principal CN=etl,O=acme": ("quotas.principal", "CN=etl,O=acme"),
    "--quota client-id=etl,request_rate=5": ("quotas.entries", (parse_spec("client-id=etl,request_rate=5"),)),
    "--quota-share 0.25": ("quotas.share", 0.25),
    "--quota-algorithm sampled-window": ("quotas.algorithm", "sampled-window"),
    "--quota-window-num 5": ("quotas.window_num", 5),
    "--quota-window-size-seconds 0.5": ("quotas.window_size_seconds", 0.5),
    "--first-window off": ("quotas.first_window", False),
    "--producer-id-quota-window-size-seconds 60": ("quotas.producer_id_window_size_seconds", 60),
    "--producer-id-quota-window-count 6": ("quotas.producer_id_window_count", 6),
    "--max-connection-hold 1.5s": ("enforcement.max_connection_hold_seconds", 1.5),
    "--quotas-topic quotas": ("quotas.topic", "quotas"),
    "--quota-api proxy": ("quotas.api", "proxy"),
    "--quota-admins User:alice --quota-admins bob": ("quotas.admins", ("alice", "bob")),
    "--cluster-quotas per-broker": ("quotas.cluster", "per-broker"),
    "--throttle-mode notify": ("enforcement.throttle_mode", "notify"),
    "--max-throttle-ms 1000": ("enforcement.max_throttle_ms", 1000),
    "--dry-run": ("enforcement.dry_run", True),
    "--disk-guard 50GB..20GB": ("enforcement.disk_guard", parse_disk_marks("50GB..20GB")),
    "--disk-guard-exempt user=root": ("enforcement.disk_guard_exempt", (Exemption(("root",)),)),
    "--metrics-listen [::1]:0": ("observability.metrics_listen", ("::1", 0)),
    "--metrics-allowed-host P.svc --metrics-allowed-host m": ("observability.metrics_allowed_hosts", ("P.svc", "m")),
    "--client-telemetry": ("observability.client_telemetry", True),
    "--max-metric-entities 10": ("observability.max_metric_entities", 10),
    "--log-format json": ("observability.log_format", "json"),
    "--log-level debug": ("observability.log_level", "debug"),
    "--usage-topic usage": ("usage.topic", "usage"),
    "--usage-interval 1m": ("usage.interval_seconds", 60.0),
    "--usage-by-topic": ("usage.by_topic", True),
    "--max-usage-series 7": ("usage.max_series", 7),
    "--label team=search --label env=a=b": ("usage.labels", (("env", "a=b"), ("team", "search"))),
    "--sidecar-name pod-7": ("usage.sidecar_name", "pod-7"),
}
LOGIN = "sasl.mechanism=PLAIN\nsasl.username=u\nsasl.password=p\n"
#: These cannot stand beside others.
ELSEWHERE = {"usage.file": None, "listening.sni_host": None}


def test_every_field_can_be_set_and_arrives(toml: Any) -> None:
    quotas = toml('[[quota]]\nclient-id = "etl"\nproducer_byte_rate = "5MB"\n', "quotas.toml")
    client = toml(f"security.protocol=SASL_PLAINTEXT\n{LOGIN}", "client.properties")
    found = config(
        *("--bootstrap-server", "a:1,b:2", "--event-loop", "asyncio"),
        *("--command-config", str(client), "--own-client-config", str(client), "--quotas-file", str(quotas)),
        *(" ".join(FIELDS).split()),
    )
    given = {
        f"{group.name}.{field.name}": getattr(getattr(found, group.name), field.name)
        for group in fields(Config)
        if is_dataclass(getattr(found, group.name)) and group.name not in {"upstream", "internal_client"}
        for field in fields(getattr(found, group.name))
    }
    assert found.upstream == found.internal_client == read_client_settings(client)
    assert (found.bootstrap_servers, found.event_loop) == ((("a", 1), ("b", 2)), "asyncio")
    assert given == {**dict(FIELDS.values()), **ELSEWHERE, "quotas.file": quotas}


# One option of each kind: by flag, by variable, by file, three values that differ; the field, and that of the flag
WAYS = [
    ("--listen", "127.0.0.1:1001", "127.0.0.1:1002", '"127.0.0.1:1003"', "listening.address", ("127.0.0.1", 1001)),
    ("--max-throttle-ms", "1", "2", "3", "enforcement.max_throttle_ms", 1),
    ("--drain-timeout", "1s", "2s", "3", "listening.drain_timeout_seconds", 1.0),
    ("--quota-share", "0.1", "0.2", "0.3", "quotas.share", 0.1),
    ("--client-id", "a", "b", '"c"', "quotas.client_id", "a"),
    ("--log-level", "debug", "warn", '"error"', "observability.log_level", "debug"),
    ("--quota-window-size-seconds", "2", "3", "4", "quotas.window_size_seconds", 2.0),
    ("--handshake-timeout", "1s", "2s", '"off"', "security.handshake_timeout_seconds", 1.0),
    ("--proxy-protocol-from", "::1", "::2;::3", '["::4"]', "listening.proxy_protocol_from", (ip_network("::1"),)),
    ("--usage-file", "a", "b", '"c"', "usage.file", Path("a")),
    ("--label", "a=1", "b=2;c=3", '["d=4"]', "usage.labels", (("a", "1"),)),
    ("--metrics-allowed-host", "a", "b;c", '["d"]', "observability.metrics_allowed_hosts", ("a",)),
    ("--broker-port", "1=2001", "1=2002", '["1=2003"]', "listening.node_ports", {1: 2001}),
]


@pytest.mark.parametrize(("flag", "by_flag", "by_env", "by_file", "field", "value"), WAYS)
def test_flag_before_environment_before_file_before_default(
    flag: str, by_flag: str, by_env: str, by_file: str, field: str, value: object,
    toml: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    key = flag.removeprefix("--").replace("-", "_")
    read = attrgetter(field)
    default = read(config(*UPSTREAM))
    in_file = ("--config", str(toml(f"{key} = {by_file}\n")))

    from_flag = read(config(*UPSTREAM, flag, by_flag))
    from_file = read(config(*UPSTREAM, *in_file))
    monkeypatch.setenv(f"KAFKA_QUOTA_PROXY_{key.upper()}", by_env)
    from_environment = read(config(*UPSTREAM))

    assert from_flag == value
    values = [default, from_flag, from_environment, from_file]
    assert all(one != other for at, one in enumerate(values) for other in values[at + 1 :])
    assert read(config(*UPSTREAM, *in_file)) == from_environment, "environment over file"
    assert read(config(*UPSTREAM, flag, by_flag)) == from_flag, "flag over environment"
    monkeypatch.delenv(f"KAFKA_QUOTA_PROXY_{key.upper()}")
    assert read(config(*UPSTREAM, *in_file, flag, by_flag)) == from_flag, "flag over file"


def test_a_switch_can_be_turned_off_again_at_every_stage(toml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    in_file = ("--config", str(toml("dry_run = true\n")))
    assert config(*UPSTREAM, *in_file).enforcement.dry_run
    monkeypatch.setenv("KAFKA_QUOTA_PROXY_DRY_RUN", "false")
    assert not config(*UPSTREAM, *in_file).enforcement.dry_run
    assert config(*UPSTREAM, *in_file, "--dry-run").enforcement.dry_run
    monkeypatch.setenv("KAFKA_QUOTA_PROXY_DRY_RUN", "true")
    assert not config(*UPSTREAM, *in_file, "--no-dry-run").enforcement.dry_run


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_QUOTA_PROXY_LISTEN", "")
    assert config(*UPSTREAM).listening.address == ("127.0.0.1", 19092)


@pytest.mark.parametrize("variable", ["KAFKA_QUOTA_PROXY_BOOTSTRAP_SERVERS", "KAFKA_QUOTA_PROXY_BOOTSTRAP_SERVER"])
def test_a_flag_of_two_names_has_a_variable_for_each(variable: str, toml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "a:1,b:2")
    assert config().bootstrap_servers == (("a", 1), ("b", 2))
    in_file = ("--config", str(toml('bootstrap_servers = "c:3"\n')))
    assert config(*in_file).bootstrap_servers == (("a", 1), ("b", 2)), "environment over file"
    assert config(*UPSTREAM).bootstrap_servers == (("broker", 9092),), "flag over environment"
    monkeypatch.setenv(variable, "kafka")
    assert errors()[0].splitlines()[0] == f"error: {variable} 'kafka': expected HOST:PORT[,HOST:PORT...]"


def test_of_both_variables_of_a_flag_the_first_counts(toml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_QUOTA_PROXY_BOOTSTRAP_SERVERS", "a:1")
    monkeypatch.setenv("KAFKA_QUOTA_PROXY_BOOTSTRAP_SERVER", "b:2")
    assert config().bootstrap_servers == (("a", 1),)
    monkeypatch.setenv("KAFKA_QUOTA_PROXY_BOOTSTRAP_SERVERS", "")
    assert config().bootstrap_servers == (("b", 2),)
    monkeypatch.delenv("KAFKA_QUOTA_PROXY_BOOTSTRAP_SERVER")
    monkeypatch.setenv("KAFKA_QUOTA_PROXY_CONFIG", str(toml('bootstrap_servers = ["a:1", "b:2"]\n')))
    assert config().bootstrap_servers == (("a", 1), ("b", 2)), "the file may be named by a variable, too"


def test_the_quotas_file_is_found_beside_the_file_that_names_it(toml: Any) -> None:
    toml('[[quota]]\nclient-id = "etl"\nproducer_byte_rate = "5MB"\n', "quotas.toml")
    found = config(*UPSTREAM, "--config", str(toml('quotas_file = "quotas.toml"\n')))
    assert entries(found) == {"client-id:etl": {"producer_byte_rate": 5_000_000}}


# ---- ports and hosts
@pytest.mark.parametrize(
    ("flags", "ports"),
    [
        ("--listen 127.0.0.1:9000", range(9001, 9021)),
        ("--listen 127.0.0.1:0", None),
        ("--listen 127.0.0.1:0 --broker-ports 5000-5001", range(5000, 5002)),
        ("--broker-ports 0", None),
    ],
)
def test_the_broker_ports_follow_the_listen_port_unless_the_kernel_chooses_it(flags: str, ports: range | None) -> None:
    assert config(*UPSTREAM, *flags.split()).listening.broker_ports == ports


WILDCARDS = ["0.0.0.0", "[::]", "0", "[0:0::0]", "*", "0.0", "0x0", "[::ffff:0.0.0.0]", "0.0.0.0."]  # noqa: S104


@pytest.mark.claim(
    "limits",
    "all interfaces, however they are written, are those of IPv6 and IPv4 on every port, or of "
    "IPv4 alone where there is no IPv6; no wildcard is advertised",
)
@pytest.mark.parametrize("host", WILDCARDS)
def test_every_way_to_write_the_wildcard_needs_an_advertised_host_and_is_none(host: str) -> None:
    (message,) = errors(*UPSTREAM, "--listen", f"{host}:9000")
    assert "needs --advertised-host HOST" in message
    found = config(*UPSTREAM, "--listen", f"{host}:9000", "--advertised-host", "proxy.svc")
    assert found.listening.advertised_host == "proxy.svc"
    (message,) = errors(*UPSTREAM, "--listen", "*:9000", "--advertised-host", host)
    assert "--advertised-host" in message


@pytest.mark.parametrize("option", ["--listen", "--advertised-host", "--bootstrap-servers"])
def test_a_pattern_is_no_host(option: str) -> None:
    host = "*.kafka.test" + ":9000" * (option != "--advertised-host")
    (message,) = errors(*(() if option == "--bootstrap-servers" else UPSTREAM), option, host)
    assert "is not a host name or IP address" in message


SNI = ("--sni-host", "broker-{node}.kafka.test")
TLS = ("--ssl-certificate-location", "crt")


def test_one_port_for_all_brokers_binds_no_other() -> None:
    assert (
        config(*UPSTREAM, "--sni-host", "B-{node}.Kafka.test:443", *TLS).listening.sni_host == "b-{node}.kafka.test:443"
    )
    found = config(*UPSTREAM, *SNI, *TLS, "--listen", "0.0.0.0:9000").listening
    assert (found.broker_ports, found.node_ports) == (range(0), {})
    assert [found.host_of(node) for node in (0, 17)] == ["broker-0.kafka.test", "broker-17.kafka.test"]
    assert config(*UPSTREAM, *SNI, *TLS, "--listen", "127.0.0.1:65535").listening.broker_ports == range(0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (SNI, "needs TLS from clients\n  give --ssl-certificate-location: the server name of a client's handshake"),
        ((*SNI, *TLS, "--broker-ports", "0"), "'broker-{node}.kafka.test': and --broker-ports are both set\n"),
        ((*SNI, *TLS, "--broker-port", "7=9200"), "'broker-{node}.kafka.test': and --broker-port are both set\n"),
        ((*SNI, *TLS, "--quota", "listener=19093,connections=1"), "not listen on port 19093\n  allowed: bootstrap, <d"),
        (("--sni-host", "kafka.test", *TLS), "expected a host with {node} once\n  it stands for a broker's id"),
        (("--sni-host", "{node}.{node}.test", *TLS), "expected a host with {node} once"),
        (("--sni-host", "broker-{node}", *TLS), "expected a host that clients send as server name"),
        (("--sni-host", "10.0.0.{node}", *TLS), "expected a host that clients send as server name"),
        (("--sni-host", "broker_{node}.kafka.test", *TLS), "letters, digits and hyphens, with a domain, as in broker-"),
        (("--sni-host", "b\u00fccher-{node}.test", *TLS), "letters, digits and hyphens"),
        (("--sni-host", "broker-{node}.kafka.test.", *TLS), "with a domain and no dot at its end, as in broker-"),
        (("--sni-host", f"{'b' * 54}{{node}}.test", *TLS), "expected a host that clients send as server name"),
        (("--sni-host", f"{{node}}.{'kafka.' * 41}test", *TLS), "expected a host that clients send as server name"),
        (("--sni-host", "broker-{node}.test:", *TLS), "the port is a number from 1 to 65535, not ''"),
        (("--sni-host", "[::1]:9000", *TLS), "expected HOST or HOST:PORT"),
        (("--sni-host", "kafka.test", "--listen", "0.0.0.0:9000", *TLS), "expected a host with {node} once"),
    ],
)
def test_one_port_for_all_brokers_is_refused_in_one_line(flags: tuple[str, ...], message: str) -> None:
    (found,) = errors(*UPSTREAM, *flags)
    assert message in found


@pytest.mark.parametrize(
    "server", ["127.0.0.1:9000", "localhost:9001", "[::1]:9020", "Proxy.svc:9000", "proxy.svc.:9000"]
)
def test_a_proxy_in_front_of_itself(server: str) -> None:
    (message,) = errors("--bootstrap-servers", server, "--listen", "0.0.0.0:9000", "--advertised-host", "proxy.svc")
    assert message.splitlines()[0].endswith("is a port of this proxy itself")
    assert config("--bootstrap-servers", "localhost:9000").bootstrap_servers, "another port of the same host is fine"


# Everything that can be wrong


#: Flags, and below them what is said.
ERRORS = """
--listen foo
error: --listen 'foo': expected HOST:PORT
  the port is missing

--log-level wran
error: --log-level 'wran': unknown value
  did you mean 'warn'? allowed: debug, info, warn, error

--max-connections 0
error: --max-connections '0': expected a whole number from 1 to 10000000

--proxy-protocol-from 10.1.0.0/8
error: --proxy-protocol-from '10.1.0.0/8': expected an IP network
  did you mean 10.0.0.0/8?

--proxy-protocol-from lb.internal
error: --proxy-protocol-from 'lb.internal': expected an IP network such as 10.0.0.0/8, or an address

--listen 0.0.0.0:9000
error: --listen '0.0.0.0:9000': needs --advertised-host HOST
  responses name this host as that of every broker, and a client cannot connect to '0.0.0.0': \
give the host name or IP address by which clients reach this proxy

--advertised-host 0.0.0.0
error: --advertised-host '0.0.0.0': is not an address that clients can connect to
  give the host name or IP address by which clients reach this proxy

--listen 127.0.0.1:65530
error: --listen '127.0.0.1:65530': has fewer than 20 ports after it
  give --broker-ports FIRST-LAST

--broker-ports 19000-19100
error: --broker-ports 19000-19100: port 19092 is that of --listen '127.0.0.1:19092' (the default)
  each needs its own

--metrics-listen 127.0.0.1:19100
error: --metrics-listen '127.0.0.1:19100': port 19100 is that of --broker-ports 19093-19112 \
(the default: the 20 ports after the listen port)
  each needs its own

--metrics-listen localhost:19092
error: --metrics-listen 'localhost:19092': port 19092 is that of --listen '127.0.0.1:19092' (the default)
  each needs its own

--broker-port 7=19404
error: --metrics-listen '127.0.0.1:19404' (the default): port 19404 is that of --broker-port '7=19404'
  each needs its own

--broker-port 7=9200 --broker-port 8=9200
error: --broker-port '8=9200': port 9200 is that of --broker-port '7=9200'
  each needs its own

--broker-port 7=9200 --broker-port 7=9201
error: --broker-port '7=9201': node 7 already has a port: 9200

--reuse-port --broker-ports 0
error: --broker-ports '0': cannot be shared with --reuse-port: the kernel chooses it
  give fixed ports

--reuse-port --listen 127.0.0.1:0
error: --listen '127.0.0.1:0': cannot be shared with --reuse-port: the kernel chooses it
  give fixed ports

--reuse-port --usage-topic usage
error: --reuse-port: needs --sidecar-name with usage records
  each process needs its own name in them

--max-connection-age 100ms
error: --max-connection-age '100ms': expected a duration such as 20s, 500ms or 2m, or off
  from 1s to 86400s

--bootstrap-servers localhost:19093
error: --bootstrap-servers 'localhost:19093': is a port of this proxy itself
  give the real brokers here, and the address of --listen to clients
"""


@pytest.mark.parametrize("case", ERRORS.strip().split("\n\n"))
def test_each_error_names_its_place_and_what_is_allowed(case: str) -> None:
    flags, _, message = case.partition("\n")
    upstream = () if "--bootstrap-servers" in flags else UPSTREAM
    assert errors(*upstream, *flags.split()) == [message]


def test_everything_that_is_wrong_is_listed_at_once(toml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_QUOTA_PROXY_DRY_RUN", "maybe")
    path = toml('listne = "a:1"\nmax_throttle_ms = "soon"\nquota = "client-id=a"\ndrain_timeout = true\n')
    found = errors("--config", str(path), "--quota-share", "2", "--broker-port", "x", "--broker-port", "y", *UPSTREAM)
    assert len(found) == 8
    assert {message.splitlines()[0].removeprefix("error: ") for message in found} == {
        f"{path}: listne: unknown key",
        f"{path}: quota = 'client-id=a': expected a list",
        f"{path}: max_throttle_ms = 'soon': expected a whole number from 1 to 2147483647",
        f"{path}: drain_timeout = True: expected a duration such as 20s, 500ms or 2m",
        "KAFKA_QUOTA_PROXY_DRY_RUN 'maybe': expected true or false, or on or off",
        "--quota-share '2': expected a fraction above 0 and at most 1, such as 0.25 or 1/40",
        "--broker-port 'x': expected NODE=PORT",
        "--broker-port 'y': expected NODE=PORT",
    }
    assert any("did you mean 'listen'?" in message for message in found)


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ('label = "a=b"', "as in label = ['a=b']"),
        ('[label]\nteam = "a"\nrow = 5', "as in label = ['team=a', 'row=5']"),
        ("[broker_port]\n7 = 19200", "as in broker_port = ['7=19200']"),
        ('[quota]\nclient-id = "a"\nrequest_rate = 5', "belong into a file of their own: name it by quotas_file"),
    ],
)
def test_a_table_instead_of_a_list_is_shown_as_what_was_meant(toml: Any, content: str, hint: str) -> None:
    [error] = errors("--config", str(toml(content)), *UPSTREAM)
    assert "expected a list\n" in error
    assert error.endswith(hint)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"listen = \n", "is not TOML: Invalid value (at line 1, column 10)"),
        (b"\xff", "is not UTF-8 at byte 0\n  save it as UTF-8"),
        (b"quota = " + b"[" * 3_000, "has a number of thousands of digits, or is nested too deeply"),
        (b"max_connections = " + b"9" * 5_000, "has a number of thousands of digits, or is nested too deeply"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_read(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "proxy.toml"
    if content is not None:
        path.write_bytes(content)
    assert errors("--config", str(path)) == [f"error: --config '{path}': {message}"]


def test_a_path_that_no_file_can_have() -> None:
    assert errors(*UPSTREAM, "--quotas-file", "a\0b") == ["error: --quotas-file 'a\\x00b': expected the path of a file"]
    threshold = "topic=orders,bytes.in.per.sec.threshold=5"  # of a total that the file may have
    (message,) = errors(*UPSTREAM, "--quotas-file", "a\0b", "--quota", threshold)
    assert "expected the path of a file" in message


def test_a_quotas_file_given_as_configuration(toml: Any) -> None:
    path = toml('[[quota]]\nclient-id = "etl"\nproducer_byte_rate = "5MB"\n')
    (message,) = errors(*UPSTREAM, "--config", str(path))
    assert message.endswith(" and [[resource-group]] tables belong into a file of their own: name it by quotas_file")


# ---- what is allowed but likely not meant
def test_passing_unknown_apis_is_warned_about() -> None:
    found = config(*UPSTREAM, "--pass-unknown-apis")
    assert [name for name, _ in warnings_of(found, active_quotas(found))] == ["unknown_apis_pass"]


def test_exempt_producers_without_a_disk_guard_are_reported() -> None:
    flags = ("--bootstrap-servers", "a:1", "--disk-guard-exempt", "client-id=ops-*", "--disk-guard-exempt", "user=root")
    found = config(*flags)
    assert [name for name, _ in warnings_of(found, active_quotas(found))] == ["disk_guard_exempt_unused"]
    found = config(*flags, "--disk-guard", "85%..95%")
    assert warnings_of(found, active_quotas(found)) == []
    assert found.enforcement.disk_guard_exempt == (Exemption((), ("ops-*",)), Exemption(("root",)))


def test_options_of_a_fleet_without_its_name_are_reported() -> None:
    flags = ("--bootstrap-servers", "a:1", "--fleet-max-members", "40", "--fleet-fallback", "floor")
    found = config(*flags)
    [(name, fields)] = warnings_of(found, active_quotas(found))
    assert (name, fields["options"]) == ("fleet_option_unused", "--fleet-max-members, --fleet-fallback")
    for given in (flags[:2], (*flags, "--fleet", "etl")):
        found = config(*given)
        assert warnings_of(found, active_quotas(found)) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--quota-api proxy", "--quota-api 'proxy': needs --quotas-topic"),
        ("--quota-admins alice", "--quota-admins: has no effect: the proxy answers no quota API"),
        ("--quotas-topic q --quota-api cluster --quota-admins alice", "--quota-admins: has no effect"),
        ("--quotas-topic q --quota-admins User:", "expected a name, not an empty one"),
        ("--quotas-topic q --quota-api broker", "--quota-api 'broker': unknown value"),
        ("--quotas-topic usage --usage-topic usage", "--quotas-topic 'usage': is also the --usage-topic"),
        ("--quotas-topic a/b", "--quotas-topic 'a/b': Topic name is invalid"),
    ],
)
def test_options_of_the_topic_of_quotas(flags: str, message: str) -> None:
    [error] = errors("--bootstrap-servers", "a:1", *flags.split())
    assert message in error


@pytest.mark.parametrize(
    "user", ["--fleet f", "--usage-topic u", "--cluster-quotas total", "--disk-guard 85%..95%", "--quotas-topic q"]
)
def test_own_clients_need_a_login_where_clients_log_in_themselves(toml: Any, user: str) -> None:
    without = str(toml("security.protocol=SASL_PLAINTEXT\n", "client.properties"))
    own = str(toml(f"security.protocol=SASL_PLAINTEXT\n{LOGIN}", "own.properties"))
    flags = ("--bootstrap-servers", "a:1", "--command-config", without, *user.split())
    flag, name = user.split()
    [error] = errors(*flags)
    assert error.startswith(f"error: {flag} '{name}': has no login: {without} has no sasl settings\n  give one with")
    found = config(*flags, "--own-client-config", own)
    assert found.upstream.login is None
    assert found.internal_client.login is not None


@pytest.mark.parametrize("name", ["", "x" * 65, "caf\u00e9", "a\nb"])
def test_the_name_of_a_fleet_fits_into_its_records(name: str) -> None:
    [error] = errors("--bootstrap-servers", "a:1", "--fleet", name)
    assert "1 to 64 printable ASCII characters" in error
