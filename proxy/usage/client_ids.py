"""The client id of usage records: without labels at its end, and with `*` for the counters and UUIDs of clients.

Quotas and metrics use client ids as they are. docs/pipeline/records.md has the table of rules with examples.
"""

import re
from typing import Final

from proxy.config.values import MAX_LABELS

Labels = tuple[tuple[str, str], ...]
"""Names and values, sorted by name."""

_LABEL: Final = re.compile(r"[;, ]label\.([A-Za-z0-9_.-]{1,64})=([^;, ]*)$")
#: With what follows the UUID in the group ids that Spark generates: the hash of a path, which may be negative.
_UUID: Final = re.compile(
    r"(?<![0-9A-Za-z])(?:[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}|[0-9A-Fa-f]{32})(?![0-9A-Za-z])"
    r"(?:--?[0-9]+(?=-|$))?"
)
#: Spark's consumers, on the driver and on executors: the end of the group id, and the consumer's number.
_SPARK: Final = re.compile(r"(?<=\*-)(driver|executor)(?:-[0-9]+){1,2}$")
#: Threads of Kafka Streams.
_THREAD: Final = re.compile(r"(?<=-StreamThread-)[0-9]+(?=-|$)")
#: Names that clients of Java, kafka-python and aiokafka generate. The group id of a consumer is its user's.
_NUMBERED: Final = re.compile(
    r"^((?:aiokafka-|kafka-python-)?(?:producer|consumer|adminclient|admin|share-consumer)|consumer-.+|share-consumer-.+)"
    r"-[0-9]+$"
)


def split_labels(client_id: str) -> tuple[str, Labels]:
    """The client id without its suffixes `;label.NAME=VALUE`, and the labels. If a name is repeated, the last value
    wins.

    The separator is a semicolon, a comma or a space. At most `MAX_LABELS`, from the end.
    """
    labels: dict[str, str] = {}
    for _ in range(MAX_LABELS):
        found = _LABEL.search(client_id)
        if found is None:
            break
        labels.setdefault(found[1], found[2])
        client_id = client_id[: found.start()]
    return client_id, tuple(sorted(labels.items()))


def normalised(client_id: str) -> str:
    """The client id with `*` for generated UUIDs and counters. Applying it again changes nothing."""
    client_id = _THREAD.sub("*", _UUID.sub("*", client_id))
    client_id, count = _SPARK.subn(r"\1-*", client_id)
    return client_id if count else _NUMBERED.sub(r"\1-*", client_id)


def identity_of(client_id: str, stamped: Labels) -> tuple[str, Labels]:
    """The client id and labels of usage records. The `stamped` labels of the process win over those of the client."""
    name, own = split_labels(client_id)
    if not own:
        return normalised(name), stamped
    names = dict(stamped)
    rest = [label for label in own if label[0] not in names][: MAX_LABELS - len(stamped)]
    return normalised(name), tuple(sorted((*stamped, *rest)))
