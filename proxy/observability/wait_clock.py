"""Where the time of a connection goes: it is in one state at a time, and nanoseconds are added up when that ends.

| state          | meaning                                                                                          |
|----------------|--------------------------------------------------------------------------------------------------|
| `limit`        | a frame waits for a limit, its response is delayed for one, or the client keeps a notice          |
| `broker`       | a request waits for the broker's response, or the broker does not take the client's bytes         |
| `data`         | only long polls are open: the client waits for new records, or for other members of its group     |
| `broker_quota` | the client keeps a throttle time that the broker gave it                                          |
| `proxy`        | it is not read for the proxy's memory, or while the proxy logs in                                 |
| `slow_reader`  | the client does not take its responses                                                           |
| `client`       | nothing is in flight: the client does something else, or sends the rest of a request              |

Requests and responses that pass change no state themselves, since that would cost time for each of them: the first
request after a time with nothing in flight tells how long the requests before it took (`begin`), and so does a look
once a second (`turn`). So a pipeline that never runs dry costs nothing at all.
"""

from typing import Final, final

from quotas.admission.limit import Limit

LIMIT, BROKER, DATA, BROKER_QUOTA, PROXY, SLOW_READER, CLIENT = range(7)
STATES: Final = ("limit", "broker", "data", "broker_quota", "proxy", "slow_reader", "client")

Key = tuple[str, object]
"""A limit by name and entity."""


def key_of(limit: Limit | None) -> Key | None:
    return None if limit is None else (limit.name, limit.entity)


@final
class WaitClock:
    """Of one connection.

    spent_ns    by state, since the last `take`
    limits_ns   the same of `limit`, by limit
    since_ns    when the present state began; `stands`: it lasts until `turn`, whatever passes
    """

    __slots__ = ("_key", "_state", "_told", "_told_key", "_told_ns", "limits_ns", "since_ns", "spent_ns", "stands")

    def __init__(self, now_ns: int) -> None:
        self.spent_ns = [0] * len(STATES)
        self.limits_ns: dict[Key, int] = {}
        self.since_ns = now_ns
        self.stands = False
        self._state = CLIENT
        self._key: Key | None = None
        #: The state of a client that keeps a throttle time, the limit that it is for, and when that ends.
        self._told = LIMIT
        self._told_key: Key | None = None
        self._told_ns = 0

    def begin(self, state: int, now_ns: int, ended_ns: int) -> None:
        """A request passes and nothing else is in flight: `state` is `BROKER` or `DATA`. `ended_ns`: the last response
        had passed by then.
        """
        if self.stands:
            return
        if ended_ns > self.since_ns:
            self._count_until(ended_ns)
        since_ns = self.since_ns
        if self._told_ns > since_ns:
            since_ns = self._count_told(since_ns, now_ns)
        self.spent_ns[CLIENT] += now_ns - since_ns
        self._state, self.since_ns = state, now_ns

    def sent(self, now_ns: int) -> None:
        """So far the client was sending the only request in flight."""
        if not self.stands:
            self.spent_ns[CLIENT] += now_ns - self.since_ns
            self.since_ns = now_ns

    def told(self, state: int, key: Key | None, now_ns: int, until_ns: int) -> None:
        """A response contains a throttle time until then: the client does not send before, if nothing is in flight. Of
        a client above its own quota a broker reads no further request before (KIP-219): those in flight wait, too.
        """
        if state == BROKER_QUOTA and not self.stands:
            self._count_until(now_ns)
        if until_ns > self._told_ns:
            self._told, self._told_key, self._told_ns = state, key, until_ns

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
        """The present state lasted until then; with requests in flight, the broker's quota comes first."""
        if self._told == BROKER_QUOTA and self._state == BROKER and not self.stands and self._told_ns > self.since_ns:
            self.since_ns = self._count_told(self.since_ns, now_ns)
        self._count(self._state, self._key, now_ns - self.since_ns)
        self.since_ns = now_ns

    def _count(self, state: int, key: Key | None, spent_ns: int) -> None:
        self.spent_ns[state] += spent_ns
        if state == LIMIT and key is not None:
            self.limits_ns[key] = self.limits_ns.get(key, 0) + spent_ns

    def _count_told(self, since_ns: int, now_ns: int) -> int:
        """The client kept a throttle time from `since_ns` on. Returns until when."""
        until_ns = min(self._told_ns, now_ns)
        self._count(self._told, self._told_key, until_ns - since_ns)
        return until_ns
