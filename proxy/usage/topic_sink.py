"""Writes records to a Kafka topic, through an internal client to the real brokers: quotas do not apply to it.

All records of a process have one key and so one partition. A batch is sent when the one before is acknowledged.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer

from proxy.config.config import Config
from proxy.internal_clients.client import InternalClient, stop
from proxy.observability.logs import EventLog, RateLimited
from proxy.usage.usage_topic import check_topic

BATCH_BYTES: Final = 65_536
SAME_WARNING_NS: Final = 3_600_000_000_000

_log = EventLog("proxy.usage")


class TopicSink:
    """Connects with the first write, and checks the topic then. `key`: of all records."""

    def __init__(self, config: Config, key: bytes) -> None:
        assert config.usage.topic is not None  # noqa: S101 - for the type checker
        self._topic = config.usage.topic
        self._key = key
        self._client = InternalClient(config, "kafka-quota-proxy-usage")
        self._producer: Any = None
        self._warnings = RateLimited(SAME_WARNING_NS)

    async def write(self, records: Sequence[bytes]) -> None:
        """Send the records to the partition of their key, in order. Raises LogFailed."""
        try:
            producer = await self._connected()
            sent = []
            for record in records:
                sent.append(await producer.send(self._topic, record, key=self._key))
                # also if the wait ends early
                sent[-1].add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.gather(*sent)
        except asyncio.CancelledError:
            await self.close()
            raise
        except Exception as error:  # noqa: BLE001 - a library's code: no error of it may end the writing
            await self.close()
            raise self._client.failure(error, f"--usage-topic {self._topic}") from None

    async def _connected(self) -> Any:
        """The producer, after a check of the topic."""
        if self._producer is None:
            client = await self._client.arguments()
            unchecked = self._client.masked(await check_topic(client, self._topic))
            if unchecked:
                hint = "allow DescribeConfigs on the topic: a compacted one would lose records"
                about = {"topic": self._topic, "message": unchecked, "hint": hint}
                self._warnings.event(_log.warning, "usage_topic_not_checked", unchecked, time.monotonic_ns(), **about)
            self._producer = AIOKafkaProducer(**client, acks="all", max_batch_size=BATCH_BYTES)
            await self._producer.start()
        return self._producer

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await stop(producer)
