"""The command as its user meets it: help, messages, exit codes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result

from proxy.command.commands import _serve, main
from proxy.command.commands import run as run_command
from proxy.config.config import Config, ObservabilityOptions
from proxy.config.option_types import Setting
from proxy.process import server
from quotas.limit_kinds import LIMIT_KINDS
from quotas.parsing.limits import scope_keys
from quotas.parsing.names import ENTITY_KEYS
from quotas.parsing.options import OPTION_KEYS
from tests.proxy.brokers.test_nodes import free_ports

OPTIONS = [option for option in run_command.params if isinstance(option, Setting) and not option.hidden]


def invoke(*arguments: str, **environment: str) -> Result:
    runner = CliRunner(env=environment)
    return runner.invoke(main, list(arguments), prog_name="kafka-quota-proxy", terminal_width=110)


# ---- help
@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_option_shows_its_default_and_its_variable(option: Setting) -> None:
    text = " ".join(invoke("run", "--help").output.split())
    assert option.name is not None
    assert option.variables[0] == "KAFKA_QUOTA_PROXY_" + option.name.upper()
    assert re.search(rf"\[default: [^\[\]]*; env: {option.variables[0]}\]", text)
    assert option.help
    assert option.help.endswith(".")


def test_the_help_of_run_names_every_limit_whose_it_may_be_and_every_other_key_of_a_spec() -> None:
    text = invoke("run", "--help").output.split("Scopes of a quota:")[1]
    for key in (*ENTITY_KEYS, *OPTION_KEYS):
        assert re.search(rf"[ ,]{key}=", text), key
    limits = "".join(text.split("Limits, with the scopes")[1].split())  # wrapping breaks lines at hyphens too
    for name, kind in LIMIT_KINDS.items():
        assert f"{name}= {kind.counts} ({', '.join(scope_keys(kind))})".replace(" ", "") in limits, name


# ---- wrong usage
def test_bad_configuration_ends_with_every_message_on_stderr() -> None:
    result = invoke("run", "--listen", "foo", "--quota-share", "7")
    assert (result.exit_code, result.stdout) == (2, "")
    assert [line for line in result.stderr.splitlines() if line.startswith("error: ")] == [
        "error: --listen 'foo': expected HOST:PORT",
        "error: --quota-share '7': expected a fraction above 0 and at most 1, such as 0.25 or 1/40",
        "error: --bootstrap-servers: is missing: there is nothing to forward to",
    ]
    assert all(line.startswith(("error: ", "  ")) for line in result.stderr.splitlines())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--dry-run", "--listen", "a b:1"), " is an option of run: kafka-quota-proxy run --dry-run --listen 'a b:1'"),
        (("--no-such",), "No such option"),
        (("run", "--bootstrap-servrs", "a:1"), "--bootstrap-servers"),
        (("start",), "There is no command 'start': did you mean 'run'?"),
        (("helthcheck",), "There is no command 'helthcheck': did you mean 'healthcheck'?"),
        (("zzz",), "There is no command 'zzz': allowed: "),
    ],
)
def test_who_forgets_run_is_answered(arguments: tuple[str, ...], says: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr


# check


def test_check_has_a_line_for_each_thing_and_an_exit_code(files: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        gone = unused.getsockname()[1]
    (files / "proxy.toml").write_text(f"bootstrap_servers = '127.0.0.1:{gone}'\nlisten = '127.0.0.1:0'\n")
    result = finished("check", str(files / "proxy.toml"), "--metrics-listen", "127.0.0.1:0")
    assert (result.returncode, result.stderr) == (1, "")
    lines = result.stdout.splitlines()
    assert [line[0] for line in lines] == ["✓", "✓", "✓", "✗", " "]
    assert lines[-2] == f"✗ --bootstrap-servers: 127.0.0.1:{gone}: Connection refused"
    assert invoke("check", "--listen", "foo").exit_code == 2


# check-config


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, which is the current one too."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_exemptions_are_listed(files: Path) -> None:
    quotas = [
        "client-id=free,producer_byte_rate=unlimited,request_rate=unlimited",
        "ip=10.0.0.1,connections=unlimited",
        "topic=orders,bytes_in_rate=5MB,messages_in_rate=0.5,exempt-user=alice,exempt-client-id=spark-*",
        "total,producer_byte_rate=50MB,connections=9,exempt-client-id=monitor",
    ]
    (files / "proxy.toml").write_text(f"quota = {quotas}\n")
    result = invoke("check-config", "proxy.toml")
    assert result.exit_code == 0
    still = "; resource groups and the total still apply"
    assert [line.removeprefix("exempt: ") for line in result.stdout.splitlines()[1:]] == [
        f"client-id:free: producer_byte_rate=unlimited, request_rate=unlimited{still}",
        "ip:10.0.0.1: connections=unlimited",
        "topic:orders: bytes_in_rate=5000000 neither counts nor holds user:alice, client-id:spark-*",
        "topic:orders: messages_in_rate=0.5 neither counts nor holds user:alice, client-id:spark-*",
        "total: producer_byte_rate=50000000 neither counts nor holds client-id:monitor",
    ]
    (files / "proxy.toml").write_text(f"quota_share = 0.1\nquota = {quotas[2:]}\n")
    listed = invoke("check-config", "proxy.toml").stdout.split()
    assert {"messages_in_rate=0.05", "producer_byte_rate=5000000"} <= set(listed), "the rates in force"
    (files / "proxy.toml").write_text(f"quota = {[f'ip=10.0.0.{n},connections=unlimited' for n in range(25)]}\n")
    assert invoke("check-config", "proxy.toml").stdout.endswith("connections=unlimited\nexempt: and 5 more\n")


def test_the_file_of_connections_to_brokers_is_checked_too(files: Path) -> None:
    (files / "proxy.toml").write_text('command_config = "client.properties"\n')
    client = files / "client.properties"
    client.write_text(
        "bootstrap.servers=broker:9092\nsecurity.protocol=SASL_PLAINTEXT\nacks=all\n"
        "sasl.mechanism=SCRAM-SHA-512\nsasl.username=etl\nsasl.password=hidden\n"
    )
    for mode, readable in ((0o600, False), (0o640, True), (0o604, True), (0o622, False)):
        client.chmod(mode)
        result = invoke("check-config", "proxy.toml")
        warning = f"warning: client.properties: other users can read its secrets: its mode is {mode:o}\n"
        warning += "  chmod 600 client.properties\n"
        assert (result.exit_code, result.stderr) == (0, warning if readable else "")
    assert result.stdout.startswith(
        "proxy.toml: ok: forwards to broker:9092; by client.properties: SASL_PLAINTEXT, SCRAM-SHA-512 as etl; "
        "ignores acks; listens on"
    )
    client.write_text(f"{client.read_text()}sasl.pasword=hidden")
    for file in ("proxy.toml", "client.properties"):
        result = invoke("check-config", file)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: client.properties:7: sasl.pasword: unknown key\n  did you mean")
        assert "hidden" not in result.stderr


def test_what_has_several_values_is_named(files: Path) -> None:
    (files / "proxy.toml").write_text(
        'command_config = "c.properties"\nlabel = ["team=a", "env=x", "env=x", "team=b"]\n'
    )
    (files / "c.properties").write_text("bootstrap.servers=a:1\nbootstrap.servers=b:1\nclient.id=c\nclient.id=c\n")
    result = invoke("check-config", "proxy.toml")
    assert result.exit_code == 0
    assert result.stderr == (
        "warning: --label: team=a, team=b: the last value wins\n"
        "warning: c.properties: bootstrap.servers: the last value wins\n"
    )


def test_check_config_shows_each_option_with_its_source(files: Path) -> None:
    (files / "client.properties").write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=etl\nsasl.password=hidden\n"
    )
    (files / "client.properties").chmod(0o600)
    text = 'command_config = "client.properties"\nquota = ["client-id=a,request_rate=5"]\nbroker_ports = "1000-1010"\n'
    (files / "proxy.toml").write_text(text)
    result = invoke("check-config", "--show", "proxy.toml", KAFKA_QUOTA_PROXY_LOG_LEVEL="warn")
    assert (result.exit_code, result.stderr) == (0, "")
    assert {" ".join(line.split()) for line in result.stdout.splitlines()} >= {
        "broker_ports 1000-1010 (proxy.toml)",
        "log_level warn (KAFKA_QUOTA_PROXY_LOG_LEVEL)",
        "drain_timeout 20s (default)",
        "quota client-id:a,request_rate=5 (proxy.toml)",
        "command_config client.properties (proxy.toml)",
    }
    assert "hidden" not in result.stdout
    assert "log_level" not in invoke("check-config", "proxy.toml").stdout


def test_a_quotas_file_is_checked_alone(files: Path) -> None:
    (files / "quotas.toml").write_text('dry_run = true\n[[resource-group]]\nname = "g"\nuser = "a"\nrequest_rate = 5\n')
    result = invoke("check-config", "quotas.toml")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith("1 quota entry (with quotas.toml); dry run\n")
    (files / "quotas.toml").write_text('[[quota]]\nuser = "a"\nrequest_rate = 5\n[[qouta]]\n')
    result = invoke("check-config", "quotas.toml")
    assert (result.exit_code, result.stderr) == (
        2,
        "error: quotas.toml: qouta: unknown key 'qouta'\n"
        "  did you mean 'quota'? allowed: quota, resource-group, quota_share, dry_run\n",
    )


# ---- the process
def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "proxy", *arguments]


def clean_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_QUOTA_PROXY_")}
    return {**kept, **more}


def finished(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return ended(command(*arguments), environment)


def ended(given: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        given, capture_output=True, text=True, timeout=60, env=clean_environment(**environment), check=False
    )


LOCAL = (
    *("--bootstrap-servers", "127.0.0.1:1"),  # nobody listens there, and nobody needs to
    *("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"),
)


Running = AbstractContextManager[tuple[subprocess.Popen[str], list[dict[str, Any]]]]


def running(*arguments: str, **environment: str) -> Running:
    """A proxy process that has said what it listens on, and its log lines up to there."""
    return started(command("run", "--log-format", "json", *arguments), environment)


@contextmanager
def started(
    given: Sequence[str], environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[str], list[dict[str, Any]]]]:
    with subprocess.Popen(given, stderr=subprocess.PIPE, text=True, env=clean_environment(**environment)) as process:
        assert process.stderr is not None
        lines: list[dict[str, Any]] = []
        try:
            for line in process.stderr:
                lines.append(json.loads(line))
                if lines[-1]["event"] == "quotas":
                    break
            yield process, lines
        finally:
            process.kill()


def catches(pid: int, number: signal.Signals, line: str = "SigCgt") -> bool:
    """Whether a process has a handler for a signal; with SigIgn as `line`, whether it ignores it."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(re.search(rf"^{line}:\s*([0-9a-f]+)$", status, re.MULTILINE)[1], 16)  # type: ignore[index]
    return bool(caught >> (number - 1) & 1)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT], ids=lambda stop: stop.name)
def test_a_signal_during_the_start_is_a_clean_end_too(stop: signal.Signals) -> None:
    """It comes as soon as a handler of the proxy's own exists, long before the proxy listens."""
    with subprocess.Popen(
        command("run", *LOCAL), stderr=subprocess.PIPE, text=True, env=clean_environment()
    ) as process:
        while not catches(process.pid, signal.SIGTERM):
            assert process.poll() is None
        process.send_signal(stop)
        _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (0, "stopped before it started\n")


def test_the_handlers_of_the_start_are_there_before_anything_slow_is_loaded() -> None:
    probe = (
        "import signal, sys\n"
        "sys.argv[1:] = ['run', '--help']\n"
        "import proxy.command.cli\n"
        "def loaded(number, handler):\n"
        "    print(number.name, sorted({'click', 'cloup', 'asyncio', 'logging'} & set(sys.modules)), flush=True)\n"
        "signal.signal = loaded\n"
        "proxy.command.cli.main()\n"
    )
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.splitlines()[:5] == ["SIGHUP []", "SIGUSR1 []", "SIGUSR2 []", "SIGINT []", "SIGTERM []"]


def test_a_reload_at_the_very_end_does_not_turn_a_clean_exit_into_a_failure() -> None:
    """The interpreter resets handlers before it has ended, but not signals that are ignored."""
    probe = (
        "import atexit, os, sys\n"
        "atexit.register(lambda: (os.write(1, b'exits\\n'), sys.stdin.read()))\n"  # after all others
        "from proxy.command.cli import main; main()\n"
    )
    given = [sys.executable, "-c", probe, "run", *LOCAL]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(given, text=True, env=clean_environment(), **pipes) as process:  # type: ignore[call-overload]
        assert next(line for line in process.stderr if " quotas " in line)
        process.terminate()
        assert process.stdout.readline() == "exits\n"
        assert all(catches(process.pid, number, "SigIgn") for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2))
        process.communicate(timeout=30)
    assert process.returncode == 0


LOADS_COMMANDS = (
    "import proxy.command.cli, proxy.command.commands\n"
    "proxy.command.commands.main = lambda **_: None\nproxy.command.cli.main()\n"
)


@pytest.mark.parametrize(
    ("code", "unneeded"),
    [
        (LOADS_COMMANDS + "import proxy.process.server", ("hypothesis.", "aiokafka")),
        (
            "from proxy.command.commands import main; main(['run', '--help'], standalone_mode=False)",
            ("h11", "kio", "uvloop", "prometheus_client", "asyncio"),
        ),
    ],
    ids=["the server", "help"],
)
def test_what_is_not_needed_is_not_loaded(code: str, unneeded: tuple[str, ...]) -> None:
    probe = f"import sys\n{code}\nprint([name for name in sys.modules if name.startswith({unneeded})], file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60)
    assert result.stderr == "[]\n"


def test_a_check_of_a_configuration_that_is_stopped_does_not_end_as_a_good_one() -> None:
    probe = (
        "import sys\n"
        "sys.argv[1:] = ['check-config', 'proxy.toml']\n"
        "import proxy.command.cli, proxy.command.commands\n"
        "proxy.command.commands.main = lambda **_: print('checks', flush=True) or sys.stdin.read()\n"
        "proxy.command.cli.main()\n"
    )
    command = [sys.executable, "-c", probe]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "checks\n"
        process.terminate()
        assert process.wait(timeout=30) == -signal.SIGTERM


def test_the_start_says_what_it_does_and_what_is_likely_not_meant() -> None:
    flags = ("--client-id", "etl", "--quota", "client-id=spark-etl,request_rate=1")
    labels = ("--label", "a=b", "--label", "c=d", "--label", "a=c")
    with running(*LOCAL, "--client-id=other", *flags, *labels) as (_, lines):
        events = {line["event"]: line for line in lines}
    repeated = [(line["flag"], line["values"]) for line in lines if line["event"] == "flag_repeated"]
    assert repeated == [("--client-id", "other, etl"), ("--label", "a=b, a=c")]
    never = events["quota_never_matches"]
    assert (never["level"], never["entities"], never["flag"]) == ("WARN", "client-id:spark-etl", "--client-id etl")
    assert events["listening"]["upstream"] == "127.0.0.1:1"
    assert re.fullmatch(r"127\.0\.0\.1:\d+", events["listening"]["bootstrap"])
    assert "this process only" in events["quotas"]["scope"]


def with_descriptors(limit: int, *arguments: str) -> list[str]:
    """A command with this limit on open files, which it cannot raise."""
    return ["sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh", *command(*arguments)]


@pytest.mark.parametrize("count", [0, 20])
@pytest.mark.parametrize("command_name", ["run", "check"])
def test_too_few_descriptors_are_refused_with_the_number_that_is_needed(command_name: str, count: int) -> None:
    """Otherwise the event loop fails in its own ways: with an IndexError, or because it cannot be closed."""
    listen, broker_ports = "127.0.0.1:0", "0"
    if count:
        ports = free_ports(count + 1)
        listen, broker_ports = f"127.0.0.1:{ports[0]}", f"{ports[1]}-{ports[-1]}"
    own = ("--bootstrap-servers", "127.0.0.1:1", "--metrics-listen", "127.0.0.1:0")
    arguments = (*own, "--listen", listen, "--broker-ports", broker_ports)
    for limit in (12, count + 31):
        result = ended(with_descriptors(limit, command_name, *arguments), {})
        needed = f"at least {count + 32} are needed for the ports and one client"
        message = f"error: the limit on open files is {limit}, but {needed}\n  raise the hard limit (ulimit -Hn, "
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr == f"{message}LimitNOFILE=)\n"
    if command_name == "run":
        with started(with_descriptors(count + 32, "run", "--log-format", "json", *arguments), {}) as (_, lines):
            assert "few_descriptors" in {line["event"] for line in lines}


@pytest.mark.claim("operate", "the admin port answers while all connections that the descriptors allow are open")
@pytest.mark.parametrize("event_loop", ["uvloop", "asyncio"])
def test_probes_are_answered_when_clients_take_all_descriptors(event_loop: str) -> None:
    """A probe that fails then would make the kubelet restart the proxy."""
    with ExitStack() as opened:
        broker = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=100))
        servers = ("--bootstrap-servers", f"127.0.0.1:{broker.getsockname()[1]}", "--broker-ports", "0")
        own = ("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--event-loop", event_loop)
        given = with_descriptors(60, "run", "--log-format", "json", *servers, *own)
        _, lines = opened.enter_context(started(given, {}))
        events = {line["event"]: line for line in lines}
        most = (60 - 32) // 2
        assert events["few_descriptors"]["effect"] == f"at most {most} connections are accepted at once"
        host, _, port = events["listening"]["bootstrap"].partition(":")
        clients = [opened.enter_context(socket.create_connection((host, int(port)), 30)) for _ in range(3 * most)]
        for client in clients[most:]:
            assert client.recv(1) == b"", "it was closed"
        with urlopen(events["listening"]["metrics"].replace("metrics", "healthz"), timeout=30) as response:  # noqa: S310
            assert response.read().startswith(b"listening on 1 ports, 14 connections")


SLOW_RESOLVER = """
import socket, time
real = socket.getaddrinfo
def getaddrinfo(host, *arguments, **options):
    if str(host).endswith(".slow"):
        time.sleep(600)
    return real(host, *arguments, **options)
socket.getaddrinfo = getaddrinfo
"""


@pytest.mark.claim(
    "limits",
    "a resolver that does not answer keeps no other limit waiting, and neither the start nor the end of the proxy",
)
def test_no_resolver_keeps_the_proxy_from_starting_and_ending(tmp_path: Path) -> None:
    """Names in limits of flags and of the file, and those of brokers."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_RESOLVER)
    quotas = tmp_path / "quotas.toml"
    names = [f"executor-{number}" for number in range(30)]
    tables = "".join(f'[[quota]]\nip = "{name}.slow"\nconnections = 5\n' for name in names)
    quotas.write_text('[[quota]]\nclient-id = "etl"\nproducer_byte_rate = 7000000\n' + tables)
    flags = ("--quotas-file", str(quotas), "--quota", "ip=driver.slow,connections=3")
    slow = ("--bootstrap-servers", "kafka.slow:9092", *LOCAL[2:])
    with running(*slow, *flags, PYTHONPATH=str(tmp_path)) as (process, lines):
        events = {line["event"]: line for line in lines}
        assert "client-id:etl producer_byte_rate=7000000" in events["quotas"]["held"]
        assert "driver.slow" in events["host_names_pending"]["entities"]
        process.terminate()
        assert process.wait(timeout=20) == 0


def variables_of_service(name: str) -> dict[str, str]:
    """As the kubelet sets them for a Service with one port, in upper case and with `_` for `-`."""
    return {
        f"{name}_SERVICE_HOST": "10.43.0.7",
        f"{name}_SERVICE_PORT": "19092",
        f"{name}_SERVICE_PORT_KAFKA": "19092",
        f"{name}_PORT": "tcp://10.43.0.7:19092",
        f"{name}_PORT_19092_TCP": "tcp://10.43.0.7:19092",
        f"{name}_PORT_19092_TCP_PROTO": "tcp",
        f"{name}_PORT_19092_TCP_PORT": "19092",
        f"{name}_PORT_19092_TCP_ADDR": "10.43.0.7",
    }


@pytest.mark.claim(
    "limits",
    "a Service whose name is like that of an option does not set the option, and a wrong value of "
    "the user stays an error",
)
def test_variables_of_a_service_do_not_set_an_option_of_that_name() -> None:
    services = [variables_of_service(f"KAFKA_QUOTA_PROXY_{name}") for name in ("BROKER", "LISTEN", "METRICS")]
    variables = {name: value for each in services for name, value in each.items()}
    with running(*LOCAL, **variables) as (_, lines):
        [line] = [
            line for line in lines if line["event"] in ("service_variable_ignored", "unknown_environment_variable")
        ]
    assert line["event"] == "service_variable_ignored"
    assert (line["variable"], line["service"]) == ("KAFKA_QUOTA_PROXY_BROKER_PORT", "kafka-quota-proxy-broker")


def misspelt(name: str, meant: str) -> str:
    return f"KAFKA_QUOTA_PROXY_{name}: unknown variable\n  did you mean KAFKA_QUOTA_PROXY_{meant}?"


@pytest.mark.claim(
    "limits",
    "slips in flags, variables and files are refused in one line with what to correct: servers "
    "without commas or twice, a misspelt variable, an empty file, YAML, dry_run = yes",
)
@pytest.mark.parametrize(
    ("flags", "service", "names", "says"),
    [
        (LOCAL, "_BROKER", {"BROKER_PORT": "19200"}, ["KAFKA_QUOTA_PROXY_BROKER_PORT '19200': expected NODE=PORT"]),
        (
            LOCAL,
            "",
            {"QOUTA": "x", "QUOTAS_FIL": "x"},
            [misspelt("QOUTA", "QUOTA"), misspelt("QUOTAS_FIL", "QUOTAS_FILE")],
        ),
        (
            (),
            "",
            {"BOOTSTRAP": "k:1"},
            [misspelt("BOOTSTRAP", "BOOTSTRAP_SERVER"), "--bootstrap-servers: is missing: "],
        ),
    ],
    ids=["a wrong value beside a Service of that name", "misspelt", "misspelt where its option is missing"],
)
def test_wrong_variables(flags: tuple[str, ...], service: str, names: dict[str, str], says: list[str]) -> None:
    given = {f"KAFKA_QUOTA_PROXY_{name}": value for name, value in names.items()}
    result = finished("run", *flags, **variables_of_service(f"KAFKA_QUOTA_PROXY{service}") | given)
    assert result.returncode == 2
    errors = result.stderr.removeprefix("error: ").split("\nerror: ")
    assert all(any(error.startswith(each) for error in errors) for each in says), errors
    assert len(errors) == len(says)


def test_a_variable_that_is_almost_one_of_ours_is_pointed_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that the process ends by itself
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        of_explain = "KAFKA_QUOTA_PROXY_PROXY"
        wrong = "KAFKA_QOUTA_PROXY_QUOTA", "kafka_quota_proxy_listen", "KAFKA_QUOTA_PROXY_1234567", "KAFKA_HOME"
        variables = {
            **dict.fromkeys((of_explain, *wrong), "x"),
            **variables_of_service("KAFKA_QUOTA_PROXY"),
            "KAFKA_QUOTA_PROXY_BOOTSTRAP_SERVER": "kafka:9092",
        }
        result = finished("run", *LOCAL, "--metrics-listen", address, **variables)
    assert result.returncode == 1
    found = [line.partition(" variable=")[2] for line in result.stderr.splitlines() if "unknown_environment" in line]
    assert sorted(found) == [  # not the alias, which is as good, nor what Kubernetes sets for a Service
        "KAFKA_QOUTA_PROXY_QUOTA did_you_mean=KAFKA_QUOTA_PROXY_QUOTA",
        "KAFKA_QUOTA_PROXY_1234567",
        "kafka_quota_proxy_listen did_you_mean=KAFKA_QUOTA_PROXY_LISTEN",
    ]


@pytest.mark.parametrize("flag", ["--listen", "--metrics-listen"])
def test_a_taken_port_is_exit_code_1_and_names_the_flag(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = finished("run", *LOCAL, flag, address, "--broker-ports", "0")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == f"error: {flag}: cannot listen on {address}: Address already in use"
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("log_level", ["info", "debug"])
def test_what_nobody_foresaw_is_one_line_and_a_traceback_only_at_debug(
    log_level: Literal["info", "debug"], monkeypatch: pytest.MonkeyPatch, capsys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_config: Config, _read_again: object) -> int:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(server, "run", fail)
    caplog.set_level(log_level.upper(), "proxy")
    config = Config(bootstrap_servers=(), observability=ObservabilityOptions(log_level=log_level))
    assert _serve(config, lambda: config) == 1
    assert capsys.readouterr().err == "error: RuntimeError: two lines\n  --log-level debug shows where\n"
    assert ("in fail" in caplog.text) == (log_level == "debug")


def test_the_installed_command_is_the_same() -> None:
    installed = Path(sys.executable).with_name("kafka-quota-proxy")
    result = subprocess.run([installed, "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == finished("--version").stdout
