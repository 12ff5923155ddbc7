"""How the proxy's internal Kafka clients connect to the real brokers: arguments of aiokafka's clients, and their
errors.

They connect to brokers directly, so quotas do not apply to them. Their requests never create a topic implicitly.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiokafka.client
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
from aiokafka.protocol.metadata import MetadataRequest

from proxy.background.threads import OutsideThreads
from proxy.config.addresses import format_address
from proxy.config.client_file import latest
from proxy.config.client_settings import masked
from proxy.config.config import Config
from proxy.files.tls import context_to_brokers
from proxy.internal_clients.failures import LogFailed

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

# aiokafka has no option for this. A deleted topic would be created again with the defaults of a broker.
aiokafka.client.MetadataRequest = partial(MetadataRequest, allow_auto_topic_creation=False)


class _Cause(logging.Handler):
    """The latest error that aiokafka logged. If no broker can be used, aiokafka raises an error without the reason."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the error, which is the last argument of the message."""
        if isinstance(record.args, tuple) and record.args and isinstance(record.args[-1], Exception):
            self.error = record.args[-1]


_cause: Final = _Cause()


class InternalClient:
    """Its settings are read again for each connection. `name` is its client id, unless the settings have one."""

    def __init__(self, config: Config, name: str) -> None:
        self._settings = config.internal_client
        self._name = name
        self._thread = OutsideThreads(f"{name} files")
        self.servers: Final = list(map(format_address, config.internal_servers or config.bootstrap_servers))
        #: The latest token of an OAUTHBEARER login.
        self._tokens: list[str] = []
        # The caller reports failures; aiokafka's own log would repeat each of them.
        log = logging.getLogger("aiokafka")
        log.setLevel(logging.WARNING)
        log.propagate = False
        log.handlers = [_cause]

    async def arguments(self) -> dict[str, Any]:
        """How to connect, as arguments of aiokafka's clients."""
        _cause.error = None
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._arguments)

    def _arguments(self) -> dict[str, Any]:
        self._settings = settings = latest(self._settings)
        login = settings.login
        arguments: dict[str, Any] = {
            "bootstrap_servers": self.servers,
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "security_protocol": settings.protocol,
            "client_id": settings.client_id or self._name,
        }
        if settings.ssl is not None:
            arguments["ssl_context"] = context_to_brokers(settings.ssl)
        if login is not None:
            arguments["sasl_mechanism"] = login.mechanism
            arguments |= {"sasl_plain_username": login.username, "sasl_plain_password": login.password}
            if login.token_file is not None:
                arguments["sasl_oauth_token_provider"] = _TokenFile(login.token_file, self._tokens, self._thread)
        return arguments

    def masked(self, text: str) -> str:
        """The text without the secrets of the client file and the latest token."""
        return masked(text, [*self._settings.secrets, *self._tokens])

    def failure(self, error: Exception, topic: str) -> LogFailed:
        """An error of a client, or of a check of the topic, without secrets."""
        if isinstance(error, LogFailed):  # with a broker's words
            return type(error)(error.reason, self.masked(error.message))
        reason, text = self.explain(error)
        return LogFailed(reason, f"{topic} {text}")

    def explain(self, error: Exception) -> tuple[str, str]:
        """The reason of an error of a client, as a label of metrics; and the servers and its words, without secrets."""
        cause = error
        if isinstance(error, KafkaConnectionError) and _cause.error is not None:
            cause = _cause.error
        text = str(cause) if isinstance(cause, KafkaError) else f"{type(cause).__name__}: {cause}"
        if isinstance(cause, EOFError | ConnectionResetError) or text.endswith(" closed"):
            file = self._settings.file or "FILE"
            text += (
                f"; brokers that require TLS or a login do this: set security.protocol in --own-client-config {file}"
            )
        return reason_of(cause), f"at {','.join(self.servers)}: {self.masked(text)}"


class _TokenFile(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """The token of an OAUTHBEARER login, read for each connection. `read` receives the latest one."""

    def __init__(self, path: Path, read: list[str], thread: OutsideThreads) -> None:
        self._path = path
        self._read = read
        self._thread = thread

    async def token(self) -> str:
        loop = asyncio.get_running_loop()
        self._read[:] = [(await loop.run_in_executor(self._thread, self._path.read_text, "utf-8")).strip()]
        return self._read[0]


def reason_of(error: Exception) -> str:
    """The metric's label for an error of aiokafka or of the network."""
    default = "broker_error" if isinstance(error, BrokerResponseError) else "unreachable"
    return _REASONS.get(type(error), default)


async def stop(producer: Any) -> None:
    """Stop a producer. aiokafka would flush it first, which waits for the broker."""
    if not await stopped(producer.stop()):
        await producer._sender.close()
        await producer.client.close()


async def stopped(stopping: Coroutine[Any, Any, None]) -> bool:
    """Stop a client in a task of its own, because clients that wait for a broker cancel the task that stops them."""
    task = asyncio.ensure_future(stopping)
    done, _ = await asyncio.wait({task}, timeout=CLOSE_SECONDS)
    task.cancel()
    return bool(done) and not task.cancelled() and task.exception() is None
