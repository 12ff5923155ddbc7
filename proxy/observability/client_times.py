"""Where the time of the connections of one client went: cumulative, with the limits of the last minute.

A connection is in one state at a time, and nanoseconds are added up when that ends (`proxy.streams.observer`).

| state          | meaning                                                                                          |
|----------------|--------------------------------------------------------------------------------------------------|
| `limit`        | a frame waits for a limit, its response is delayed for one, or the client keeps a notice          |
| `broker`       | a request waits for the broker's response, or the broker does not take the client's bytes         |
| `data`         | only long polls are open: the client waits for new records, or for other members of its group     |
| `broker_quota` | the broker has muted the connection for a quota of its own, and nothing else holds the client     |
| `proxy`        | it is not read for the proxy's memory, or while the proxy logs in                                 |
| `slow_reader`  | the client does not take its responses                                                           |
| `client`       | nothing is in flight: the client does something else, or sends the rest of a request              |
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from proxy.observability.labels import OTHER, entity_label
from quotas.admission.limit import Limit

LIMIT, BROKER, DATA, BROKER_QUOTA, PROXY, SLOW_READER, CLIENT = range(7)
STATES: Final = ("limit", "broker", "data", "broker_quota", "proxy", "slow_reader", "client")

MAX_LIMITS: Final = 32
"""Limits whose times are kept apart: each topic of a client may have one."""

Key = tuple[str, object]
"""A limit by name and entity."""

LimitTimes = dict[tuple[str, str], int]
"""Nanoseconds by limit and entity."""


def key_of(limit: Limit | None) -> Key | None:
    return None if limit is None else (limit.name, limit.entity)


@dataclass(slots=True, eq=False)
class ClientTimes:
    """The counters only grow, but for `limits_ns`.

    spent_ns                   by `STATES`
    unused_ns                  of connections that did nothing for a second: a part of `client`
    broker_throttled_seconds   throttle times that responses of brokers contained
    limits_ns                  of `limit` since the latest snapshot; `before`: between snapshots of the last minute
    lasting                    in how many intervals between snapshots, one after the other, each limit was waited for
    """

    spent_ns: list[int] = field(default_factory=lambda: [0] * len(STATES))
    unused_ns: int = 0
    broker_throttled_seconds: float = 0
    limits_ns: LimitTimes = field(default_factory=dict)
    before: deque[LimitTimes] = field(default_factory=lambda: deque(maxlen=6))
    lasting: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, spent_ns: Sequence[int], limits_ns: Mapping[Key, int]) -> None:
        """Add where a connection's time went in about the last second."""
        if spent_ns[CLIENT] == sum(spent_ns):
            self.unused_ns += spent_ns[CLIENT]
        self.spent_ns = [before + more for before, more in zip(self.spent_ns, spent_ns, strict=True)]
        for (name, entity), more in limits_ns.items():
            key = (name, entity_label(entity))
            if key not in self.limits_ns and len(self.limits_ns) >= MAX_LIMITS:
                key = (name, OTHER)
            self.limits_ns[key] = self.limits_ns.get(key, 0) + more

    def on_snapshot(self) -> None:
        """Ten seconds have passed."""
        self.lasting = {key: self.lasting.get(key, 0) + 1 for key in self.limits_ns}
        self.before.append(self.limits_ns)
        self.limits_ns = {}

    def limits_of_last_minute(self) -> LimitTimes:
        found: LimitTimes = {}
        for each in (*self.before, self.limits_ns):
            for key, spent_ns in each.items():
                found[key] = found.get(key, 0) + spent_ns
        return found
