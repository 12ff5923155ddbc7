"""What each limit did to each client since usage records read it: kept only while they are written, and bounded."""

from collections.abc import Iterator
from dataclasses import dataclass

from proxy.observability.labels import OTHER, entity_label, label_value
from quotas.admission.limit import Limit


@dataclass(slots=True, eq=False)
class ThrottleTally:
    """Of one (user, client id, limit, entity).

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

    def taken(self) -> Iterator[ThrottleTally]:
        """Each of them, which is no longer kept here. Events between two of them may begin it anew."""
        for key in list(self._tallies):
            yield self._tallies.pop(key)
