"""Asks every broker how full its disks are: DescribeLogDirs, for the disk guard.

The brokers are those that a bootstrap server names each time. A broker that does not answer has no place in the result.
"""

import asyncio
from ssl import SSLContext
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from protocol.client_quotas import BROKERS_REQUEST, VERSIONS_REQUEST, brokers_in
from protocol.errors import ProtocolError
from protocol.log_dirs import LOG_DIRS_REQUEST, LogDirectory, has_log_dirs, log_dirs_in
from proxy.background.host import Host
from proxy.background.threads import OutsideThreads
from proxy.brokers.connect import connection
from proxy.brokers.health import hint_of
from proxy.brokers.upstream import BrokerFailed
from proxy.config.addresses import Address, format_address
from proxy.config.client_file import latest
from proxy.config.config import Config
from proxy.config.errors import ConfigError
from proxy.files.tls import context_to_brokers
from proxy.observability.logs import one_line

TIMEOUT_SECONDS: Final = 5.0
ASKED_AT_ONCE: Final = 8
MAX_BYTES: Final = 16 * 1024 * 1024
"""The longest answer: a broker that ignores that no topic is asked for lists 500,000 partitions in it."""
NOT_OFFERED: Final = "not_offered"

_HINTS: Final = {
    ErrorCode.cluster_authorization_failed.name: "the right Describe on the cluster is missing: kafka-acls --add "
    "--allow-principal User:{user} --operation Describe --cluster",
    NOT_OFFERED: "brokers report the size of their disks since Kafka 3.3",
}


class DiskAnswer(NamedTuple):
    """The directories of one broker; or why there are none."""

    broker: int
    directories: list[LogDirectory]
    failure: Exception | None = None


class LogDirs:
    """Asks with the current settings of internal clients."""

    def __init__(self, config: Config, host: Host) -> None:
        self._settings = config.internal_client
        self._thread = OutsideThreads("disk guard files")
        servers = config.internal_servers or config.bootstrap_servers
        self._servers = host.random.sample(servers, len(servers))
        #: Brokers that are known to offer the request.
        self._offering: set[int] = set()

    async def answers(self) -> list[DiskAnswer]:
        """The answer of each broker that is alive. Raises BrokerFailed, ProtocolError and ConfigError if no bootstrap
        server can be used.
        """
        loop = asyncio.get_running_loop()
        self._settings = await loop.run_in_executor(self._thread, latest, self._settings)
        ssl = self._settings.ssl
        tls = None if ssl is None else await loop.run_in_executor(self._thread, context_to_brokers, ssl)
        slots = asyncio.Semaphore(ASKED_AT_ONCE)

        async def ask(broker: int, address: Address) -> DiskAnswer:
            async with slots:
                try:
                    return DiskAnswer(broker, await self._directories(broker, address, tls))
                except (BrokerFailed, ProtocolError) as error:
                    self._offering.discard(broker)
                    name = f"broker {broker} at {format_address(address)}"
                    return DiskAnswer(broker, [], BrokerFailed(error.reason, f"{name}: {error}"))

        brokers = await self._brokers(tls)
        return await asyncio.gather(*(ask(broker, address) for broker, address in brokers.items()))

    def explain(self, error: Exception) -> tuple[str, str, str | None]:
        """The reason as one word, the error in words, and what to do."""
        if isinstance(error, ConfigError):
            return "config", str(error.problems[0]), error.problems[0].hint
        reason, login = getattr(error, "reason", "defect"), self._settings.login
        user = login.username if login is not None and login.username else "NAME"
        hint = _HINTS.get(reason) or hint_of(reason, f"--own-client-config {self._settings.file or 'FILE'}")
        return reason, one_line(str(error)), hint and hint.replace("{user}", user)

    async def _brokers(self, tls: SSLContext | None) -> dict[int, Address]:
        failure = BrokerFailed("connect_failed", "there is no bootstrap server")
        for server in list(self._servers):
            try:
                async with connection(server, tls, self._settings.login, TIMEOUT_SECONDS, MAX_BYTES) as ask:
                    found = brokers_in(await ask(BROKERS_REQUEST))
                return {int(each.node_id): (str(each.host), int(each.port)) for each in found}
            except BrokerFailed as error:
                failure = BrokerFailed(error.reason, f"{format_address(server)}: {error}")
                self._servers.append(self._servers.pop(0))
        raise failure

    async def _directories(self, broker: int, address: Address, tls: SSLContext | None) -> list[LogDirectory]:
        async with connection(address, tls, self._settings.login, TIMEOUT_SECONDS, MAX_BYTES) as ask:
            if broker not in self._offering:
                if not has_log_dirs(await ask(VERSIONS_REQUEST)):
                    raise BrokerFailed(NOT_OFFERED, "it does not offer DescribeLogDirs 4")
                self._offering.add(broker)
            response = await ask(LOG_DIRS_REQUEST)
        error, found = log_dirs_in(response)
        if error is not ErrorCode.none:
            raise BrokerFailed(error.name, "it refuses DescribeLogDirs")
        return found
