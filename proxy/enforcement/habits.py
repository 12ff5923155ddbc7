"""What is known of clients by the software that they name: after which error they send a refused batch again, in order,
and which throttle times they must not be sent.
"""

import re
from typing import Final, NamedTuple

from protocol.api_versions import ClientSoftware
from protocol.produce_refusals import NOT_ENOUGH_REPLICAS, THROTTLING_QUOTA_EXCEEDED
from proxy.enforcement.identity import LEAST_LOGGED_NS, NEVER_NOTIFIED_NS

_JAVA: Final = "apache-kafka-java"


class Habits(NamedTuple):
    """What one client does, in these versions and later ones.

    name             of the software; one that ends with `-` is a prefix
    since            the first version, major and minor
    refusal_error    the error code that it retries in order, without a new look-up of metadata. 0: none is known, so
                     its requests are held
    least_notice_ns  the shortest wait that it is notified of in mode `auto`; 0: of each
    """

    name: str
    since: tuple[int, int]
    refusal_error: int
    least_notice_ns: int


#: The first row that fits applies. Clients that ignore throttle times (librdkafka #5592, aiokafka, kafka-go) and those
#: that wait for them (kgo, Sarama since #2536, kafkajs, kafka-python since #2510) need no row for that: either way the
#: limit holds. Empty Fetch responses, which broke Sarama (#1383), are the brokers' own; the proxy sends none.
_KNOWN: Final = (
    # Logs each throttle time as a warning (KAFKA-19117).
    Habits(_JAVA, (4, 4), THROTTLING_QUOTA_EXCEEDED, LEAST_LOGGED_NS),
    Habits(_JAVA, (2, 7), THROTTLING_QUOTA_EXCEEDED, 0),
    Habits(_JAVA, (0, 0), NOT_ENOUGH_REPLICAS, 0),
    Habits("librdkafka", (0, 0), NOT_ENOUGH_REPLICAS, 0),
    Habits("confluent-kafka-", (0, 0), NOT_ENOUGH_REPLICAS, 0),
    Habits("kgo", (0, 0), NOT_ENOUGH_REPLICAS, 0),
    # Drops each response with a throttle time, waits, and sends the same request again, which is throttled again
    # (`maybe_throttle` in src/throttle.rs; written for #182).
    Habits("rskafka", (0, 0), 0, NEVER_NOTIFIED_NS),
)
_UNKNOWN: Final = Habits("", (0, 0), 0, 0)
_version_of = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})", re.ASCII).match


def habits_of(software: ClientSoftware) -> Habits:
    """The row of a client; a version that cannot be read is older than all."""
    found = _version_of(software.version)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    for each in _KNOWN:
        is_named = software.name.startswith(each.name) if each.name[-1] == "-" else software.name == each.name
        if is_named and version >= each.since:
            return each
    return _UNKNOWN
