"""Which clients send a refused batch again, in order, and after which error: by the software that they name."""

import re
from typing import Final

from protocol.api_versions import ClientSoftware
from protocol.produce_refusals import NOT_ENOUGH_REPLICAS, THROTTLING_QUOTA_EXCEEDED

_JAVA: Final = "apache-kafka-java"
_FIRST_JAVA_WITH_89: Final = (2, 7)
_version_of = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})", re.ASCII).match


def refusal_error(software: ClientSoftware) -> int:
    """The error code for partitions of this client: one that it retries in order, without a new look-up of metadata. 0:
    none is known, so its requests are held.
    """
    name = software.name
    if name == _JAVA:
        found = _version_of(software.version)
        is_new = found is not None and (int(found[1]), int(found[2])) >= _FIRST_JAVA_WITH_89
        return THROTTLING_QUOTA_EXCEEDED if is_new else NOT_ENOUGH_REPLICAS
    if name in {"librdkafka", "kgo"} or name.startswith("confluent-kafka-"):
        return NOT_ENOUGH_REPLICAS
    return 0
