"""The running proxy: binds the ports, serves, drains on SIGTERM and SIGINT."""

import asyncio
import signal
import socket
import sys
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from proxy.adaptive.disk_guard import DiskGuardTask
from proxy.adaptive.yielding_groups import YieldingGroups
from proxy.admin.activity import Activity
from proxy.admin.answer_page.served import AnswerPage
from proxy.admin.exposition import MetricsPage
from proxy.admin.fleet_page import FleetPage
from proxy.admin.pages import Pages, start_admin
from proxy.admin.throttles import ThrottlesPage, throttled
from proxy.background.host import Host
from proxy.brokers.readiness import Readiness, Status
from proxy.config.addresses import Address, format_address, unmapped
from proxy.config.cautions import warnings_of
from proxy.config.config import OFF, Config
from proxy.config.effective import page_of
from proxy.config.errors import BindError
from proxy.config.quota_sources import CLUSTER, TOPIC
from proxy.config.quotas_file import active_quotas
from proxy.fleet.admin_address import advertise
from proxy.fleet.clock import boottime_ns
from proxy.fleet.fleet import fleet_of
from proxy.fleet.log import Log
from proxy.internal_clients.cluster_quotas import ClusterQuotas
from proxy.internal_clients.event_loops import new_loop
from proxy.internal_clients.log_dirs import LogDirs
from proxy.observability.logs import EventLog, RateLimited
from proxy.observability.output import stuck
from proxy.observability.supervisor import Supervisor
from proxy.process.active_config import ActiveConfig
from proxy.process.assemble import assemble
from proxy.process.config_watch import ConfigWatch, ReadAgain
from proxy.process.ports import Ports
from proxy.process.start_log import log_start, most_connections, raise_descriptor_limit
from proxy.process.ticks import Ticks, settle_garbage_collection
from proxy.sessions.gate import Gate
from proxy.sessions.lifecycle import State
from proxy.sessions.proxy_headers import ProxyHeaders
from proxy.sessions.session import Session
from proxy.sessions.shared import ClientAddress
from proxy.sessions.sweep import Sweep
from proxy.sessions.wire import Wire
from proxy.usage.emitter import emitter_of
from quotas.adaptive.producer_guard import ProducerGuard
from quotas.connections import ConnectionQuotas
from quotas.entry import QuotaEntry
from quotas.fleet import versions
from quotas.time_units import NS_PER_SECOND

if TYPE_CHECKING:  # they need aiokafka
    from proxy.internal_clients.quotas_log import StoredLog
    from proxy.internal_clients.quotas_topic import QuotasTopic

EXIT_CLEAN = 0
EXIT_NOT_DRAINED = 1
#: Time to serve connections that wait at a shared port: closing one during its first request looks like an error.
LAST_SECONDS = 1.0
#: This fraction of --max-connections may wait to be closed.
WAITING_PARTS = 10

_log = EventLog("proxy.process.server")
_ignored = RateLimited()


def run(config: Config, read_again: ReadAgain = None) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code. Raises BindError and ConfigError.

    `read_again` reads the configuration again, with its file as it is then. Raises ConfigError.
    """
    descriptors = raise_descriptor_limit(config)
    sys.unraisablehook = _log_ignored
    with asyncio.Runner(loop_factory=partial(new_loop, config.event_loop)) as runner:
        clock = time.monotonic_ns if config.fleet.name is None else boottime_ns
        host = Host(clock=clock, descriptors=descriptors)
        try:
            return runner.run(Server(config, host, read_again).serve(settle_garbage_collection))
        finally:
            # The interpreter resets handlers long before it has ended.
            for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                runner.get_loop().remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)


def _ignore_usr1() -> None:
    """It would end the process, and log rotation sends it to programs that keep their log files open."""
    _log.warning("signal_ignored", signal="SIGUSR1", hint="SIGUSR2 toggles enforcement; logs go to stderr")


def _log_ignored(ignored: Any) -> None:
    """Replaces Python's traceback for each: a client can cause one with a server name that is not ASCII."""
    what = f"{ignored.exc_type.__name__}: {ignored.exc_value}"
    _ignored.event(_log.warning, "exception_ignored", ignored.exc_type, time.monotonic_ns(), detail=what)


class Server:
    """One proxy process on its host. `fleet_log`, `quotas_log`: replace the topics of the fleet and of quotas."""

    def __init__(
        self,
        config: Config,
        host: Host,
        read_again: ReadAgain = None,
        fleet_log: Log | None = None,
        quotas_log: "StoredLog | None" = None,
    ) -> None:
        self.config = config
        #: Those that are open, in the order in which they came.
        self.sessions: dict[Session, None] = {}
        self._host = host
        self._fleet_log, self._quotas_log = fleet_log, quotas_log
        self._read_again = read_again
        #: What the topic of quotas had when the proxy started.
        self._stored: tuple[QuotaEntry, ...] = ()
        #: While the proxy drains: set when the last session ends.
        self._drained: asyncio.Event | None = None

    async def serve(self, on_started: Callable[[], object] = lambda: None) -> int:
        """Listen, serve, drain. Returns the exit code. `on_started` is called once all parts exist."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with AsyncExitStack() as ending:  # closes the parts in reverse order
            topic = await self._quotas_topic(ending, stop)
            self.start(loop)
            ending.callback(self.close)
            active, shared = self.active_config, self.shared
            watch = None
            if self.config.quotas.file is not None or self.config.file is not None or active.quotas.pending:
                taken = active.own, active.apply
                watch = ConfigWatch(self.config, *taken, self.metrics, self._host.clock, self._read_again)
            cluster = None
            if self.config.quotas.cluster != OFF:
                cluster = ClusterQuotas(self.config, partial(active.apply_source, CLUSTER), self.metrics, self._host)
            self._attach(topic)
            supervisor = Supervisor(loop)
            loop.add_signal_handler(signal.SIGHUP, partial(self._reload, watch, cluster, supervisor))
            loop.add_signal_handler(signal.SIGUSR1, _ignore_usr1)
            loop.add_signal_handler(signal.SIGUSR2, active.toggle)
            clock = self._host.clock
            readiness = Readiness(self.config.bootstrap_servers, self.tls, shared.health, clock, self._not_ready)
            readiness.remark = lambda: str(shared.context.nodes.placement)
            admin = await start_admin(self.config.observability, self._pages(readiness))
            ending.push_async_callback(admin.close)
            ending.callback(readiness.close)
            log_start(self.config, active.quotas, self.ports.bootstrap, admin.port)
            ending.callback(loop.create_task(self._advertise(admin.port)).cancel)
            listener = format_address((self.config.listening.address[0], self.ports.bootstrap))
            usage = emitter_of(self.config, self.metrics, listener, shared.context.registry.is_in_use, self._host)
            self._describe_limits()
            self.shared.context.registry.observers.append(self._describe_limits)
            for each in (usage, self.fleet):
                if each is not None:
                    each.start(loop)
                    ending.push_async_callback(each.close)
            self._yielding.start(loop)
            ending.callback(self._yielding.close)
            on_started()
            ending.callback(self.close)  # before the last records of usage and of the fleet
            ending.callback(supervisor.close)
            watching = [readiness.run()]
            if watch is not None:
                reload_ok = self.metrics.reload_ok
                watching.append(watch.run(lambda: supervisor.reloaded(ok=reload_ok["config"])))
            if cluster is not None:
                watching.append(cluster.run())
            if self.tls.paths():
                watching.append(self.tls.run())
            for task in watching:
                ending.callback(loop.create_task(task).cancel)
            supervisor.ready()
            await stop.wait()
            supervisor.stopping()
            return await self._drain(stop)

    def _pages(self, readiness: Readiness) -> Pages:
        throttles = partial(throttled, self.sessions, self.gate, self._host.clock)
        active, fleet = self.active_config, FleetPage(self.fleet)
        activity = Activity(self.shared, self.sessions, self.gate, self._ticks.history, active.unmatched)
        return Pages(
            MetricsPage(self.metrics, self.fleet),
            ThrottlesPage(throttles, lambda: active.quotas.exemptions),
            self._effective,
            self._health,
            readiness.check,
            readiness.check_started,
            activity,
            AnswerPage(activity, fleet).respond,
            fleet,
        )

    async def _advertise(self, admin_port: int) -> None:
        """Let other members know where the admin port is."""
        if self.fleet is not None:
            await advertise(self.fleet.member.facts, self.config, admin_port)

    def _reload(self, watch: ConfigWatch | None, cluster: ClusterQuotas | None, supervisor: Supervisor) -> None:
        """SIGHUP."""
        supervisor.reloading()
        if cluster is not None:
            cluster.read_now()
        if watch is not None:
            watch.read_files()
        else:
            if cluster is None:
                _log.info("nothing_to_reload", hint="SIGHUP reloads --config and --quotas-file, and neither is set")
            supervisor.reloaded(ok=True)

    async def _quotas_topic(self, ending: AsyncExitStack, stop: asyncio.Event) -> "QuotasTopic | None":
        """The topic of quotas, read before the first connection is accepted."""
        if self.config.quotas.topic is None:
            return None
        from proxy.internal_clients.quotas_topic import QuotasTopic  # aiokafka, if it is needed

        topic = QuotasTopic(self.config, self._host, self._quotas_log)
        task = asyncio.get_running_loop().create_task(topic.run())

        async def stop_following() -> None:
            task.cancel()
            await asyncio.wait({task})  # its clients close

        ending.push_async_callback(stop_following)
        self._stored = await topic.wait_read(stop)
        return topic

    def _attach(self, topic: "QuotasTopic | None") -> None:
        if topic is not None:
            from proxy.internal_clients.quota_changes import QuotaChanges

            self.shared.context.quota_api = QuotaChanges(topic, self._host)
            topic.attach(partial(self.active_config.apply_source, TOPIC), self.metrics)
            if self.fleet is not None:
                topic.on_applied = partial(versions.advertise, self.fleet.member.facts, topic.name)

    def start(self, loop: AbstractEventLoop) -> None:
        """Bind every port and begin to accept. Raises BindError and ConfigError."""
        config, host = self.config, self._host
        own, others = active_quotas(config), {TOPIC: self._stored} if self._stored else {}
        quotas = own.over(others) if others else own
        _log.warn_of(warnings_of(config, quotas))
        self.shared = shared = assemble(
            config, quotas, loop, host, lambda: self.ports.open_any(), host.random.getrandbits(64)
        )
        self.tls, context = shared.tls, shared.context
        _log.warn_of(self.tls.cautions)
        self.metrics = metrics = context.metrics
        self.fleet = fleet_of(config, context.registry, host, self._fleet_log)
        self.disk_guard: DiskGuardTask | None = None
        if (marks := config.enforcement.disk_guard) is not None:
            member = None if self.fleet is None else self.fleet.member
            producers = ProducerGuard(config.enforcement.disk_guard_exempt)
            parts = (context.registry, metrics.entities, lambda: context.actions.enforces)
            self.disk_guard = DiskGuardTask(LogDirs(config, host), marks, producers, host, *parts, member)
            metrics.sources.disks = self.disk_guard.figures
            self.disk_guard.start(loop)  # before the first request is read
        self._yielding = YieldingGroups(context.registry, shared.brokers, host, self.fleet)
        metrics.sources.moving = self._yielding.moving
        most = most_connections(config, host.descriptors)
        headers = ProxyHeaders(loop, host.clock, config, shared.faults, partial(self._accepted, most), most)
        self.ports = Ports(loop, config, metrics, headers, host)
        shared.upstream.is_own = self.ports.is_own
        max_wait_ns = int(config.enforcement.max_connection_hold_seconds * NS_PER_SECOND)
        max_refused = max(1, most // WAITING_PARTS)
        self.gate = Gate(shared, ConnectionQuotas(context.registry, max_wait_ns), max_refused)
        self.active_config = ActiveConfig(config, quotas, shared, own, others)
        metrics.connections.in_flight = lambda: sum(session.in_flight for session in self.sessions)
        self._ticks = Ticks(shared, Sweep(self.sessions, headers, context), self.active_config)
        try:
            self.ports.open(context.nodes.fixed_ports())
        except BindError:
            self.close()
            raise

    def close(self) -> None:
        """Close every socket at once."""
        self._ticks.close()
        if self.disk_guard is not None:
            self.disk_guard.close()
        self.ports.close()
        for session in list(self.sessions):
            session.close()
        self.shared.context.topics.close()

    # ---- accepting

    def _accepted(self, limit: int, client: socket.socket, peer: tuple[Any, ...], port: int, header_ns: int) -> None:
        shared, nodes = self.shared, self.shared.context.nodes
        if self._drained is not None:
            client.close()
            return
        origin = ClientAddress(unmapped(peer[0]), peer[1], self.ports.names_of(port), header_ns)
        if self.metrics.connections.open >= limit:
            client.close()
            shared.faults.rejected("max_connections", format_address((origin.ip, origin.port)), max_connections=limit)
            return
        verdict = self.gate.decide(origin)
        if verdict is None:
            client.close()
            return
        session = Session(shared, client, origin, self._on_closed)
        self.sessions[session] = None
        self.metrics.connections.open += 1

        def route(wire: Wire) -> Sequence[Address]:
            place = self.ports.place_of(port, wire.server_name)
            if nodes.broker_at(place) is None:
                session.unexpected_at = place
            return self.ports.brokers_at(place, nodes)

        self.gate.admit(session, verdict, lambda: session.connect(route))

    def _on_closed(self, session: Session) -> None:
        self.sessions.pop(session, None)
        self.metrics.connections.open -= 1
        self.gate.remove(session)
        if self._drained is not None and not self.sessions:
            self._drained.set()

    # ---- ending

    async def _drain(self, stop: asyncio.Event) -> int:
        """Stop accepting, let requests in flight finish. A second signal or the timeout ends it."""
        sessions, timeout_seconds = self.sessions, self.config.listening.drain_timeout_seconds
        _log.info("draining", connections=len(sessions), timeout_seconds=timeout_seconds)
        self.ports.close()
        stop.clear()
        self._drained = stop
        if self.config.listening.reuse_port:
            await asyncio.sleep(LAST_SECONDS)
        for session in list(sessions):
            session.drain()
        if sessions:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await stop.wait()
        left = sum(session.state is not State.LINGERING for session in sessions)
        (_log.warning if left else _log.info)("stopped", connections_cut=left)
        return EXIT_NOT_DRAINED if left else EXIT_CLEAN

    # ---- watching

    def _not_ready(self) -> str | None:
        if self._drained is not None:
            return "draining"
        if self.metrics.connections.memory_paused:
            return "connections are not read: --max-buffered-bytes is used up"
        return None

    def _health(self) -> Status:
        if self._drained is not None:
            return Status(True, "draining")
        text = f"listening on {len(self.ports)} ports, {self.metrics.connections.open} connections"
        return Status(True, text + (f"; log lines are dropped because {stuck()} accepts none" if stuck() else ""))

    def _effective(self) -> dict[str, Any]:
        """For /config."""
        active = self.active_config
        guard = {} if self.disk_guard is None else {"disk_guard": self.disk_guard.page()}
        return page_of(active.config, active.quotas) | {"reloads": self.metrics.reloads} | guard

    def _describe_limits(self) -> None:
        """The members of a fleet compare which limits they share."""
        if self.fleet is not None:
            self.fleet.differences.describe(self.active_config.quotas.entries, self.config.quotas.algorithm)
