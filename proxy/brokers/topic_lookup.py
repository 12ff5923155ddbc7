"""Requests the names of topic ids from a bootstrap server, on a separate connection."""

from collections.abc import Iterable, Sequence

from protocol.errors import ProtocolError
from protocol.topic_metadata_request import topics_by_id, topics_by_id_request
from protocol.topics import TopicPartitions
from proxy.brokers.connect import ask_broker
from proxy.config.config import Address
from proxy.tls import TlsContexts

TIMEOUT_SECONDS = 5.0
_CLIENT_ID = "kafka-quota-proxy"
_CORRELATION_ID = 1


async def ask_for_topics(
    servers: Sequence[Address], tls: TlsContexts, topic_ids: list[bytes]
) -> Iterable[TopicPartitions]:
    """The topics with these ids, from the first server that answers. Raises OSError if none does."""
    problem: Exception | None = None
    request = topics_by_id_request(_CORRELATION_ID, _CLIENT_ID, topic_ids)
    for server in servers:
        try:
            response = await ask_broker(server, tls, len(request).to_bytes(4, "big") + request, TIMEOUT_SECONDS)
            return topics_by_id(_CORRELATION_ID, response)
        except (OSError, ProtocolError) as error:
            problem = error
    raise OSError(f"no bootstrap server returned topic names: {problem}")
