"""What stands between load and null broker: the proxy, HAProxy in TCP mode, or nothing."""

import os
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.frames import Address
from bench.load import CpuClock, no_cpu
from bench.processes import (
    LOOPBACK,
    PeerError,
    cpu_ns,
    free_ports,
    peak_resident_bytes,
    private_bytes,
    running,
    wait_until_listening,
)

#: Bytes per second. A quota that every client has and none reaches: the proxy meters, and never throttles.
UNREACHED_RATE = 100_000_000_000
UNREACHED_QUOTA = f"client-id=<default>,producer_byte_rate={UNREACHED_RATE},consumer_byte_rate={UNREACHED_RATE}"

HAPROXY_MISSING = """HAProxy is needed for this benchmark and was not found.
  Debian, Ubuntu:  apt-get install haproxy
  elsewhere:       put a `haproxy` (2.6 is what the targets were set against) on PATH
It runs as a plain foreground process of this benchmark; no service is needed, and a running one is left alone."""

# `nbthread 1`: one core against one core, as the proxy has one loop. Everything else is HAProxy's default.
HAPROXY_CONFIG = """global
    maxconn 8000
    nbthread 1
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
frontend kafka
    bind {listen_host}:{listen_port} backlog 4096
    default_backend broker
backend broker
    server broker0 {broker_host}:{broker_port}
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """A running peer: where the load connects, and its process (None: the load talks to the broker itself)."""

    name: str
    address: Address
    pid: int | None
    metrics_url: str | None = None

    @property
    def cpu_clock(self) -> CpuClock:
        pid = self.pid
        return no_cpu if pid is None else lambda: cpu_ns(pid)

    def private_bytes(self) -> int:
        return 0 if self.pid is None else private_bytes(self.pid)

    def peak_resident_bytes(self) -> int:
        return 0 if self.pid is None else peak_resident_bytes(self.pid)

    def metrics(self) -> str:
        """The text of the proxy's /metrics."""
        with urllib.request.urlopen(f"{self.metrics_url}/metrics", timeout=10) as response:  # noqa: S310
            text: str = response.read().decode()
        return text


#: Starts a peer in front of a broker, on a core.
PeerStarter = Callable[[Address, int | None], AbstractContextManager[Peer]]


@contextmanager
def direct(broker: Address, core: int | None) -> Iterator[Peer]:
    """No peer at all."""
    yield Peer("direct", broker, None)


@contextmanager
def haproxy(broker: Address, core: int | None) -> Iterator[Peer]:
    """HAProxy in TCP mode, one thread, otherwise as it comes. Raises PeerError when it is not installed."""
    # Debian puts it in /usr/sbin, which is not on every user's PATH.
    program = shutil.which("haproxy", path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin")
    if program is None:
        raise PeerError(HAPROXY_MISSING)
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "haproxy.cfg"
        config.write_text(
            HAPROXY_CONFIG.format(listen_host=LOOPBACK, listen_port=port, broker_host=broker[0], broker_port=broker[1])
        )
        with running([program, "-db", "-q", "-f", str(config)], core) as (process, output):
            wait_until_listening(process, output, port)
            yield Peer("haproxy", (LOOPBACK, port), process.pid)


@contextmanager
def proxy(
    broker: Address, core: int | None, *, quota: str | None = UNREACHED_QUOTA, more: Sequence[str] = ()
) -> Iterator[Peer]:
    """The proxy of this project with `quota`; `more` are further flags. Raises PeerError when it does not start."""
    listen, metrics = free_ports(2)
    argv = [str(Path(sys.executable).parent / "kafka-quota-proxy"), "run"]
    argv += ["--bootstrap-servers", f"{broker[0]}:{broker[1]}", "--listen", f"{LOOPBACK}:{listen}"]
    argv += ["--broker-ports", "0", "--metrics-listen", f"{LOOPBACK}:{metrics}", *more]
    if quota is not None:
        argv += ["--quota", quota]
    with running(argv, core) as (process, output):
        wait_until_listening(process, output, listen)
        url = f"http://{LOOPBACK}:{metrics}"
        _wait_until_ready(url)
        yield Peer("proxy", (LOOPBACK, listen), process.pid, url)


STARTERS: dict[str, PeerStarter] = {"proxy": proxy, "haproxy": haproxy, "direct": direct}


def _wait_until_ready(url: str, timeout_seconds: float = 15) -> None:
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=2):  # noqa: S310
                return
        except (urllib.error.URLError, OSError) as error:
            if time.monotonic() > deadline:
                raise PeerError(f"the proxy is not ready after {timeout_seconds} s: {error}") from error
        time.sleep(0.02)
