"""The table of all limits, by name: what each counts, its scopes, and its measure.

    name                                  counts                                        scopes
    producer_byte_rate                    bytes of Produce requests                     client, group, total
    consumer_byte_rate                    bytes of Fetch and ShareFetch responses       client, group, total
    request_rate                          requests, all of them; holds only data        client, group, total
    controller_mutation_rate              partitions created or deleted (KIP-599)       client, group, total
    producer_ids_rate                     new producer ids per window (KIP-936)         user
    bytes_in_rate, messages_in_rate       record bytes and records produced             topic, group, total
    bytes.in.per.sec.threshold, ...       the same by seed 004's rule                   topic
    total.bytes.in.per.sec.threshold, ... the same                                      total
    connection_creation_rate              new connections (KIP-612)                     ip, listener, total
    connections                           connections at a time                         ip, listener, total

"client" is a user, a client id, or both, by Kafka's eight levels (`quotas.registry.precedence`).
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from quotas.entity import EntityKind

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_RATE: Final = "request_rate"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
PRODUCER_IDS_RATE: Final = "producer_ids_rate"
BYTES_IN_RATE: Final = "bytes_in_rate"
MESSAGES_IN_RATE: Final = "messages_in_rate"
BYTES_THRESHOLD: Final = "bytes.in.per.sec.threshold"
MESSAGES_THRESHOLD: Final = "messages.in.per.sec.threshold"
TOTAL_BYTES_THRESHOLD: Final = "total.bytes.in.per.sec.threshold"
TOTAL_MESSAGES_THRESHOLD: Final = "total.messages.in.per.sec.threshold"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
CONNECTIONS: Final = "connections"
DISK_GUARD: Final = "disk_guard"
"""Bytes of Produce requests per second while disks fill up (`quotas.adaptive`). No entry configures it, so it is not in
the table.
"""

#: Those that count records, not their bytes.
MESSAGE_LIMITS: Final = frozenset({MESSAGES_IN_RATE, MESSAGES_THRESHOLD})
THRESHOLDS: Final = {BYTES_THRESHOLD: TOTAL_BYTES_THRESHOLD, MESSAGES_THRESHOLD: TOTAL_MESSAGES_THRESHOLD}
"""The threshold of a topic, and its total."""


class ClientScope(Enum):
    """Scopes besides those of `quotas.entity.EntityKind`."""

    ANY = "user or client-id"
    USER = "user"


class Measure(Enum):
    """How a limit is measured: by an algorithm that can be configured, or by its own rule."""

    BYTES = "bytes per second"
    RATE = "a rate of something else"
    CONNECTION_RATE = "a rate, by default over sampled windows that are paced"
    OWN = "its own rule"


@dataclass(frozen=True, slots=True)
class LimitKind:
    """One row of the table above.

    counts   what it counts, as shown by `run --help`
    kafka_type
             of its values in Kafka: only DOUBLE may have fractions
    """

    name: str
    counts: str
    scopes: tuple[EntityKind | ClientScope, ...]
    measure: Measure
    kafka_type: Literal["INT", "LONG", "DOUBLE"] = "LONG"

    @property
    def is_bytes(self) -> bool:
        """Whether its values may have units of bytes."""
        return self.measure is Measure.BYTES or "bytes" in self.name


_TRAFFIC: Final = (ClientScope.ANY, EntityKind.RESOURCE_GROUP, EntityKind.TOTAL)
_RECORDS: Final = (EntityKind.TOPIC, EntityKind.RESOURCE_GROUP, EntityKind.TOTAL)
_PLACES: Final = (EntityKind.IP, EntityKind.LISTENER, EntityKind.TOTAL)

_TABLE: Final = (
    LimitKind(PRODUCER_BYTE_RATE, "bytes of Produce requests per second", _TRAFFIC, Measure.BYTES),
    LimitKind(CONSUMER_BYTE_RATE, "bytes of Fetch responses per second", _TRAFFIC, Measure.BYTES),
    LimitKind(REQUEST_RATE, "requests of every kind per second", _TRAFFIC, Measure.RATE, "DOUBLE"),
    LimitKind(CONTROLLER_MUTATION_RATE, "partitions created or deleted per second", _TRAFFIC, Measure.RATE, "DOUBLE"),
    LimitKind(
        PRODUCER_IDS_RATE,
        "new producer ids per producer id window, an hour by default",
        (ClientScope.USER,),
        Measure.OWN,
    ),
    LimitKind(BYTES_IN_RATE, "bytes of records produced per second", _RECORDS, Measure.BYTES),
    LimitKind(MESSAGES_IN_RATE, "records produced per second", _RECORDS, Measure.RATE, "DOUBLE"),
    LimitKind(
        BYTES_THRESHOLD,
        "bytes of records per second, enforced while all topics together exceed the total",
        (EntityKind.TOPIC,),
        Measure.OWN,
    ),
    LimitKind(
        MESSAGES_THRESHOLD,
        "records per second, enforced while all topics together exceed the total",
        (EntityKind.TOPIC,),
        Measure.OWN,
    ),
    LimitKind(
        TOTAL_BYTES_THRESHOLD,
        "the total of the thresholds in bytes; topics without a threshold share the rest of it",
        (EntityKind.TOTAL,),
        Measure.OWN,
    ),
    LimitKind(
        TOTAL_MESSAGES_THRESHOLD,
        "the total of the thresholds in records; topics without a threshold share the rest of it",
        (EntityKind.TOTAL,),
        Measure.OWN,
    ),
    LimitKind(CONNECTION_CREATION_RATE, "new connections per second", _PLACES, Measure.CONNECTION_RATE, "INT"),
    LimitKind(CONNECTIONS, "connections at a time", _PLACES, Measure.OWN, "INT"),
)
LIMIT_KINDS: Final = {kind.name: kind for kind in _TABLE}
"""In Kafka's spelling, if Kafka has the limit."""

LIMIT_NAMES: Final = tuple(LIMIT_KINDS)
