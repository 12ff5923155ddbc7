"""Writes records to a Kafka topic, through a client of its own to the real brokers: quotas do not concern it.

All records of a process have one key and so one partition. A batch is sent when the one before is acknowledged.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.partitioner import DefaultPartitioner

from proxy.config.addresses import Address
from proxy.config.config import UsageOptions
from proxy.own_client import OwnClient
from proxy.usage.sink import SinkFailed
from proxy.usage.topic_check import check_topic

BATCH_BYTES: Final = 65_536
CLOSE_SECONDS: Final = 2.0


class TopicSink:
    """Connects with the first write, and checks the topic then. `options.client` is read again for each connection.
    `key`: of all records.
    """

    def __init__(self, options: UsageOptions, servers: Sequence[Address], key: bytes) -> None:
        assert options.topic is not None  # noqa: S101 - for the type checker
        self._topic = options.topic
        self._key = key
        self._client = OwnClient(options.client, servers, "kafka-quota-proxy-usage")
        self._producer: Any = None
        self._partition = 0

    async def write(self, records: Sequence[bytes]) -> None:
        """Send the records to one partition. Raises SinkFailed, or SinkRefused."""
        try:
            producer = await self._connected()
            batch = producer.create_batch()
            for record in records:
                if batch.append(key=self._key, value=record, timestamp=None) is None:
                    await self._send(batch)
                    batch = producer.create_batch()
                    batch.append(key=self._key, value=record, timestamp=None)
            await self._send(batch)
        except asyncio.CancelledError:
            await self.close()
            raise
        except SinkFailed as error:  # of the check, with a broker's words
            await self.close()
            raise type(error)(error.reason, self._client.masked(error.message)) from None
        except Exception as error:  # noqa: BLE001 - a library's code: no error of it may end the writing
            await self.close()
            reason, text = self._client.explain(error)
            servers = ",".join(self._client.servers)
            raise SinkFailed(reason, f"--usage-topic {self._topic} at {servers}: {text}") from None

    async def _send(self, batch: Any) -> None:
        sent = await self._producer.send_batch(batch, self._topic, partition=self._partition)
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())  # also if the wait ends early
        await sent

    async def _connected(self) -> Any:
        """The producer, after a check of the topic."""
        if self._producer is None:
            client = await self._client.arguments()
            await check_topic(client, self._topic, self._client.masked)
            self._producer = AIOKafkaProducer(**client, acks="all", max_batch_size=BATCH_BYTES)
            await self._producer.start()
            partitions = sorted(await self._producer.partitions_for(self._topic))
            self._partition = DefaultPartitioner()(self._key, partitions, partitions)
        return self._producer

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await producer.stop()
        except (KafkaError, OSError, TimeoutError):
            # aiokafka cannot be stopped without a flush, which waits for the broker.
            await producer._sender.close()
            await producer.client.close()
