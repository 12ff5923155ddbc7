"""The running proxy: binds the ports, ties the parts together, drains on SIGTERM and SIGINT."""

import asyncio
import gc
import logging
import resource
import secrets
import signal
import socket
import time
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from proxy.brokers.nodes import Nodes
from proxy.brokers.readiness import Readiness
from proxy.brokers.upstream import Upstream
from proxy.config.config import Address, Config, format_address, unmapped
from proxy.config.errors import BindError
from proxy.config.quotas_file import Quotas, quotas_in_force
from proxy.listener import Listener
from proxy.observability.admin import Status, start_admin
from proxy.observability.logs import RateLimited, event
from proxy.observability.metrics import Metrics
from proxy.quotas_watch import QuotasWatch
from proxy.sessions.buffers import Buffers
from proxy.sessions.connection_gate import ConnectionGate
from proxy.sessions.session import Session
from proxy.sessions.shared import Shared
from proxy.sessions.throttling import NS_PER_SECOND, Throttling
from proxy.sessions.topic_lookup import ask_for_topics
from proxy.sessions.topics import Topics
from quotas.algorithms.algorithm import AlgorithmSettings
from quotas.connections import ConnectionQuotas
from quotas.registry.registry import Registry

#: How often the loop's lag is measured and idle entities are looked for.
TICK_SECONDS = 0.1
HOUSEKEEPING_TICKS = 100
#: Every session is looked after once in so many ticks, a part of them in each.
SWEEP_TICKS = 10
EXIT_CLEAN = 0
EXIT_NOT_DRAINED = 1

_log = logging.getLogger("proxy.server")


def run(config: Config) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code. Raises BindError when a port cannot be had."""
    raise_descriptor_limit(config)
    if config.event_loop == "uvloop":
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    else:
        runner = asyncio.Runner()
    with runner:
        return runner.run(Server(config).serve())


def raise_descriptor_limit(config: Config) -> None:
    """Raise the soft limit on descriptors to the hard one; warn when it is small for ``--max-connections``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = 4 * config.max_connections
    if hard != resource.RLIM_INFINITY and hard < wanted:
        event(
            _log,
            logging.WARNING,
            "few_descriptors",
            limit=hard,
            wanted=wanted,
            hint="raise the hard limit (ulimit -Hn, LimitNOFILE=) or lower --max-connections",
        )


def _settings_of(config: Config) -> AlgorithmSettings:
    return AlgorithmSettings(
        algorithm=config.quota_algorithm,
        window_num=config.quota_window_num,
        window_ns=int(config.quota_window_size_seconds * NS_PER_SECOND),
        first_window=config.first_window,
        producer_ids_window_ns=int(config.producer_id_quota_window_size_seconds * NS_PER_SECOND),
        producer_ids_window_count=config.producer_id_quota_window_count,
        producer_ids_salt=secrets.randbits(64),
    )


def _say_there_is_nothing_to_reload() -> None:
    event(_log, logging.INFO, "nothing_to_reload", hint="SIGHUP reads --quotas-file again, and there is none")


class Server:
    """One proxy process."""

    def __init__(self, config: Config, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.config = config
        self.metrics = Metrics(config)
        self._clock = clock
        self._listeners: dict[int, Listener] = {}
        self._bootstrap_port = 0
        self._next_bootstrap = 0
        self._draining = False
        self._ticks = 0
        self._ticker: TimerHandle | None = None
        self._to_look_after: list[Session] = []

    async def serve(self) -> int:
        """Listen, serve, drain. Returns the exit code."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        self.start(loop)
        watch = None
        if self.config.quotas_file is not None:
            watch = QuotasWatch(self.config, self._quotas, self._take_over, self.metrics, self._clock)
        loop.add_signal_handler(signal.SIGHUP, _say_there_is_nothing_to_reload if watch is None else watch.read_again)
        readiness = Readiness(self.config.bootstrap_servers, self._clock)
        try:
            admin = await start_admin(
                self.config,
                self.metrics,
                health=self._health,
                readiness=readiness.check,
                throttles=lambda: self.shared.throttling.waiting(self.shared.sessions),
            )
        except BindError:
            self.close()
            raise
        self._say_hello(admin.port)
        # What exists now lives as long as the process: keep the collector from walking it again and again.
        gc.collect()
        gc.freeze()
        watching = None if watch is None else loop.create_task(watch.run())
        try:
            await stop.wait()
            return await self._drain(loop, stop)
        finally:
            if watching is not None:
                watching.cancel()
            self.close()
            await admin.close()

    def start(self, loop: AbstractEventLoop) -> None:
        """Bind every port and begin to accept. Raises BindError."""
        config = self.config
        metrics = self.metrics
        self._quotas = quotas_in_force(config)
        registry = Registry(self._quotas.entries, share=self._quotas.share, settings=_settings_of(config))
        buffers = Buffers(loop, config.max_buffered_bytes, metrics.paused)
        self.shared = Shared(
            loop=loop,
            clock=self._clock,
            config=config,
            metrics=metrics,
            buffers=buffers,
            registry=registry,
            throttling=Throttling(loop, config, metrics, self._clock),
            nodes=Nodes(config, self._bind_any),
            topics=Topics(loop, partial(ask_for_topics, config.bootstrap_servers)),
            upstream=Upstream(loop, self._clock),
            lines=RateLimited(),
        )
        max_wait_ns = int(config.max_connection_hold_seconds * NS_PER_SECOND)
        self.shared.gate = ConnectionGate(self.shared, ConnectionQuotas(registry, max_wait_ns))
        registry.observers.append(lambda _entities: self.shared.throttling.limits_changed())
        registry.observers.append(self.shared.gate.limits_changed)
        metrics.limits_in_use = registry.limits_in_use
        metrics.produced = lambda: registry.produced(self._clock())
        metrics.in_flight = lambda: sum(len(session.in_flight) for session in self.shared.sessions)
        try:
            self._bootstrap_port = self._bind(config.listen, "--listen")
            for port in self.shared.nodes.fixed_ports():
                flag = "--broker-ports" if port in (config.broker_ports or ()) else "--broker-port"
                self._bind((config.listen[0], port), flag)
        except BindError:
            self.close()
            raise
        self._tick_due = loop.time() + TICK_SECONDS
        self._ticker = loop.call_at(self._tick_due, self._tick)

    def close(self) -> None:
        """Close every socket at once."""
        if self._ticker is not None:
            self._ticker.cancel()
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        for session in list(self.shared.sessions):
            session.close()
        self.shared.throttling.close()
        self.shared.topics.close()

    def _take_over(self, quotas: Quotas) -> None:
        """Put these in place of those in force."""
        self._quotas = quotas
        self.shared.registry.replace(quotas.entries, self._clock(), share=quotas.share)

    # ---- accepting

    def _bind(self, address: Address, flag: str) -> int:
        try:
            listener = Listener(self.shared.loop, address, self._accepted, self.metrics)
        except OSError as error:
            raise BindError(flag, address, error) from error
        self._listeners[listener.port] = listener
        return listener.port

    def _bind_any(self) -> int:
        return self._bind((self.config.listen[0], 0), "--broker-ports")

    def _accepted(self, client: socket.socket, peer: tuple[Any, ...], port: int) -> None:
        shared = self.shared
        if self._draining:
            client.close()
            return
        if len(shared.sessions) >= self.config.max_connections:
            self.metrics.connection_rejected("max_connections")
            client.close()
            suppressed = shared.lines.admit("max_connections", self._clock())
            if suppressed is not None:
                event(
                    _log,
                    logging.WARNING,
                    "connection_rejected",
                    reason="max_connections",
                    max_connections=self.config.max_connections,
                    suppressed=suppressed or None,
                )
            return
        listener = ("bootstrap", str(port)) if port == self._bootstrap_port else (str(port),)
        session = Session(shared, client, unmapped(peer[0]), peer[1], listener)
        shared.sessions.add(session)
        self.metrics.connections += 1
        shared.gate.let_in(session, lambda: session.connect(self._brokers_behind(port)))

    def _brokers_behind(self, port: int) -> Sequence[Address]:
        """Where a connection to this port goes: its node, or any bootstrap server while the node is not known."""
        node = None if port == self._bootstrap_port else self.shared.nodes.broker_behind(port)
        if node is not None:
            return (node,)
        servers = self.config.bootstrap_servers
        first = self._next_bootstrap % len(servers)
        self._next_bootstrap = first + 1
        return servers[first:] + servers[:first]

    # ---- ending

    async def _drain(self, loop: AbstractEventLoop, stop: asyncio.Event) -> int:
        """Stop accepting, let requests under way finish. A second signal, or the time limit, ends it at once."""
        sessions = self.shared.sessions
        event(
            _log, logging.INFO, "draining", connections=len(sessions), timeout_seconds=self.config.drain_timeout_seconds
        )
        self._draining = True
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        done = asyncio.Event()
        self.shared.on_session_closed = lambda: None if sessions else done.set()
        for session in list(sessions):
            session.drain()
        if not sessions:
            done.set()
        stop.clear()
        waiting = {asyncio.ensure_future(done.wait()), asyncio.ensure_future(stop.wait())}
        await asyncio.wait(waiting, timeout=self.config.drain_timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        left = len(sessions)
        event(_log, logging.WARNING if left else logging.INFO, "stopped", connections_cut=left)
        return EXIT_NOT_DRAINED if left else EXIT_CLEAN

    # ---- watching

    def _health(self) -> Status:
        if self._draining:
            return Status(False, "draining")
        return Status(True, f"listening on {len(self._listeners)} ports, {len(self.shared.sessions)} connections")

    def _tick(self) -> None:
        loop = self.shared.loop
        now = loop.time()
        self.metrics.loop_lag(now - self._tick_due)
        self.metrics.buffered_bytes = self.shared.buffers.buffered_bytes
        now_ns = self._clock()
        self.metrics.tick(now_ns)
        self._ticks += 1
        if self._ticks % SWEEP_TICKS == 0:
            self._to_look_after = list(self.shared.sessions)
        for session in self._to_look_after[self._ticks % SWEEP_TICKS :: SWEEP_TICKS]:
            session.look_after()
        if self._ticks % HOUSEKEEPING_TICKS == 0:
            self.metrics.expire(now_ns)
            self.shared.registry.expire(now_ns)
        self._tick_due = now + TICK_SECONDS
        self._ticker = loop.call_at(self._tick_due, self._tick)

    def _say_hello(self, metrics_port: int) -> None:
        """What a person wants to know first: where, where to, what holds, and for whom a limit counts."""
        config = self.config
        host = config.listen[0]
        ports = config.broker_ports
        broker_ports = f"{ports[0]}-{ports[-1]}" if ports else "chosen by the kernel"
        exceptions = (f"{node}={port}" for node, port in config.broker_port.items())
        event(
            _log,
            logging.INFO,
            "listening",
            bootstrap=format_address((host, self._bootstrap_port)),
            advertised_host=config.advertised_host,
            broker_ports=",".join([broker_ports, *exceptions]),
            metrics=f"http://{format_address((config.metrics_listen[0], metrics_port))}/metrics",
            upstream=",".join(format_address(address) for address in config.bootstrap_servers),
            dry_run=config.dry_run or None,
        )
        quotas = self._quotas
        event(
            _log,
            logging.INFO,
            "quotas",
            held="; ".join(
                f"{entry.entity} {name}={rate}" for entry in quotas.entries for name, rate in entry.limits.items()
            )
            or "none",
            scope="each limit holds for a client over all its connections and brokers, through this process only"
            + (
                f"; every rate is scaled by the quota share {quotas.share:g}"
                if quotas.share != 1
                else "; use --quota-share for a fleet"
            ),
        )
