"""The traffic of each client by topic: record bytes, and the messages of those that are produced.

Only with `--usage-by-topic`. The number of series (a client and a topic) is bounded for each client and for the
process: further topics of a client are counted together, as `other`. A series ends with the counters of its client.
"""

from typing import Final

from proxy.observability.tallies import Cell, TopicTraffic

OTHER_TOPICS: Final = "other"
"""Topics without a series of their own, and those whose id is not known."""

MAX_SERIES: Final = 50_000
"""Series of the process, without those of `OTHER_TOPICS`: 15 MB of memory, 300 bytes for each."""

MAX_TOPICS_OF_CLIENT: Final = 1_000
"""Series of one client: names of topics come from requests, and may be invented."""

MAX_NAME: Final = 249
"""Longest name of a topic that a broker accepts (`Topic.MAX_NAME_LENGTH`)."""


class TrafficByTopic(dict[str, TopicTraffic]):
    """The traffic of one client, by topic. `traffic[name]` adds a topic that is new.

    `series`: their number in the process. `Entities.expire` sets it anew.
    """

    __slots__ = ("_series",)

    def __init__(self, series: Cell) -> None:
        self._series = series

    def __missing__(self, topic: str) -> TopicTraffic:
        if topic != OTHER_TOPICS:
            series = self._series
            if len(topic) > MAX_NAME or len(self) >= MAX_TOPICS_OF_CLIENT or series.value >= MAX_SERIES:
                return self[OTHER_TOPICS]
            series.value += 1
        found = self[topic] = TopicTraffic()
        return found
