"""What systemd is told, and the command that asks a running proxy."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from proxy.observability.supervisor import Supervisor

REFUSED: Final = "STATUS=refused a changed file; the previous one stays in force"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(30)
        yield receiver


def received(manager: socket.socket, wanted: str) -> list[str]:
    """The lines of the next datagram that has the wanted one: the watchdog sends between others."""
    while wanted not in (lines := manager.recv(4096).decode().splitlines()):
        assert lines == ["WATCHDOG=1"], lines
    return lines


async def test_a_watchdog_is_fed_by_the_loop_until_the_end(manager: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    supervisor = Supervisor(loop, {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "20000"})
    supervisor.ready()
    supervisor.reloaded(ok=True)  # nobody asked: nothing is sent
    got = [await asyncio.to_thread(manager.recv, 100) for _ in range(4)]
    assert got == [b"READY=1\nSTATUS=serving", b"WATCHDOG=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    supervisor.close()
    manager.setblocking(False)
    await asyncio.sleep(0)
    while True:  # those that were under way
        try:
            manager.recv(100)
        except BlockingIOError:
            break
    await asyncio.sleep(0.05)
    with pytest.raises(BlockingIOError):
        manager.recv(100)
    supervisor.stopping()
    supervisor.reloaded(ok=False)  # the drain stays shown
    assert manager.recv(100) == b"STOPPING=1\nSTATUS=draining"
    with pytest.raises(BlockingIOError):
        manager.recv(100)


async def test_another_process_and_a_missing_manager(manager: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    address = manager.getsockname()
    Supervisor(loop, {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}).ready()
    Supervisor(loop, {"WATCHDOG_USEC": "1"}).ready()
    assert manager.recv(100).startswith(b"READY=1")
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(100)
    Supervisor(loop, {"NOTIFY_SOCKET": f"{address}-not-there"}).stopping()
    assert "notify_failed" in caplog.text


def test_a_process_says_ready_reloading_refused_and_stopping(manager: socket.socket, tmp_path: Path) -> None:
    quotas = tmp_path / "quotas.toml"
    valid = '[[quota]]\nclient-id = "etl"\nproducer_byte_rate = "1MB"\n'
    quotas.write_text(valid)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        admin = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {
        **os.environ, "NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "30000000",
        "KAFKA_QUOTA_PROXY_METRICS_LISTEN": admin,
    }  # fmt: skip
    command = [sys.executable, "-m", "proxy"]
    arguments = ["--bootstrap-servers", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--broker-ports", "0"]

    def check(*options: str) -> tuple[int, str]:
        done = subprocess.run(
            [*command, "healthcheck", *options], env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    assert check()[0] == 1, "nothing listens yet"
    before = time.monotonic_ns() // 1000
    with subprocess.Popen([*command, "run", *arguments, "--quotas-file", str(quotas)], env=environment) as process:
        try:
            received(manager, "READY=1")
            assert check() == (0, f"http://{admin}/healthz: 200: listening on 1 ports, 0 connections\n")
            assert check("--metrics-listen", admin.replace("127.0.0.1", "0.0.0.0"))[0] == 0  # noqa: S104
            code, text = check("--ready")
            assert (code, "/readyz: 503: " in text) == (1, True), "no broker answers"
            assert check("--metrics-listen", "nowhere")[0] == check("--timeout", "soon")[0] == 2
            quotas.write_text("[[quota]]\n")
            process.send_signal(signal.SIGHUP)
            _, at = received(manager, "RELOADING=1")
            assert before < int(at.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000
            assert received(manager, "READY=1") == [
                "READY=1",
                REFUSED,
            ]
            quotas.write_text(valid)  # the watch sees it: nobody asks for a reload
            assert received(manager, "STATUS=serving") == ["STATUS=serving"]
            quotas.write_text("[[quota]]\n")
            assert received(manager, REFUSED) == [REFUSED]
            process.send_signal(signal.SIGTERM)
            received(manager, "STOPPING=1")
            assert process.wait(60) == 0
        finally:
            process.kill()
