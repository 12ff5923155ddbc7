"""Finds client ids that a library generated and that several jobs have: with `client-id=<default>` they share one
limit.

Without `client.id` (Spark: `kafka.client.id`) the first producer of each Java process is `producer-1`.
"""

import re
from collections.abc import Iterable
from typing import Final

from proxy.observability.logs import EventLog
from quotas.admission.limit import Limit
from quotas.entity import DEFAULT, AnyEntity, Entity

#: Who makes names up for clients without a client id: constants, or counted within a process.
_MAKERS: Final = {
    "librdkafka": r"rdkafka",
    "the Java client": r"(?:producer|consumer|adminclient)-[0-9]+|consumer-(?:null-[0-9]+|spark-kafka-.+)",
    "a command-line tool of Kafka": r"console-(?:producer|consumer)|perf-(?:producer|consumer)-client",
    "aiokafka or kafka-python": r"(?:aiokafka|kafka-python)-(?:producer-)?[0-9.]+",
    "a client library": r"sarama|kgo|.+ \(github\.com/segmentio/kafka-go\)|kafkajs|ruby-kafka",
}
_made_up: Final = [(maker, re.compile(pattern, re.ASCII | re.DOTALL).fullmatch) for maker, pattern in _MAKERS.items()]
#: Clients that are compared: names come from the wire.
MAX_KEPT: Final = 100

_log = EventLog(__name__)


def maker_of(client_id: str) -> str | None:
    """The library that made up this client id; None if no known library did."""
    return next((maker for maker, is_of in _made_up if is_of(client_id)), None)


class GeneratedIds:
    """Shared by all connections. It warns only once."""

    def __init__(self) -> None:
        #: The first address of each client with such an id; None: the warning was given.
        self._addresses: dict[AnyEntity, str] | None = {}

    def check(self, client_id: str, peer: str, limits: Iterable[Limit]) -> None:
        """A client with these limits on its producers connects from `peer`, an address and a port."""
        addresses = self._addresses
        if addresses is None or maker_of(client_id) is None:
            return
        limit = next((each for each in limits if _is_by_default(each)), None)
        if limit is None:
            return
        address = peer.rpartition(":")[0]
        first = addresses.get(limit.entity)
        if first is None:
            if len(addresses) < MAX_KEPT:
                addresses[limit.entity] = address
        elif first != address:
            self._addresses = None
            _log.warning(
                "client_id_is_generated",
                client_id=client_id,
                addresses=f"{first}, {address}",
                limit=limit.name,
                entity=str(limit.entity),
                limit_value=limit.rate,
                effect="a client library made up this name, so unrelated clients share one limit",
                hint="set client.id in each job (Spark: kafka.client.id), or limit users",
            )


def _is_by_default(limit: Limit) -> bool:
    """Whether it applies to a client id because of `client-id=<default>`."""
    return isinstance(limit.origin, Entity) and limit.origin.client_id is DEFAULT
