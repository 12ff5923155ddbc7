"""Writes records to a Kafka topic, through a client of its own to the real brokers: quotas do not concern it.

All records of a process have one key and so one partition. A batch is sent when the one before is acknowledged.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import (
    AuthenticationFailedError,
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    UnsupportedSaslMechanismError,
)
from aiokafka.partitioner import DefaultPartitioner

from proxy.config.addresses import Address, format_address
from proxy.config.client_file import read_client_settings
from proxy.config.client_settings import masked
from proxy.config.config import UsageOptions
from proxy.config.errors import ConfigError
from proxy.tls import context_to_brokers
from proxy.usage.sink import SinkFailed
from proxy.usage.topic_check import check_topic

BATCH_BYTES: Final = 65_536
REQUEST_TIMEOUT_MS: Final = 10_000
CLOSE_SECONDS: Final = 2.0

_REASONS: Final[Mapping[type[Exception], str]] = {
    AuthenticationFailedError: "authentication",
    SaslAuthenticationFailed: "authentication",
    UnsupportedSaslMechanismError: "authentication",
    IllegalSaslStateError: "authentication",
    ClusterAuthorizationFailedError: "authorization",
    TopicAuthorizationFailedError: "authorization",
    UnknownTopicOrPartitionError: "topic_missing",
}


class _Cause(logging.Handler):
    """The latest error that aiokafka logged: if no broker can be used, it raises an error without the reason."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the error, which is the last argument of the message."""
        if isinstance(record.args, tuple) and record.args and isinstance(record.args[-1], Exception):
            self.error = record.args[-1]

    def forget(self) -> None:
        self.error = None


class TopicSink:
    """Connects with the first write, and checks the topic then. `options.client` is read again for each connection.
    `key`: of all records.
    """

    def __init__(self, options: UsageOptions, servers: Sequence[Address], key: bytes) -> None:
        assert options.topic is not None  # noqa: S101 - for the type checker
        self._topic = options.topic
        self._key = key
        self._client: dict[str, Any] = {
            "bootstrap_servers": list(map(format_address, servers)),
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
        }
        self._settings = options.client
        #: The latest one, of an OAUTHBEARER login.
        self._tokens: list[str] = []
        self._cause = _Cause()
        # Its failures are reported as `usage_records_not_written`; its own log would repeat each of them.
        log = logging.getLogger("aiokafka")
        log.setLevel(logging.WARNING)
        log.propagate = False
        log.handlers = [self._cause]
        self._producer: Any = None
        self._partition = 0

    async def write(self, records: Sequence[bytes]) -> None:
        """Send the records to one partition. Raises SinkFailed, or SinkRefused."""
        self._cause.forget()
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
            raise type(error)(error.reason, self._masked(error.message)) from None
        except Exception as error:  # noqa: BLE001 - a library's code: no error of it may end the writing
            await self.close()
            cause = error
            if isinstance(error, KafkaConnectionError) and self._cause.error is not None:
                cause = self._cause.error
            text = str(cause) if isinstance(cause, KafkaError) else f"{type(cause).__name__}: {cause}"
            servers = ",".join(self._client["bootstrap_servers"])
            message = f"--usage-topic {self._topic} at {servers}: {self._masked(text)}"
            raise SinkFailed(reason_of(cause), message) from None

    def _masked(self, text: str) -> str:
        """Without the secrets of the client file, and the latest token."""
        return masked(text, [*self._settings.secrets, *self._tokens])

    async def _send(self, batch: Any) -> None:
        sent = await self._producer.send_batch(batch, self._topic, partition=self._partition)
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())  # also if the wait ends early
        await sent

    async def _connected(self) -> Any:
        """The producer, after a check of the topic."""
        if self._producer is None:
            client = {**self._client, **await asyncio.to_thread(self._arguments)}
            await check_topic(client, self._topic, self._masked)
            self._producer = AIOKafkaProducer(**client, acks="all", max_batch_size=BATCH_BYTES)
            await self._producer.start()
            partitions = sorted(await self._producer.partitions_for(self._topic))
            self._partition = DefaultPartitioner()(self._key, partitions, partitions)
        return self._producer

    def _arguments(self) -> dict[str, Any]:
        """How to connect, as arguments of aiokafka's clients."""
        if self._settings.file is not None:
            with suppress(ConfigError):  # what was read before stays
                self._settings = read_client_settings(self._settings.file, self._settings)
        login, ssl = self._settings.login, self._settings.ssl
        client_id = self._settings.client_id or "kafka-quota-proxy-usage"
        arguments: dict[str, Any] = {"security_protocol": self._settings.protocol, "client_id": client_id}
        if ssl is not None:
            arguments["ssl_context"] = context_to_brokers(ssl)
        if login is not None:
            arguments["sasl_mechanism"] = login.mechanism
            arguments |= {"sasl_plain_username": login.username, "sasl_plain_password": login.password}
            if login.token_file is not None:
                arguments["sasl_oauth_token_provider"] = _TokenFile(login.token_file, self._tokens)
        return arguments

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


class _TokenFile(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """The token of an OAUTHBEARER login, read for each connection. `read`: the latest one."""

    def __init__(self, path: Path, read: list[str]) -> None:
        self._path = path
        self._read = read

    async def token(self) -> str:
        self._read[:] = [(await asyncio.to_thread(self._path.read_text, encoding="utf-8")).strip()]
        return self._read[0]


def reason_of(error: Exception) -> str:
    """The metric's label for an error of aiokafka or of the network."""
    default = "broker_error" if isinstance(error, BrokerResponseError) else "unreachable"
    return _REASONS.get(type(error), default)
