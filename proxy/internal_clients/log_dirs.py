"""Asks every broker how full its disks are: DescribeLogDirs, for the disk guard.

The brokers are those that a bootstrap server names each time. A broker that does not answer has no place in the result.
"""

import asyncio
from typing import ClassVar, Final, NamedTuple

from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v1.response import MetadataResponseBroker

from protocol.client_quotas import BROKERS_REQUEST, VERSIONS_REQUEST, brokers_in, offers
from protocol.errors import ProtocolError
from protocol.log_dirs import LOG_DIRS_REQUEST, LogDirectory, log_dirs_in
from proxy.background.host import Host
from proxy.brokers.upstream import BrokerFailed
from proxy.config.addresses import Address, format_address
from proxy.config.config import Config
from proxy.internal_clients.broker_reader import NOT_OFFERED, Ask, BrokerReader

ASKED_AT_ONCE: Final = 8


class DiskAnswer(NamedTuple):
    """The directories of one broker; or why there are none."""

    broker: int
    directories: list[LogDirectory]
    failure: Exception | None = None


class LogDirs(BrokerReader):
    """`max_bytes`: a broker that ignores that no topic is asked for lists 500,000 partitions in it."""

    timeout_seconds = 5.0
    max_bytes = 16 * 1024 * 1024
    hints: ClassVar = {
        ErrorCode.cluster_authorization_failed.name: "the right Describe on the cluster is missing: kafka-acls --add "
        "--allow-principal User:{user} --operation Describe --cluster",
        NOT_OFFERED: "brokers report the size of their disks since Kafka 3.3",
    }

    def __init__(self, config: Config, host: Host) -> None:
        super().__init__(config, host, "disk guard")
        #: Brokers that are known to offer the request.
        self._offering: set[int] = set()

    async def answers(self) -> list[DiskAnswer]:
        """The answer of each broker that is alive. Raises BrokerFailed, ProtocolError and ConfigError if no bootstrap
        server can be used.
        """
        slots = asyncio.Semaphore(ASKED_AT_ONCE)

        async def answer(broker: int, address: Address) -> DiskAnswer:
            async with slots:
                try:
                    return DiskAnswer(broker, await self._directories(broker, address))
                except (BrokerFailed, ProtocolError) as error:
                    self._offering.discard(broker)
                    name = f"broker {broker} at {format_address(address)}"
                    return DiskAnswer(broker, [], BrokerFailed(error.reason, f"{name}: {error}"))

        async def brokers(ask: Ask) -> tuple[MetadataResponseBroker, ...]:
            return brokers_in(await ask(BROKERS_REQUEST))

        found = await self._first(brokers)
        return await asyncio.gather(*(answer(int(each.node_id), (str(each.host), int(each.port))) for each in found))

    async def _directories(self, broker: int, address: Address) -> list[LogDirectory]:
        async with self._connection(address) as ask:
            if broker not in self._offering:
                if not offers(await ask(VERSIONS_REQUEST), DescribeLogDirsRequest):
                    raise BrokerFailed(NOT_OFFERED, "it does not offer DescribeLogDirs 4")
                self._offering.add(broker)
            response = await ask(LOG_DIRS_REQUEST)
        error, found = log_dirs_in(response)
        if error is not ErrorCode.none:
            raise BrokerFailed(error.name, "it refuses DescribeLogDirs")
        return found
