"""What each limit did to each client: cumulative counters, kept only while usage records are written, and bounded.

Each reader keeps the counts that it saw last, so any number of them may read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from proxy.observability.labels import OTHER, entity_label, label_value
from quotas.admission.limit import Limit

EXPIRED_AT_ONCE: Final = 1_000
"""Tallies that one call of `expire` looks at: less than 1 ms."""


@dataclass(slots=True, eq=False)
class ThrottleTally:
    """Of one (user, client id, limit, entity). The counts only grow.

    limit         the latest limit of this name and entity; None: a limit on connections, or several limits
    limit_value   its units per second when it throttled last; None: of several
    """

    user: str
    client_id: str
    limit_name: str
    entity: str
    throttled_ns: int = 0
    delayed_bytes: int = 0
    refused_bytes: int = 0
    would_have_bytes: int = 0
    limit: Limit | None = None
    limit_value: int | float | None = None
    _seen: tuple[int, ...] = ()
    _changed_at_ns: int = 0

    @property
    def counts(self) -> tuple[int, int, int, int]:
        return self.throttled_ns, self.delayed_bytes, self.refused_bytes, self.would_have_bytes

    def idle_ns(self, now_ns: int) -> int:
        """Time since a call of this method first saw the present counts."""
        seen = self.counts
        if seen != self._seen:
            self._seen = seen
            self._changed_at_ns = now_ns
        return now_ns - self._changed_at_ns


class ThrottleTallies:
    """Callers look a tally up for each event and keep none. After `max_tallies`, further ones are one for each limit
    name, with `other` as user, client id and entity.
    """

    def __init__(self, max_tallies: int) -> None:
        self._max_tallies = max_tallies
        self._tallies: dict[tuple[str, str, str, str], ThrottleTally] = {}

    def of_limit(self, user: str, client_id: str, limit: Limit) -> ThrottleTally:
        tally = self.of(user, client_id, limit.name, limit.entity, limit.rate)
        tally.limit = None if tally.entity == OTHER else limit
        return tally

    def of(self, user: str, client_id: str, limit_name: str, entity: object, limit_value: int | float) -> ThrottleTally:
        """The tally of a limit that is known by name and entity."""
        key = (label_value(user), label_value(client_id), limit_name, entity_label(entity))
        tally = self._tallies.get(key)
        if tally is None:
            if len(self._tallies) >= self._max_tallies:
                key = (OTHER, OTHER, limit_name, OTHER)
            tally = self._tallies.setdefault(key, ThrottleTally(*key))
        tally.limit_value = None if tally.entity == OTHER else limit_value
        return tally

    def expire(self, now_ns: int, idle_ns: int) -> None:
        """Of some of them, in turns, forget those that counted nothing for `idle_ns`."""
        for key in list(islice(self._tallies, EXPIRED_AT_ONCE)):
            tally = self._tallies.pop(key)
            if tally.idle_ns(now_ns) < idle_ns:
                self._tallies[key] = tally  # as the last one

    def __iter__(self) -> Iterator[ThrottleTally]:
        return iter(list(self._tallies.values()))
