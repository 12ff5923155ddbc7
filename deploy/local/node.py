"""One broker: its ports, its files, its process."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deploy.local import probe
from deploy.local.errors import BrokerFailed
from deploy.local.java import find_java
from deploy.local.settings import NodeAddressing, properties_text

_LEASH = Path(__file__).with_name("leash.py")
_LOG_TAIL_LINES = 25
_POLL_SECONDS = 0.05
_KILL_SECONDS = 20.0
_BROKER_JVM = (
    "-Xms128m",
    "-Xmx512m",
    # As Kafka's own start script has it.
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-Djava.awt.headless=true",
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.log.kafka.log=warn",
)
# Short-lived: start-up time is all that counts.
_TOOL_JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


class PortReservation:
    """A free port of one loopback address, chosen by the kernel and kept for as long as this object lives.

    The socket stays bound and never listens. With SO_REUSEADDR on both sides Linux lets another process bind and listen
    on it (Java sets that option), while no request for "any free port" is given it: so there is no race at all, also
    while a broker is down between two starts.
    """

    def __init__(self, host: str) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, 0))
        self.address: tuple[str, int] = (host, self._socket.getsockname()[1])

    def close(self) -> None:
        """Gives the port back."""
        self._socket.close()


class BrokerNode:
    """A combined broker and controller with all its files below one directory."""

    def __init__(self, node: int, directory: Path, class_path: str, addressing: NodeAddressing) -> None:
        self.node = node
        self.directory = directory
        self.addressing = addressing
        self.log_path = directory / "broker.log"
        self._class_path = class_path
        self._properties_path = directory / "server.properties"
        #: For each login with SASL a broker asks for the name of its own address: a name server would take its time.
        self._hosts_path = directory / "hosts"
        self._process: subprocess.Popen[bytes] | None = None

    def format(self, cluster_id: str, properties: Mapping[str, str], scram: Sequence[str] = ()) -> None:
        """Writes `server.properties` and formats the storage, with the SCRAM credentials. Raises BrokerFailed."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._properties_path.write_text(properties_text(properties), encoding="utf-8")
        self._hosts_path.write_text("".join(f"127.0.0.{last} localhost\n" for last in range(1, 5)), encoding="ascii")
        command = [find_java(), *_TOOL_JVM, "-cp", self._class_path, "kafka.tools.StorageTool", "format"]
        command += ["--cluster-id", cluster_id, "--config", str(self._properties_path)]
        command += [part for each in scram for part in ("--add-scram", each)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise BrokerFailed(
                f"storage of broker {self.node} cannot be formatted:\n{done.stdout}{done.stderr}".rstrip()
            )

    def start(self) -> None:
        """Starts the process; `wait_until_ready` says when it serves."""
        if self.running:
            return
        options = [*_BROKER_JVM, f"-Djdk.net.hosts.file={self._hosts_path}"]
        java = [find_java(), *options, "-cp", self._class_path, "kafka.Kafka", str(self._properties_path)]
        leash = [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), str(self.directory)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*leash, *java],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether the broker's process is there."""
        return self._process is not None and self._process.poll() is None

    def wait_until_ready(self, deadline: float) -> None:
        """Returns once the broker answers ApiVersions on its client listener.

        A KRaft broker serves that listener only after it has caught up and the controller has unfenced it.
        deadline: on time.monotonic(). Raises BrokerFailed, quoting the end of its log, when it ends or is too late.
        """
        while True:
            remaining = deadline - time.monotonic()
            if not self.running:
                raise BrokerFailed(f"broker {self.node} ended while starting{self._exit_code()}; {self.log_tail()}")
            if remaining <= 0:
                raise BrokerFailed(f"broker {self.node} did not answer ApiVersions in time; {self.log_tail()}")
            if probe.answers_api_versions(*self.addressing.client, min(remaining, 2.0)):
                return
            time.sleep(_POLL_SECONDS)

    def stop(self, *, graceful: bool, timeout_seconds: float) -> None:
        """Ends the process. graceful: SIGTERM first, so that it hands partitions over; SIGKILL after the timeout."""
        process = self._process
        if process is None:
            return
        try:
            if graceful:
                self._signal(process, signal.SIGTERM, os.killpg)
                process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            graceful = False
        if not graceful:
            self._signal(process, signal.SIGUSR1, os.kill)  # the leash kills and reaps it
            try:
                process.wait(_KILL_SECONDS)
            except subprocess.TimeoutExpired:
                self._signal(process, signal.SIGKILL, os.killpg)
                process.wait()
        self._process = None

    def log_tail(self) -> str:
        """The last lines of the broker's log, introduced by where it is."""
        try:
            lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        return "\n".join([f"the end of {self.log_path}:", *lines[-_LOG_TAIL_LINES:]])

    def _exit_code(self) -> str:
        return f" (exit code {self._process.returncode})" if self._process else ""

    @staticmethod
    def _signal(
        process: subprocess.Popen[bytes], number: signal.Signals, send: Callable[[int, signal.Signals], None]
    ) -> None:
        """Signals the leash, or its whole group, unless it has ended. Not reaped yet, its id is still its own."""
        if process.poll() is None:
            send(process.pid, number)
