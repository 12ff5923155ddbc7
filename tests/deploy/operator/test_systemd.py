"""The unit: by systemd's own checks, and under a real systemd as process 1 of a container (systemd-nspawn).

The container shares the network of the host, so the test asks the proxy as a scraper would.
"""

import contextlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import trustme

from tests.deploy.operator.cache import ROOT, debian_root, run, system_tool

UNIT: Final = ROOT / "deploy/systemd/kafka-quota-proxy.service"
TEMPLATE: Final = UNIT.with_name("kafka-quota-proxy@.service")
PORT: Final = 29492
ADMIN: Final = 29404
#: A port that only root may listen on, or who has CAP_NET_BIND_SERVICE.
LOW: Final = 949
CONFIG: Final = f"""
bootstrap_servers = "127.0.0.1:{PORT - 1}"
listen = "127.0.0.1:{PORT}"
broker_ports = "{PORT + 1}-{PORT + 3}"
metrics_listen = "127.0.0.1:{ADMIN}"
quotas_file = "/etc/kafka-quota-proxy/quotas.toml"
"""
#: As the README says: a secret of root's that the proxy reads.
CREDENTIAL: Final = "LoadCredential=client.properties:/etc/kafka-quota-proxy/client.properties"
READS_IT: Final = 'command_config = "/run/credentials/kafka-quota-proxy.service/client.properties"'
QUOTA: Final = '[[quota]]\nclient-id = "etl"\nproducer_byte_rate = "{}MB"\n'
INSTALLED: Final = "opt/kafka-quota-proxy"
pytestmark = [pytest.mark.deploy, pytest.mark.timeout(400)]
_STATE: Final = ("ActiveState", "SubState", "MainPID", "StatusText", "NRestarts", "Result", "ExecMainStatus")


def verify(unit: Path, root: Path) -> str:
    """What systemd finds. It ends with 0 for unknown keys and bad values, so all that it prints counts."""
    target = root / "etc/systemd/system" / unit.name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(unit, target)
    for program in (f"{INSTALLED}/bin/kafka-quota-proxy", "bin/sh"):
        (root / program).parent.mkdir(parents=True, exist_ok=True)
        (root / program).touch(0o755)
    done = subprocess.run(
        [system_tool("systemd-analyze"), "verify", "--man=no", f"--root={root}", "--recursive-errors=no", unit.name],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_the_unit_has_no_findings_and_a_bad_one_has(tmp_path: Path) -> None:
    assert verify(UNIT, tmp_path / "root") == ""
    text = UNIT.read_text()
    for right, wrong, finding in (
        ("DynamicUser=yes", "DynamicUsr=yes", "Unknown key"),
        ("WatchdogSec=30s", "WatchdogSec=soon", "Failed to parse"),
        (f"/{INSTALLED}/bin/kafka-quota-proxy run", f"/{INSTALLED}/bin/proxy run", "not executable"),
    ):
        bad = tmp_path / UNIT.name
        bad.write_text(text.replace(right, wrong))
        assert finding in verify(bad, tmp_path / "root"), wrong


def test_the_template_is_the_unit_for_several_processes(tmp_path: Path) -> None:
    assert verify(TEMPLATE, tmp_path / "root") == ""
    unit, template = (
        {line for line in path.read_text().splitlines() if not line.startswith("#")} for path in (UNIT, TEMPLATE)
    )
    start = "ExecStart=/opt/kafka-quota-proxy/bin/kafka-quota-proxy run --config /etc/kafka-quota-proxy/proxy.toml"
    assert unit - template == {"Description=Kafka quota proxy", start}
    assert template - unit == {
        "Description=Kafka quota proxy, process %i",
        f"{start} \\",
        "    --reuse-port --metrics-listen 127.0.0.1:%i --sidecar-name %H-%i",
        "User=kafka-quota-proxy",
    }


def test_the_unit_is_hardened_and_a_bare_one_is_not(tmp_path: Path) -> None:
    command = [system_tool("systemd-analyze"), "security", "--offline=true", "--threshold=15"]
    score = re.search(r"exposure level for \S+: (\S+)", run(*command, UNIT))
    assert score
    print(f"\nexposure: {score[1]}")
    bare = tmp_path / UNIT.name
    bare.write_text("[Service]\nExecStart=/bin/true\n")
    run(*command, bare, code=1)


class Container:
    """A Debian with systemd as process 1; `process` is systemd-nspawn."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = (root.parent / "console.log").open("w+")
        self.process = subprocess.Popen(
            [system_tool("systemd-nspawn"), "--quiet", "--register=no", "--keep-unit", "--console=pipe", "--boot",
             "--directory", str(root)],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def command(self, *command: str, check: bool = True) -> str:
        """Run it within, beside process 1 of the container."""
        [inner] = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        done = subprocess.run(
            [system_tool("nsenter"), "--target", inner, "--all", *command], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 or not check, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def state(self) -> dict[str, str]:
        shown = self.command("systemctl", "show", UNIT.name, f"--property={','.join(_STATE)}")
        return dict(line.split("=", 1) for line in shown.splitlines())

    def eventually(self, wanted: Callable[[], bool], what: str) -> None:
        """Wait for a state of systemd, which has no event for those outside of it."""
        until = time.monotonic() + 90
        while True:
            with contextlib.suppress(AssertionError, ValueError, OSError):
                if wanted():
                    return
            assert time.monotonic() < until, f"{what}\n{Path(self.log.name).read_text()[-3000:]}"
            time.sleep(0.2)


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    root = tmp_path_factory.mktemp("nspawn") / "root"
    root.mkdir()
    run("tar", "--extract", "--file", debian_root("systemd", "systemd,systemd-sysv,python3,dbus"), "--directory", root)
    # As the README says, but by uv from outside: the container has no pip, and this Python's version.
    site = root / INSTALLED / "lib"
    uv = Path(sys.executable).with_name("uv")
    requirements = ROOT / "deploy/image/requirements.txt"
    run(uv, "pip", "install", "--quiet", "--target", site, "--require-hashes", "--requirements", requirements)
    for name in ("proxy", "protocol", "quotas"):
        shutil.copytree(ROOT / name, site / name)
    packages = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    for info in packages.glob("kafka_quota_proxy-*.dist-info"):
        shutil.copytree(info, site / info.name)
    program = root / INSTALLED / "bin/kafka-quota-proxy"
    program.parent.mkdir()
    program.write_text(
        f"#!/usr/bin/python3\nimport sys\nsys.path.insert(0, '/{INSTALLED}/lib')\n"
        "from proxy.command.cli import main\nmain()\n"
    )
    program.chmod(0o755)
    folder = root / "etc/kafka-quota-proxy"
    folder.mkdir()
    (folder / "proxy.toml").write_text(CONFIG)
    (folder / "quotas.toml").write_text(QUOTA.format(1))
    for unit in (UNIT, TEMPLATE):
        shutil.copy(unit, root / "etc/systemd/system" / unit.name)
    running = Container(root)
    try:
        running.eventually(lambda: "running" in running.command("systemctl", "is-system-running", check=False), "boot")
        yield running
    finally:
        running.process.send_signal(signal.SIGTERM)  # after SIGKILL its systemd would go on
        try:
            running.process.wait(90)
        finally:
            running.process.kill()
            running.log.close()
        shutil.rmtree(root, ignore_errors=True)


def page(path: str, port: int = ADMIN) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def test_it_reads_a_secret_of_root_as_the_readme_says(container: Container) -> None:
    readme, sample = (UNIT.with_name(name).read_text() for name in ("README.md", "proxy.toml"))
    assert f"`{CREDENTIAL}`" in readme
    assert READS_IT in readme
    assert READS_IT in sample
    folder, edited = container.root / "etc/kafka-quota-proxy", container.root / f"etc/systemd/system/{UNIT.name}.d"
    secret, config = folder / "client.properties", folder / "proxy.toml"
    secret.touch(0o600)
    secret.write_text("client.id=of-root\n")
    before = config.read_text()
    config.write_text(CONFIG + READS_IT)
    edited.mkdir()
    try:
        container.command("systemctl", "start", UNIT.name, check=False)
        container.eventually(lambda: container.state()["ActiveState"] == "failed", "without the drop-in it has none")
        (edited / "override.conf").write_text(f"[Service]\n{CREDENTIAL}\n")
        container.command("systemctl", "daemon-reload")
        container.command("systemctl", "start", UNIT.name)
        assert "listening" in page("/healthz")
    finally:
        config.write_text(before)
        shutil.rmtree(edited)
        container.command("systemctl", "stop", UNIT.name, check=False)
        container.command("systemctl", "daemon-reload")
        container.command("systemctl", "reset-failed", UNIT.name, check=False)


def test_each_process_of_the_template_reads_it_as_the_readme_says(container: Container) -> None:
    """The folder of secrets has the name of the instance, and the file of options is the same for all."""
    [variable] = re.findall(r"`(Environment=\S+)`", UNIT.with_name("README.md").read_text())
    folder, edited = container.root / "etc/kafka-quota-proxy", container.root / f"etc/systemd/system/{TEMPLATE.name}.d"
    names = [f"kafka-quota-proxy@{port}.service" for port in (ADMIN, ADMIN + 1)]
    for name, text in (
        ("client.properties", "ssl.truststore.location=${env:CREDENTIALS_DIRECTORY}/ca.pem\nsecurity.protocol=SSL\n"),
        ("ca.pem", trustme.CA().cert_pem.bytes().decode()),
    ):
        (folder / name).touch(0o600)
        (folder / name).write_text(text)
    (folder / "proxy.toml").write_text(CONFIG + READS_IT)
    edited.mkdir()
    (edited / "override.conf").write_text(
        f"[Service]\n{CREDENTIAL}\nLoadCredential=ca.pem:/etc/kafka-quota-proxy/ca.pem\n{variable}\n"
    )
    try:
        container.command("systemctl", "daemon-reload")
        container.command("systemctl", "start", *names)
        assert all("listening" in page("/healthz", port) for port in (ADMIN, ADMIN + 1))
    finally:
        (folder / "proxy.toml").write_text(CONFIG)
        shutil.rmtree(edited)
        container.command("systemctl", "stop", *names, check=False)
        container.command("systemctl", "daemon-reload")
        container.command("systemctl", "reset-failed", check=False)


def test_it_starts_reloads_comes_back_and_drains(container: Container) -> None:
    container.command("systemctl", "start", UNIT.name)  # returns when READY=1 has arrived
    assert "listening" in page("/healthz"), "start returned, so it listens"
    state = container.state()
    assert (state["ActiveState"], state["SubState"], state["StatusText"]) == ("active", "running", "serving")
    process = f"/proc/{state['MainPID']}"
    shown = container.command("cat", f"{process}/status").splitlines()
    status = dict(line.split(":\t", 1) for line in shown if ":\t" in line)
    assert int(status["Uid"].split()[0]) >= 61_184, "a dynamic user"
    assert (set(status["CapEff"]), status["NoNewPrivs"], status["Seccomp"]) == ({"0"}, "1", "2")
    limits = container.command("cat", f"{process}/limits")
    allowed = min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])  # a container gets no more than its host has
    assert re.search(rf"Max open files\s+{allowed}\s+{allowed}", limits), limits

    quotas = container.root / "etc/kafka-quota-proxy/quotas.toml"
    quotas.write_text(QUOTA.format(7))
    container.command("systemctl", "reload", UNIT.name)
    container.eventually(lambda: container.state()["SubState"] == "running", "reloaded")
    assert "Reloaded" in container.command("journalctl", "--unit", UNIT.name, "--output=cat")
    quotas.write_text("[[quota]]\n")
    container.command("systemctl", "reload", UNIT.name)
    container.eventually(lambda: "refused" in container.state()["StatusText"], "a refused file is shown")
    assert "kafka_quota_proxy_config_last_reload_successful 0.0" in page("/metrics")
    quotas.write_text(QUOTA.format(7))

    before = container.state()["MainPID"]
    container.command("systemctl", "kill", "--kill-whom=main", "--signal=KILL", UNIT.name)
    container.eventually(
        lambda: container.state()["MainPID"] not in {"0", before} and "listening" in page("/healthz"), "back"
    )
    assert container.state()["NRestarts"] == "1"
    # The loop stands still: the watchdog ends it, 30 s later.
    container.command("systemctl", "kill", "--kill-whom=main", "--signal=STOP", UNIT.name)
    container.eventually(lambda: container.state()["NRestarts"] == "2", "the watchdog")

    container.eventually(lambda: container.state()["SubState"] == "running", "running")
    with socket.create_connection(("127.0.0.1", PORT)):
        container.command("systemctl", "stop", UNIT.name)
    state = container.state()
    assert (state["Result"], state["ExecMainStatus"]) == ("success", "0")
    assert "draining" in container.command("journalctl", "--unit", UNIT.name, "--output=cat")

    (container.root / "etc/kafka-quota-proxy/proxy.toml").write_text("listen = 5\n")
    container.command("systemctl", "start", UNIT.name, check=False)
    container.eventually(lambda: container.state()["ActiveState"] == "failed", "it is not tried again")
    assert container.state()["NRestarts"] == "0"


def test_it_listens_on_a_port_below_1024_as_the_readme_says(container: Container) -> None:
    text = re.sub(r"\s+", " ", UNIT.with_name("README.md").read_text())
    [sentence] = re.findall(r"For ports below 1024, set (.+?), because", text)
    settings = re.findall(r"`(.+?)`", sentence)
    folder, edited = container.root / "etc/kafka-quota-proxy", container.root / f"etc/systemd/system/{UNIT.name}.d"
    (folder / "proxy.toml").write_text(CONFIG.replace(f'listen = "127.0.0.1:{PORT}"', f'listen = "127.0.0.1:{LOW}"'))
    edited.mkdir()
    (edited / "override.conf").write_text("\n".join(["[Service]", *settings, ""]))
    try:
        container.command("systemctl", "daemon-reload")
        container.command("systemctl", "start", UNIT.name)
        socket.create_connection(("127.0.0.1", LOW)).close()
    finally:
        (folder / "proxy.toml").write_text(CONFIG)
        shutil.rmtree(edited)
        container.command("systemctl", "stop", UNIT.name, check=False)
        container.command("systemctl", "daemon-reload")
        container.command("systemctl", "reset-failed", check=False)


@pytest.mark.claim("enforcement", "processes of the template unit are one user and share their ports")
def test_two_processes_of_the_template_share_their_ports(container: Container) -> None:
    (container.root / "etc/kafka-quota-proxy/proxy.toml").write_text(CONFIG)
    (container.root / "etc/kafka-quota-proxy/quotas.toml").write_text(QUOTA.format(1))
    names = [f"kafka-quota-proxy@{port}.service" for port in (ADMIN, ADMIN + 1)]
    try:
        container.command("systemctl", "start", *names)
        assert all("listening" in page("/healthz", port) for port in (ADMIN, ADMIN + 1))
        shown = ("systemctl", "show", "--value", "--property=MainPID")
        pids = [container.command(*shown, name).strip() for name in names]
        users = {container.command("stat", "--format=%u", f"/proc/{pid}").strip() for pid in pids}
        assert len(users) == 1, "one user"
        assert "limits_not_shared" in container.command("journalctl", "--unit", names[0], "--output=cat")
        container.command("systemctl", "stop", names[0])
        # Something listens as the broker, else the connection ends at once.
        with socket.create_server(("127.0.0.1", PORT - 1)), socket.create_connection(("127.0.0.1", PORT)):
            container.eventually(lambda: "1 connections" in page("/healthz", ADMIN + 1), "the other one serves")
    finally:
        container.command("systemctl", "stop", *names, check=False)
    results = [container.command("systemctl", "show", "--value", "--property=Result", name).strip() for name in names]
    assert results == ["success", "success"]
