"""Requests the names of topic ids from a bootstrap server, on a separate connection."""

import asyncio
from collections.abc import Iterable, Sequence

from protocol.errors import ProtocolError
from protocol.topic_metadata_request import topics_by_id, topics_by_id_request
from protocol.topics import TopicPartitions
from proxy.brokers.connect import open_broker
from proxy.config.config import Address
from proxy.tls import TlsContexts

TIMEOUT_SECONDS = 5.0
_CLIENT_ID = "kafka-quota-proxy"
_CORRELATION_ID = 1
_MAX_ANSWER = 64 * 1024 * 1024


async def ask_for_topics(
    servers: Sequence[Address], tls: TlsContexts, topic_ids: list[bytes]
) -> Iterable[TopicPartitions]:
    """The topics with these ids, from the first server that answers. Raises OSError if none does."""
    problem: Exception = OSError("no bootstrap server")
    for server in servers:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await _ask(server, tls, topic_ids)
        except (OSError, EOFError, ProtocolError) as error:
            problem = error
    raise OSError(f"no bootstrap server returned topic names: {str(problem) or type(problem).__name__}")


async def _ask(server: Address, tls: TlsContexts, topic_ids: list[bytes]) -> Iterable[TopicPartitions]:
    reader, writer = await open_broker(server, tls)
    try:
        request = topics_by_id_request(_CORRELATION_ID, _CLIENT_ID, topic_ids)
        writer.write(len(request).to_bytes(4, "big") + request)
        length = int.from_bytes(await reader.readexactly(4), "big")
        if length > _MAX_ANSWER:
            raise OSError(f"an answer of {length} bytes")
        return topics_by_id(_CORRELATION_ID, await reader.readexactly(length))
    finally:
        writer.close()
