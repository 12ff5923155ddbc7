"""The proxy of the demo: the real command in its own process, on free loopback ports."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

from deploy.local import leash
from deploy.local.artifacts import PROJECT

_LOOPBACK = "127.0.0.1"
_START_TIMEOUT_SECONDS = 30.0
_STOP_TIMEOUT_SECONDS = 25.0
_POLL_SECONDS = 0.05


class ProxyFailedError(Exception):
    """The proxy did not start, or ended on its own. The text ends with its last log line."""


class ProxyProcess:
    """`kafka-quota-proxy run` in front of a cluster of one broker. Ends on exit, or when this process dies.

    flags: more of the command line's. advertised_host: the host that clients receive instead of the broker's; the ports
    are this proxy's. log: its stderr, appended. Raises ProxyFailedError.
    """

    def __init__(self, bootstrap_servers: str, *flags: str, advertised_host: str, log: Path) -> None:
        self._reserved = [reserve_port(_LOOPBACK, advertised_host) for _ in range(2)]
        self._metrics_reserved = reserve_port(_LOOPBACK)
        self.ports = tuple(port for port, _ in self._reserved)
        """Its bootstrap port and the port that stands for the broker."""
        self._metrics_port = self._metrics_reserved[0]
        bootstrap_port, broker_port = self.ports
        self._arguments = [
            *("--bootstrap-servers", bootstrap_servers),
            *("--listen", f"{_LOOPBACK}:{bootstrap_port}"),
            *("--broker-ports", f"{broker_port}-{broker_port}"),
            *("--advertised-host", advertised_host),
            *("--metrics-listen", f"{_LOOPBACK}:{self._metrics_port}"),
            *flags,
        ]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: Path | None = None

    def start(self) -> Self:
        """Start it and wait until it says that it is ready."""
        self._scratch = Path(tempfile.mkdtemp(prefix="flights-proxy-"), "leash")
        self._scratch.mkdir()
        leashed = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), str(self._scratch)]
        command = [*leashed, sys.executable, "-m", "proxy", "run", *self._arguments]
        with self._log.open("ab") as log:
            # A separate session: Ctrl-C goes to the demo, which then drains the proxy.
            self._process = subprocess.Popen(command, stderr=log, stdout=log, cwd=PROJECT, start_new_session=True)
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    @property
    def pid(self) -> int:
        """The proxy's own, not that of its leash."""
        if self._process is None:
            raise ProxyFailedError("it was not started")
        leash_pid = self._process.pid
        return int(Path(f"/proc/{leash_pid}/task/{leash_pid}/children").read_text().split()[0])

    def check(self) -> None:
        """Raises ProxyFailedError when the process has ended."""
        if self._process is None or (code := self._process.poll()) is None:
            return
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        raise ProxyFailedError(f"the proxy ended with exit code {code}: {lines[-1] if lines else 'it logged nothing'}")

    def throttled_seconds(self, client_id: str) -> float:
        """How long that client id was throttled, summed over its requests, as the proxy's own metric has it."""
        wanted = {"client_id": client_id}
        families = text_string_to_metric_families(self.get("/metrics"))
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == "kafka_quota_proxy_throttle_seconds_sum" and wanted.items() <= sample.labels.items()
        )

    def close(self) -> None:
        """Drain it, or kill it when that takes too long."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(_STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if self._scratch is not None:
            shutil.rmtree(self._scratch.parent, ignore_errors=True)
        for _, sockets in (*self._reserved, self._metrics_reserved):
            for each in sockets:
                each.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        answer = "it does not answer on its metrics port"
        while time.monotonic() < deadline:
            self.check()
            try:
                self.get("/readyz")
            except urllib.error.HTTPError as error:
                answer = error.read().decode(errors="replace").strip()
            except OSError:
                pass
            else:
                return
            time.sleep(_POLL_SECONDS)
        raise ProxyFailedError(f"the proxy is not ready after {_START_TIMEOUT_SECONDS:g} s: {answer}")

    def get(self, path: str) -> str:
        """A page of its admin port."""
        url = f"http://{_LOOPBACK}:{self._metrics_port}{path}"
        # No proxy of the environment's: this is loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=20) as response:
            text: str = response.read().decode()
        return text


def reserve_port(*hosts: str) -> tuple[int, list[socket.socket]]:
    """A port that is free on all of these loopback addresses, and the sockets that keep it so until they are closed.

    They are bound and never listen. With SO_REUSEADDR on both sides Linux lets another process listen there, while it
    gives the port to no program that asks for any free one.
    """
    while True:
        sockets: list[socket.socket] = []
        port = 0
        try:
            for host in hosts:
                each = socket.socket()
                sockets.append(each)
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                each.bind((host, port))
                port = each.getsockname()[1]
        except OSError:
            for each in sockets:
                each.close()
            if port == 0:  # not taken on the second address, but unusable on the first
                raise
        else:
            return port, sockets
