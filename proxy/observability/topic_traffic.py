"""The traffic of each client by topic: record bytes, and the messages of those that are produced.

Only with `--usage-by-topic`. The number of series (a client and a topic) is bounded for each client and for the
process: further topics of a client are counted together, as `other`. A series ends with the counters of its client.
"""

from dataclasses import dataclass
from typing import Final

OTHER_TOPICS: Final = "other"
"""Topics without a series of their own, and those whose id is not known."""

MAX_SERIES: Final = 50_000
"""Series of the process, without those of `OTHER_TOPICS`: 15 MB of memory, 300 bytes for each."""

MAX_TOPICS_OF_CLIENT: Final = 1_000
"""Series of one client: names of topics come from requests, and may be invented."""

MAX_NAME: Final = 249
"""Longest name of a topic that a broker accepts (`Topic.MAX_NAME_LENGTH`)."""


@dataclass(slots=True, eq=False)
class TopicTraffic:
    """The counters of one client and topic. They only grow; the hot path increments them.

    produce_bytes      of records as they are in the log: compressed, with the headers of their batches
    produce_messages   records, as the headers of their batches count them
    fetch_bytes        the same bytes, of responses
    """

    produce_bytes: int = 0
    produce_messages: int = 0
    fetch_bytes: int = 0


@dataclass(slots=True, eq=False)
class SeriesCount:
    """The number of series of the process. `Entities.expire` sets it anew."""

    value: int = 0


class TrafficByTopic(dict[str, TopicTraffic]):
    """The traffic of one client, by topic. `traffic[name]` adds a topic that is new."""

    __slots__ = ("_series",)

    def __init__(self, series: SeriesCount) -> None:
        self._series = series

    def __missing__(self, topic: str) -> TopicTraffic:
        if topic != OTHER_TOPICS:
            series = self._series
            if len(topic) > MAX_NAME or len(self) >= MAX_TOPICS_OF_CLIENT or series.value >= MAX_SERIES:
                return self[OTHER_TOPICS]
            series.value += 1
        found = self[topic] = TopicTraffic()
        return found
