"""The proxy's own requests to brokers, each on a connection of its own, opened like those for clients: in plaintext or
with TLS, and logged in if the proxy has a login.
"""

import asyncio
import ssl
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from protocol.errors import ProtocolError
from protocol.topic_metadata_request import topics_by_id, topics_by_id_request
from protocol.topics import TopicPartitions
from proxy.brokers.sasl_exchange import CORRELATION_ID, log_in
from proxy.brokers.upstream import CONNECT_TIMEOUT_SECONDS, BrokerFailed, connect_failure, upstream_of
from proxy.config.addresses import Address
from proxy.config.client_settings import LoginSettings
from proxy.files.tls import TlsContexts, failure_of

LONGEST_RESPONSE: Final = 64 * 1024 * 1024
"""A greater length does not come from Kafka: it may be four bytes of HTTP, for instance."""
MAX_RESPONSE: Final = 16 * 1024 * 1024
"""Enough for 1,000 topics with 400 partitions each."""
_TLS_ALERT: Final = b"\x15\x03"
_CORRELATION_ID: Final = slice(8, 12)
"""Where a request, including its length, has its correlation id."""


async def ask_for_topics(
    servers: Sequence[Address], tls: TlsContexts, topic_ids: list[bytes]
) -> Iterable[TopicPartitions]:
    """The topics with these ids, from the first server that answers. Raises OSError if none does."""
    problem: Exception | None = None
    seconds = CONNECT_TIMEOUT_SECONDS / len(servers)
    request = topics_by_id_request(CORRELATION_ID, topic_ids)
    for server in servers:
        try:
            response = await ask_broker(server, tls, request, seconds)
            # In a thread, because many partitions take seconds.
            return await asyncio.to_thread(topics_by_id, CORRELATION_ID, response)
        except (OSError, ProtocolError) as error:
            problem = error
    raise OSError(f"no bootstrap server returned topic names: {problem}")


async def ask_broker(
    server: Address, tls: TlsContexts, request: bytes, seconds: float, most: int = MAX_RESPONSE
) -> bytes:
    """The response, from its correlation id on, to a request that is given with its length. Raises BrokerFailed."""
    async with connection(server, tls.to_brokers, tls.upstream.login, seconds, most) as ask:
        return await ask(request)


@asynccontextmanager
async def connection(
    server: Address, tls: ssl.SSLContext | None, login: LoginSettings | None, seconds: float, most: int = MAX_RESPONSE
) -> AsyncIterator[Callable[[bytes], Awaitable[bytes]]]:
    """A function that sends a request with its length, and returns the response from the correlation id on. All of it
    within that time, and each response within `most` bytes. Raises BrokerFailed.
    """
    works = False
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await _connect(server, tls)
            try:
                ask = partial(_ask, reader, writer, most)
                if login is not None:
                    await log_in(ask, login)
                yield ask
                works = True
            finally:
                writer.close()
    except BrokerFailed:
        raise
    except TimeoutError:
        raise BrokerFailed("connect_timeout", f"no answer within {seconds:g} s") from None
    except (OSError, EOFError) as error:
        raise BrokerFailed("closed_early", "it closed the connection before its first response") from error
    except ProtocolError as error:
        raise BrokerFailed("connect_failed", str(error)) from error
    finally:
        if not works:
            upstream_of(asyncio.get_running_loop()).forget(server)


async def _connect(server: Address, tls: ssl.SSLContext | None) -> tuple[StreamReader, StreamWriter]:
    try:
        sock = await upstream_of(asyncio.get_running_loop()).dial(server)
        return await asyncio.open_connection(sock=sock, ssl=tls, server_hostname=None if tls is None else server[0])
    except (BrokerFailed, TimeoutError):
        raise
    except (OSError, ValueError) as error:  # ValueError: a name that cannot stand in a certificate
        if tls is not None and isinstance(error, ssl.SSLError | ConnectionResetError):
            raise BrokerFailed(*failure_of(error)) from error
        raise connect_failure(error) from error


async def _ask(reader: StreamReader, writer: StreamWriter, most: int, request: bytes) -> bytes:
    writer.write(request)
    head = await reader.readexactly(4)
    if head[:2] == _TLS_ALERT:
        raise BrokerFailed("plaintext_to_tls", "it answers with a TLS alert")
    length = int.from_bytes(head, "big", signed=True)
    if not 4 <= length <= LONGEST_RESPONSE:
        raise BrokerFailed("connect_failed", "its response is not Kafka's")
    if length > most:
        raise BrokerFailed("too_large", f"its response has {length} bytes, more than {most}")
    response = await reader.readexactly(length)
    asked, answered = request[_CORRELATION_ID], response[:4]
    if answered != asked:
        found, wanted = (int.from_bytes(each, "big", signed=True) for each in (answered, asked))
        raise BrokerFailed("connect_failed", f"its response has the correlation id {found}, not {wanted} as asked")
    return response
