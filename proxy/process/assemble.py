"""Makes the parts that all sessions of one proxy share.

The server and the tests call the same function; tests pass a clock, a loop and a salt of their own.
"""

from asyncio import AbstractEventLoop
from functools import partial

from proxy.background.host import Host
from proxy.brokers.connect import ask_for_topics
from proxy.brokers.health import Health
from proxy.brokers.nodes import BindAny, Nodes
from proxy.brokers.topics import Topics
from proxy.brokers.upstream import Upstream
from proxy.config.config import Config, QuotaOptions
from proxy.config.quota_sources import Quotas
from proxy.enforcement.report import Report
from proxy.enforcement.throttle_actions import ThrottleActions
from proxy.files.tls import TlsContexts
from proxy.observability.metrics import Metrics
from proxy.observability.response_times import BrokerTimes
from proxy.sessions.faults import Faults
from proxy.sessions.pump_set import PumpSet
from proxy.sessions.shared import Shared
from proxy.sessions.slices import Slices
from proxy.sessions.tls_wire import Wires
from proxy.sessions.wakeups import Wakeups
from proxy.streams.connection import Context
from proxy.streams.handlers.table import handlers_of
from proxy.streams.memory import MemoryPool
from proxy.streams.request import Kinds
from quotas.algorithms.algorithm import AlgorithmSettings
from quotas.registry.registry import Registry
from quotas.time_units import NS_PER_SECOND


def assemble(config: Config, quotas: Quotas, loop: AbstractEventLoop, host: Host, bind: BindAny, salt: int) -> Shared:
    """The parts, tied together; nothing is opened.

    `quotas`: those that apply first. `bind`: see
    `Nodes`. `salt`: a random number of this process.

    Raises ConfigError for certificates and keys that cannot be used.
    """
    clock = host.clock
    by_topic = config.usage.by_topic
    metrics = Metrics(
        clock,
        max_entities=config.observability.max_metric_entities,
        max_tallies=config.usage.max_series if config.usage.is_on else 0,
        by_topic=by_topic,
        client_telemetry=config.observability.client_telemetry,
        event_loop=config.event_loop,
    )
    tls = TlsContexts(config, metrics, clock)
    settings = _settings_of(config.quotas, salt, leases=config.fleet.name is not None)
    registry = Registry(quotas.configured, share=quotas.share, settings=settings, reads_topics=by_topic)
    memory = MemoryPool(config.security.max_buffered_bytes)
    report = Report(config.enforcement, metrics.entities)
    context = Context(
        config=config,
        metrics=metrics,
        registry=registry,
        memory=memory,
        nodes=Nodes(config.listening, bind),
        topics=Topics(loop, partial(ask_for_topics, config.bootstrap_servers, tls), host.random),
        actions=ThrottleActions(report, config.enforcement.throttle_mode, enforces=not quotas.dry_run),
    )
    slices, wakeups = Slices(loop, host.work_clock), Wakeups(loop, clock)
    registry.observers.append(wakeups.limits_changed)
    registry.rate_observers.append(wakeups.rate_changed)
    metrics.limits_in_use = registry.limits_in_use
    metrics.produced = lambda: registry.produced(clock())
    brokers = BrokerTimes(clock)
    metrics.sources.response_times = brokers.histograms
    metrics.sources.moved_brokers = lambda: len(context.nodes.placement.moved)
    metrics.sources.hidden_brokers = lambda: len(context.nodes.placement.hidden)
    return Shared(
        loop=loop,
        host=host,
        clock=clock,
        context=context,
        kinds=Kinds(handlers_of(context), metrics),
        pumps=PumpSet(memory, slices, clock, metrics.connections.paused),
        wakeups=wakeups,
        upstream=Upstream(loop, host),
        faults=Faults(metrics, clock),
        health=Health(config, metrics.errors.upstream, clock),
        brokers=brokers,
        tls=tls,
        wires=Wires(loop, slices, tls),
    )


def _settings_of(options: QuotaOptions, salt: int, *, leases: bool) -> AlgorithmSettings:
    return AlgorithmSettings(
        algorithm=options.algorithm,
        window_num=options.window_num,
        window_ns=int(options.window_size_seconds * NS_PER_SECOND),
        first_window=options.first_window,
        producer_ids_window_ns=int(options.producer_id_window_size_seconds * NS_PER_SECOND),
        producer_ids_window_count=options.producer_id_window_count,
        producer_ids_salt=salt,
        leases=leases,
    )
