"""What is known of clients by the software that they name: after which error they send a refused batch again, in order,
and which of their waits they log.
"""

import re
from typing import Final

from protocol.api_versions import ClientSoftware
from protocol.produce_refusals import NOT_ENOUGH_REPLICAS, THROTTLING_QUOTA_EXCEEDED
from proxy.enforcement.identity import LEAST_LOGGED_NS

_JAVA: Final = "apache-kafka-java"
_FIRST_JAVA_WITH_89: Final = (2, 7)
_FIRST_JAVA_THAT_LOGS: Final = (4, 4)
_version_of = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})", re.ASCII).match


def _is_java_since(software: ClientSoftware, first: tuple[int, int]) -> bool:
    found = _version_of(software.version) if software.name == _JAVA else None
    return found is not None and (int(found[1]), int(found[2])) >= first


def refusal_error(software: ClientSoftware) -> int:
    """The error code for partitions of this client: one that it retries in order, without a new look-up of metadata. 0:
    none is known, so its requests are held.
    """
    name = software.name
    if name == _JAVA:
        return THROTTLING_QUOTA_EXCEEDED if _is_java_since(software, _FIRST_JAVA_WITH_89) else NOT_ENOUGH_REPLICAS
    if name in {"librdkafka", "kgo"} or name.startswith("confluent-kafka-"):
        return NOT_ENOUGH_REPLICAS
    return 0


def least_notice_ns(software: ClientSoftware) -> int:
    """The shortest wait that this client is told of in mode `auto`; 0: of each. Java since 4.4 logs each as a warning
    (KAFKA-19117).
    """
    return LEAST_LOGGED_NS if _is_java_since(software, _FIRST_JAVA_THAT_LOGS) else 0
