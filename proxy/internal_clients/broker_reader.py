"""What the readers of `cluster_quotas` and `log_dirs` have in common: which servers they ask, how, and what to do if
that fails.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from ssl import SSLContext
from typing import ClassVar, Final, TypeVar

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

NOT_OFFERED: Final = "not_offered"

T = TypeVar("T")
Ask = Callable[[bytes], Awaitable[bytes]]


class BrokerReader:
    """Asks with the current settings of internal clients.

    timeout_seconds, max_bytes   of one connection, and of one response
    hints                        what to do, by reason; `{user}` is who logs in
    """

    timeout_seconds: float
    max_bytes: int
    hints: ClassVar[Mapping[str, str]]

    def __init__(self, config: Config, host: Host, purpose: str) -> None:
        self._settings = config.internal_client
        self._thread = OutsideThreads(f"{purpose} files")
        #: A server that does not answer moves to the end. In normal operation a single broker keeps answering, and its
        #: own order of entities does not change.
        servers = config.internal_servers or config.bootstrap_servers
        self._servers = host.random.sample(servers, len(servers))
        self._tls: SSLContext | None = None

    async def _first(self, asking: Callable[[Ask], Awaitable[T]]) -> T:
        """The answer of the first usable server, after its settings were read. Raises BrokerFailed, ProtocolError and
        ConfigError.
        """
        loop = asyncio.get_running_loop()
        self._settings = await loop.run_in_executor(self._thread, latest, self._settings)
        ssl = self._settings.ssl
        self._tls = None if ssl is None else await loop.run_in_executor(self._thread, context_to_brokers, ssl)
        failure = BrokerFailed("connect_failed", "there is no bootstrap server")
        for server in list(self._servers):
            try:
                async with self._connection(server) as ask:
                    return await asking(ask)
            except BrokerFailed as error:
                failure = BrokerFailed(error.reason, f"{format_address(server)}: {error}")
                self._servers.append(self._servers.pop(0))
        raise failure

    def _connection(self, address: Address) -> AbstractAsyncContextManager[Ask]:
        return connection(address, self._tls, self._settings.login, self.timeout_seconds, self.max_bytes)

    def explain(self, error: Exception) -> tuple[str, str, str | None]:
        """The reason as one word, the error in words, and what to do."""
        if isinstance(error, ConfigError):
            return "config", str(error.problems[0]), error.problems[0].hint
        reason, login = getattr(error, "reason", "defect"), self._settings.login
        user = login.username if login is not None and login.username else "NAME"
        hint = self.hints.get(reason) or hint_of(reason, f"--own-client-config {self._settings.file or 'FILE'}")
        return reason, one_line(str(error)), hint and hint.replace("{user}", user)
