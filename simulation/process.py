"""One proxy: the real `Server`, with its pages, its files, its fleet and its end, on a simulated host."""

import asyncio
import signal
from contextvars import ContextVar, copy_context
from random import Random
from typing import Any, cast

from proxy.background.host import Host
from proxy.brokers.upstream import Upstream
from proxy.config.client_settings import ClientSettings
from proxy.config.config import Config
from proxy.fleet.log import Log
from proxy.internal_clients.quotas_log import StoredLog
from proxy.process.server import Server
from simulation.kernel import Kernel, MachineClock
from simulation.loop import SimLoop
from simulation.network import Network, SimSocket

#: The process whose code is running, for what is logged.
RUNNING: ContextVar[str] = ContextVar("RUNNING", default="")


class NotSimulated(ValueError):
    """The world has nothing that stands for this option."""


class WorkClock:
    """CPU time: each reading of it finds that a drawn time was used."""

    def __init__(self, random: Random, step_ns: int) -> None:
        self._random = random
        self._step_ns = step_ns
        self._now_ns = 0

    def __call__(self) -> int:
        self._now_ns += self._random.randint(0, self._step_ns)
        return self._now_ns


class ProxyProcess:
    """Starts when it is made. `address`: where it listens is up to its configuration, on this host.

    exit_code   None while it runs

    Raises NotSimulated.
    """

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        address: str,
        config: Config,
        fleet_log: Log | None = None,
        quotas_log: StoredLog | None = None,
        error_ppm: int = 0,
    ) -> None:
        refused = {
            "--usage-topic": config.usage.topic is not None,
            "--quotas-topic": config.quotas.topic is not None and quotas_log is None,
            "TLS": config.listening.ssl is not None,
            "--command-config": config.upstream != ClientSettings(),
        }
        if any(refused.values()):
            raise NotSimulated(f"not simulated: {', '.join(name for name, is_set in refused.items() if is_set)}")
        self.kernel, self.network, self.address = kernel, network, address
        self.clock = MachineClock(kernel, error_ppm)
        self.loop = loop = SimLoop(kernel, self._new_socket)
        random = Random(kernel.random.getrandbits(64))  # noqa: S311 - a seed must give the same run
        host = Host(
            clock=self.clock,
            work_clock=WorkClock(random, 40_000),
            wall_clock=kernel.wall_ns,
            random=random,
            name=f"host-{address}",
            new_socket=cast("Any", self._new_socket),
            addresses_of=network.addresses_of,
        )
        loop.upstream = Upstream(loop, host)
        network.owners[address] = loop.watch
        self.server = Server(config, host, None, fleet_log, quotas_log)
        self.exit_code: int | None = None
        context = copy_context()
        context.run(RUNNING.set, address)
        self._serving = loop.create_task(self.server.serve(), context=context)
        self._serving.add_done_callback(self._ended)
        loop.wake()

    @property
    def listens_at(self) -> tuple[str, int]:
        return self.server.config.listening.address

    def _new_socket(self, family: int) -> SimSocket:
        return SimSocket(self.network, self.address, family)

    def _ended(self, serving: "asyncio.Task[int]") -> None:
        if not serving.cancelled():
            self.exit_code = serving.result()

    def send_signal(self, number: signal.Signals) -> None:
        self.kernel.note(self.address, number)
        call = self.loop.signals.get(number)
        if call is not None and self.exit_code is None:
            self.loop.call_soon(call)
            self.loop.wake()

    def close(self) -> None:
        """Release its loop; it is killed if it has not ended."""
        if self.exit_code is None:
            self.kill()
        self.loop.is_stopped = True
        if not self.loop.is_closed():
            self.loop.close()

    def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later: nothing runs, while connections stay open and time passes."""
        self.loop.is_stopped = True

        def resume() -> None:
            if self.exit_code is None:
                self.loop.is_stopped = False
                self.loop.wake()

        self.kernel.after(seconds, resume)

    def kill(self) -> None:
        """SIGKILL: no line of it runs any more that others could notice, and its connections are reset."""
        self.kernel.note(self.address, "kill")
        self.exit_code = -signal.SIGKILL
        self.loop.die()
