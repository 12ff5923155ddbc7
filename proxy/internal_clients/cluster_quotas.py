"""The cluster's own client quotas (kafka-configs) as a source of quotas: an internal client reads them every 10 s and
on SIGHUP.

With `per-broker`, byte rates are multiplied by the number of brokers. A broker that restarts is missing for a minute,
and a rolling restart takes many minutes, so the largest number of 10 minutes is used (`GRACE_NS`).

An answer is applied whole or not at all. The quotas that were read last stay in force while no broker answers, or a
broker refuses or sends too much.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import ClassVar, Final, NamedTuple

from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest
from kio.schema.errors import ErrorCode

from protocol import client_quotas as wire
from protocol.errors import ProtocolError
from proxy.background.host import Host
from proxy.background.retries import Retries
from proxy.brokers.upstream import BrokerFailed
from proxy.config.cautions import unresolved
from proxy.config.cluster_entries import ClusterEntries, cluster_entries, share_below_brokers
from proxy.config.config import PER_BROKER, Config, QuotaOptions
from proxy.config.errors import ConfigError
from proxy.config.host_names import are_answered
from proxy.config.quota_sources import CLUSTER
from proxy.internal_clients.broker_reader import NOT_OFFERED, Ask, BrokerReader
from proxy.observability.logs import EventLog
from proxy.observability.metrics import Metrics
from quotas.entry import QuotaEntry
from quotas.problems import Problem
from quotas.time_units import NS_PER_SECOND

PAUSE_SECONDS: Final = (8.0, 10.0)
"""The random pause between two readings, after `REST_SECONDS`."""
REST_SECONDS: Final = 1.0
"""A SIGHUP has no effect during this time, so that signals cannot make this proxy ask faster."""
GRACE_NS: Final = 600 * NS_PER_SECOND
"""How long a broker that has disappeared still counts."""
MAX_NAMED: Final = 100
"""How many kinds of ignored limits are logged, each once: a broker may invent any number."""

_log = EventLog(__name__)

Take = Callable[[tuple[QuotaEntry, ...]], Awaitable[None]]


class ClusterAnswer(NamedTuple):
    """The response of a broker, and the factor for limits that apply to each broker."""

    quotas: bytes
    brokers: int


class ClusterReader(BrokerReader):
    """`max_bytes`: about 40,000 entities."""

    timeout_seconds = 10.0
    max_bytes = 4 * 1024 * 1024
    hints: ClassVar = {
        ErrorCode.cluster_authorization_failed.name: "the right DescribeConfigs on the cluster is missing: kafka-acls "
        "--add --allow-principal User:{user} --operation DescribeConfigs --cluster",
        NOT_OFFERED: "Kafka has DescribeClientQuotas 1 since 2.8, but some services do not offer it: put the limits "
        "into --quotas-file",
    }

    def __init__(self, config: Config, host: Host) -> None:
        super().__init__(config, host, "cluster quotas")
        self._clock = host.clock
        #: When each number of brokers was seen last.
        self._seen: dict[int, int] = {}
        self._needs_brokers = config.quotas.cluster == PER_BROKER

    async def answer(self) -> ClusterAnswer:
        """The answer of the first usable broker. Raises BrokerFailed, ProtocolError and ConfigError."""
        return await self._first(self._quotas)

    def problem(self, error: Exception) -> tuple[str, Problem]:
        """The reason as one word, and what to do."""
        if isinstance(error, ConfigError):
            return "config", error.problems[0]
        reason, message, hint = self.explain(error)
        return reason, Problem(CLUSTER, f"{reason}: {message}", hint)

    async def _quotas(self, ask: Ask) -> ClusterAnswer:
        if not wire.offers(await ask(wire.VERSIONS_REQUEST), DescribeClientQuotasRequest):
            raise BrokerFailed(NOT_OFFERED, "it does not offer DescribeClientQuotas 1")
        if self._needs_brokers:
            now = self._clock()
            self._seen[len(wire.brokers_in(await ask(wire.BROKERS_REQUEST)))] = now
            self._seen = {count: at for count, at in self._seen.items() if now - at < GRACE_NS}
        return ClusterAnswer(await ask(wire.QUOTAS_REQUEST), max(1, max(self._seen, default=1)))


def entries_in(answer: ClusterAnswer, options: QuotaOptions) -> ClusterEntries:
    """The entries in an answer; many take seconds. Raises BrokerFailed for a refusal, and ProtocolError."""
    error, quotas = wire.quotas_in(answer.quotas)
    if error is not ErrorCode.none:
        raise BrokerFailed(error.name, "the broker refuses DescribeClientQuotas")
    return cluster_entries(quotas, answer.brokers, options)


class ClusterQuotas:
    """Runs until cancelled. Calls `take` in the event loop with all entries when they have changed."""

    def __init__(self, config: Config, take: Take, metrics: Metrics, host: Host) -> None:
        self._options = config.quotas
        self._random = host.random
        self._reader = ClusterReader(config, host)
        self._take = take
        self._metrics = metrics
        #: The latest answer, and what is wrong with it. An unchanged answer is not parsed twice.
        self._answer: ClusterAnswer | None = None
        self._fault: Exception | None = None
        self._retries = Retries(host.random)
        self._left_out: set[str] = set()
        #: Host names whose addresses were not known.
        self._pending: frozenset[str] = frozenset()
        self._asked = asyncio.Event()
        metrics.reload_ok["cluster"] = True

    async def run(self) -> None:
        while True:
            await self.poll()
            await asyncio.sleep(REST_SECONDS)
            with suppress(TimeoutError):
                seconds = self._random.uniform(*PAUSE_SECONDS)
                if self._retries.is_failing:
                    seconds = max(seconds, self._retries.pause_seconds())
                async with asyncio.timeout(seconds):
                    await self._asked.wait()
            self._asked.clear()

    def read_now(self) -> None:
        """Read the quotas now, and apply them even if they have not changed."""
        self._answer = None
        self._asked.set()

    async def poll(self) -> None:
        """Read the quotas, and apply them if they have changed."""
        try:
            answer = await self._reader.answer()
            if answer != self._answer or are_answered(self._pending):
                self._fault = None
                try:
                    await self._use(await asyncio.to_thread(entries_in, answer, self._options), answer)
                except (BrokerFailed, ProtocolError) as error:
                    self._fault = error
                self._answer = answer
        except Exception as error:  # noqa: BLE001 - a defect that one answer shows must not end the reading
            self._note(error)
        else:
            self._note(self._fault)

    async def _use(self, found: ClusterEntries, answer: ClusterAnswer) -> None:
        self._pending = found.pending
        await self._take(found.entries)
        _log.warn_of(unresolved(found.pending))
        share = float(share_below_brokers(self._options))
        _log.info("cluster_quotas_read", entities=len(found.entries), each_times=answer.brokers, share=share)
        room = MAX_NAMED - len(self._left_out)
        new = [name for name in found.left_out if name not in self._left_out][:room]
        if new:
            self._left_out.update(new)
            listed = ", ".join(f"{name} of {found.left_out[name]} entities" for name in new)
            _log.warning("cluster_quotas_left_out", limits=listed, effect="only the cluster enforces these")

    def _note(self, error: Exception | None) -> None:
        """Record the result for the metric and the page /config, and log each reason once."""
        if error is None:
            self._metrics.note_reload("cluster")
            if self._retries.is_failing:
                _log.info("cluster_quotas_recovered")
            self._retries.worked()
            return
        reason, problem = self._reader.problem(error)
        self._metrics.note_reload("cluster", problem)
        if self._retries.failed(reason):
            effect = "the quotas that were read last, if any, stay in force"
            _log.warning("cluster_quotas_failed", message=problem.message, hint=problem.hint, effect=effect)
