"""What holds a client up: a verdict on each, from the rows of the last minute's pages. Pure functions.

`explain` puts the verdict into words.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

Row = Mapping[str, Any]

#: A client that spends a smaller share of its time at a limit is held up by something else, unless the limit is used
#: up.
LEAST_HELD: Final = 0.1
_USED_UP: Final = 0.85
#: If a client spends a smaller share of its time at brokers, a slow broker does not hold it up.
_LEAST_AT_BROKER: Final = 0.25
#: A broker is slow if it answers later than the first, or has not answered at all for the second.
_SLOW_SECONDS: Final = 0.1
_SILENT_SECONDS: Final = 2.0
#: The cost of requests below this size depends on their number rather than on their bytes.
_SMALL_BYTES: Final = 4_096
_SMALL_PER_SECOND: Final = 2.0
#: Above this rate there are too many small requests; below it, if they wait for brokers for `_LEAST_AT_BROKER` of the
#: time.
_MANY_PER_SECOND: Final = 50.0
#: A broker that spends less than this on each request is not slow, however many requests are waiting.
_QUICK_SECONDS: Final = 0.01
#: A group that rebalances this often in a minute does little else.
_OFTEN: Final = 3


class Known:
    """What is known beside the client itself.

    names          clients that were seen
    unmatched      quota entries that no client has matched
    enforces       False in a dry run
    late_seconds   how late the event loop is, if that is too much; otherwise 0
    holder         the client with the most buffered bytes
    """

    def __init__(
        self,
        limits: Iterable[Row],
        brokers: Iterable[Row],
        names: Sequence[str],
        unmatched: Sequence[str],
        *,
        enforces: bool = True,
        late_seconds: float = 0,
        holder: Row | None = None,
    ) -> None:
        self.limits = {(each["limit"], each["entity"]): each for each in limits}
        self.brokers = {each["address"]: each for each in brokers}
        self.names, self.unmatched, self.enforces = names, unmatched, enforces
        self.late_seconds, self.holder = late_seconds, holder


class Case:
    """One client, with its limits and brokers."""

    def __init__(self, client: Row, known: Known) -> None:
        self.client, self.known = client, known
        self.waits = client["waits"]
        keys = [(each["limit"], each["entity"]) for each in self.waits] + [tuple(each) for each in client["limits"]]
        self.limits = [known.limits[key] for key in dict.fromkeys(keys) if key in known.limits]
        # A client that has closed its connections may have waited for any broker.
        addresses = client["brokers"] or known.brokers
        self.brokers = [known.brokers[each] for each in addresses if each in known.brokers]
        self.others = [each for each in known.brokers.values() if each not in self.brokers]
        self.states = self.decisive = _shares(client["states"], client["unused_ratio"])
        self.recent = _shares(client["recent_states"], client["recent_unused_ratio"])
        #: A state, or `none` if nothing is wrong. It is based on the last minute, without states that have ended since.
        self.verdict = self._verdict()
        if self.over:
            self.decisive = self.recent
            self.verdict = self._verdict()

    def share(self, state: str) -> float:
        found: float = self.decisive.get(state, 0.0)
        return found

    @property
    def slow(self) -> Row | None:
        """The slowest of its brokers, if one is slow for it."""
        if self.is_answered_quickly:
            return None
        slow = [each for each in self.brokers if self.latency(each) >= _SLOW_SECONDS or answers_none(each)]
        return max(slow, key=lambda each: (answers_none(each), self.latency(each)), default=None)

    @property
    def is_at_limit(self) -> bool:
        """Whether it waits for a limit that is used up."""
        used = max((each["used_ratio_60s"] or 0 for each in self.limits), default=0)
        return self.share("limit") >= LEAST_HELD and used >= _USED_UP

    @property
    def is_at_brokers(self) -> bool:
        """Whether a slow broker holds it up, or a failing broker has cut it off."""
        slow = self.slow
        is_cut_off = slow is not None and bool(slow["failing"]) and not self.client["connections"]
        return is_cut_off or (slow is not None and self.share("broker") >= _LEAST_AT_BROKER)

    def latency(self, broker: Row) -> float:
        """The median in seconds for the kind of request that this client sends, if the broker received any of that
        kind.
        """
        kinds = ("produce", "others") if self.client["produces_per_second"] else ("others", "produce")
        seconds: float = next((broker[kind]["p50_seconds"] for kind in kinds if broker[kind]["count"]), 0.0)
        return seconds

    @property
    def has_small_requests(self) -> bool:
        """Whether it sends so many small requests that their number costs time."""
        produces: float = self.client["produces_per_second"]
        is_busy = produces >= _MANY_PER_SECOND or self.share("broker") >= _LEAST_AT_BROKER
        return produces >= _SMALL_PER_SECOND and is_busy and bool(self.client["bytes_per_request"] < _SMALL_BYTES)

    @property
    def is_answered_quickly(self) -> bool:
        """By Little's law, the time that each request takes is the number of requests that brokers work on, divided by
        their rate. A broker works on one request of a connection at a time, however many the client has in flight.
        """
        at_brokers = max(min(self.client["in_flight"], self.client["connections"]), self.share("broker"))
        return bool(at_brokers < _QUICK_SECONDS * self.client["requests_per_second"])

    def waited(self, name: str) -> float:
        """How many seconds of the last minute, over all its connections, it waited for a limit or a bound of the
        proxy.
        """
        seconds: float = sum(each["seconds"] for each in self.waits if each["limit"] == name)
        return seconds

    @property
    def has_too_many_requests(self) -> bool:
        """Whether it has more requests in flight than `--max-pending-requests` lets through."""
        waited, connections = self.waited("max_pending_requests"), max(1, self.client["connections"])
        return bool(waited >= LEAST_HELD * self.client["window_seconds"] * connections)

    @property
    def throttled_seconds(self) -> float:
        """The sum of the throttle times that brokers gave it in the span that decides the verdict."""
        seconds: float = self.client.get(f"broker_throttled_{'60s' if self.decisive is self.states else '10s'}", 0)
        return seconds

    @property
    def rebalancing(self) -> Row | None:
        """The one of its groups that rebalances most, if that is too often."""
        groups = [each for each in self.client.get("groups", ()) if each["rebalances_60s"] >= _OFTEN]
        return max(groups, key=lambda each: each["rebalances_60s"], default=None)

    @property
    def is_behind(self) -> bool:
        """Whether a consumer has not read all records."""
        return bool(self.client["fetch_bytes_per_second"] and self.client.get("lag_records"))

    @property
    def over(self) -> list[str]:
        """The states that took up much of the minute but hardly any time lately."""
        held = ("limit", "broker", "broker_quota", "proxy", "slow_reader")
        states = [each for each in held if self.states.get(each, 0) >= _LEAST_AT_BROKER] if self.recent else []
        return [each for each in states if self.recent.get(each, 0) < LEAST_HELD]

    def _verdict(self) -> str:
        if not self.states:
            return "none"
        largest: str = max(self.decisive, key=self.share)
        is_throttled = self.share("broker_quota") >= LEAST_HELD
        if largest == "limit" or (self.is_at_limit and self.share("limit") >= self.share("broker_quota")):
            return "limit"
        if largest in {"broker", "client"} and self.is_at_brokers:
            return "broker"
        if largest in {"broker", "client", "data"} and is_throttled:
            return "broker_quota"
        verdict = self._other(largest)
        return "broker_quota" if verdict == "none" and self.throttled_seconds else verdict

    def _other(self, largest: str) -> str:
        """The verdict if neither a limit nor a broker quota holds the client."""
        # No response arrives, or even records that exist arrive late.
        is_late = is_silent(self.client) or (largest == "data" and self.slow is not None)
        if largest in {"broker", "client", "data"} and is_late:
            return "broker"
        if largest == "data":
            return "client" if self.rebalancing is not None else "data"
        if largest != "broker":
            return largest
        return "client" if self.has_small_requests or self.has_too_many_requests else "none"


def is_silent(row: Row) -> bool:
    """Whether a broker, or one of the brokers of a client, has not answered a request for long."""
    return bool(row["oldest_request_seconds"] >= _SILENT_SECONDS)


def answers_none(broker: Row) -> bool:
    return bool(broker["failing"]) or is_silent(broker)


def _shares(states: Mapping[str, float], unused: float) -> dict[str, float]:
    """The share of each state. Idle connections are left out: clients keep one to a bootstrap server."""
    used = {**states, "client": states.get("client", 0) - unused}
    total = sum(share for share in used.values() if share > 0)
    return {name: share / total for name, share in used.items() if share > 0}
