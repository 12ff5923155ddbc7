"""Where the time of a connection goes: it is in one state at a time, and nanoseconds are added up when that ends.

| state          | meaning                                                                                          |
|----------------|--------------------------------------------------------------------------------------------------|
| `limit`        | a frame waits for a limit, its response is delayed for one, or the client keeps a notice          |
| `broker`       | a request waits for the broker's response, or the broker does not take the client's bytes         |
| `data`         | only long polls are open: the client waits for new records, or for other members of its group     |
| `broker_quota` | the broker has muted the connection for a quota of its own, and nothing else holds the client     |
| `proxy`        | it is not read for the proxy's memory, or while the proxy logs in                                 |
| `slow_reader`  | the client does not take its responses                                                           |
| `client`       | nothing is in flight: the client does something else, or sends the rest of a request              |

Requests and responses that pass change no state themselves, since that would cost time for each of them: the first
request after a time with nothing in flight tells how long the requests before it took (`begin`), and so does a look
once a second (`turn`). So a pipeline that never runs dry costs nothing at all.

A throttle time in a response is an event with an end, whatever state the connection is in then, or later. One of the
broker means that the broker reads nothing of this connection until then (KIP-219). So time that would otherwise count
as `broker`, `data` or `client` is `broker_quota` up to that end, also for a client that goes on sending: its requests,
and the socket that fills with them, wait for nothing else.
"""

from typing import Final, final

from quotas.admission.limit import Limit

LIMIT, BROKER, DATA, BROKER_QUOTA, PROXY, SLOW_READER, CLIENT = range(7)
#: In these a connection that the broker has muted waits for the end of that.
_MUTED: Final = frozenset({BROKER, DATA})
STATES: Final = ("limit", "broker", "data", "broker_quota", "proxy", "slow_reader", "client")

Key = tuple[str, object]
"""A limit by name and entity."""


def key_of(limit: Limit | None) -> Key | None:
    return None if limit is None else (limit.name, limit.entity)


@final
class WaitClock:
    """Of one connection.

    spent_ns    by state, since the last `take`
    limits_ns   what was waited for by name: limits, and bounds of the proxy
    since_ns    when the present state began; `stands`: it lasts until `turn`, whatever passes
    """

    __slots__ = ("_by", "_key", "_muted", "_state", "_told", "_told_ns", "limits_ns", "since_ns", "spent_ns", "stands")

    def __init__(self, now_ns: int) -> None:
        self.spent_ns = [0] * len(STATES)
        self.limits_ns: dict[Key, int] = {}
        self.since_ns = now_ns
        self.stands = False
        self._state = CLIENT
        self._key: Key | None = None
        #: The state of a client that keeps a throttle time of the proxy, the limit that it is for, and when that ends.
        self._told = LIMIT
        self._by: Key | None = None
        self._told_ns = 0
        #: Until when the broker reads nothing of this connection.
        self._muted = 0

    def begin(self, state: int, now_ns: int, ended_ns: int) -> None:
        """A request passes and nothing else is in flight: `state` is `BROKER` or `DATA`. `ended_ns`: the last response
        had passed by then.
        """
        if self.stands:
            return
        if ended_ns > self.since_ns:
            self._count_until(ended_ns)
        since_ns = self.since_ns
        if self._muted > since_ns and self._muted >= self._told_ns:
            since_ns = self._count_muted(since_ns, now_ns)
        elif self._told_ns > since_ns:
            since_ns = min(self._told_ns, now_ns)
            self._count(self._told, self._by, since_ns - self.since_ns)
        self.spent_ns[CLIENT] += now_ns - since_ns
        self._state, self.since_ns = state, now_ns

    def sent(self, now_ns: int) -> None:
        """So far the client was sending the only request in flight."""
        if not self.stands:
            self.spent_ns[CLIENT] += now_ns - self.since_ns
            self.since_ns = now_ns

    def told(self, state: int, key: Key | None, until_ns: int) -> None:
        """A response contains a throttle time of the proxy: the client sends nothing until then."""
        if until_ns > self._told_ns:
            self._told, self._by, self._told_ns = state, key, until_ns

    def muted(self, now_ns: int, until_ns: int) -> None:
        """A response contains a throttle time of the broker, which reads nothing of this connection until then."""
        self._count_until(now_ns)
        self._muted = max(self._muted, until_ns)

    def turn(self, state: int, now_ns: int, ended_ns: int, key: Key | None = None, *, stands: bool = False) -> None:
        """The state from now on. `ended_ns`: when the last response had passed; 0: something is in flight. `key`: the
        limit. `stands`: it lasts until the next call.
        """
        if self.stands or not ended_ns:
            self._count_until(now_ns)
        else:
            self.begin(CLIENT, now_ns, ended_ns)
        self._state, self._key, self.stands = state, key, stands

    def take(self) -> tuple[list[int], dict[Key, int]]:
        """What was counted so far, and count anew."""
        spent, self.spent_ns = self.spent_ns, [0] * len(STATES)
        limits, self.limits_ns = self.limits_ns, {}
        return spent, limits

    def _count_until(self, now_ns: int) -> None:
        """The present state lasted until then; what waits for the broker waits for the broker's quota first."""
        since_ns = self.since_ns
        if self._muted > since_ns and self._state in _MUTED:
            since_ns = self._count_muted(since_ns, now_ns)
        self._count(self._state, self._key, now_ns - since_ns)
        self.since_ns = now_ns

    def _count(self, state: int, key: Key | None, spent_ns: int) -> None:
        self.spent_ns[state] += spent_ns
        if key is not None and spent_ns:
            self.limits_ns[key] = self.limits_ns.get(key, 0) + spent_ns

    def _count_muted(self, since_ns: int, now_ns: int) -> int:
        """The broker has muted the connection since `since_ns`. Returns until when."""
        until_ns = min(self._muted, now_ns)
        self.spent_ns[BROKER_QUOTA] += until_ns - since_ns
        return until_ns
