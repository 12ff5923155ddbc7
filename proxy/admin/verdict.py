"""What holds a client up: a verdict on each, from the rows of the last minute's pages. Pure.

`explain` says it in words.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

Row = Mapping[str, Any]

#: With less of its time at its limit a client is held up by something else, if that limit is not used up.
LEAST_HELD: Final = 0.1
_USED_UP: Final = 0.85
#: With less of its time at brokers a slow one holds nobody up.
_LEAST_AT_BROKER: Final = 0.25
#: A broker that answers later than this, or not at all for so long, is slow.
_SLOW_SECONDS: Final = 0.1
_SILENT_SECONDS: Final = 2.0
#: Requests below this size cost more by their number than by their bytes.
_SMALL_BYTES: Final = 4_096
_SMALL_PER_SECOND: Final = 2.0
#: Small requests are too many from here on, or if they wait for brokers for `_LEAST_AT_BROKER` of the time.
_MANY_PER_SECOND: Final = 50.0
#: A broker that spends less than this on each request is not slow, however many wait for it.
_QUICK_SECONDS: Final = 0.01
#: A group that rebalances so often in a minute does little else.
_OFTEN: Final = 3


class Known:
    """What all clients have in common.

    names, unmatched   of clients that were seen; entries of the quotas that none has matched
    enforces           this is no dry run
    late_seconds       how late the event loop is, if that is too much; else 0
    holder             the client with the most buffered bytes
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
        # Of a client that has closed its connections any broker may be the one that it waited for.
        addresses = client["brokers"] or known.brokers
        self.brokers = [known.brokers[each] for each in addresses if each in known.brokers]
        self.others = [each for each in known.brokers.values() if each not in self.brokers]
        self.states = self.decisive = _parts(client["states"], client["unused_ratio"])
        self.recent = _parts(client["recent_states"], client["recent_unused_ratio"])
        #: A state, or `none`: nothing is wrong. By the last minute, but for what is over since.
        self.verdict = self._verdict()
        if self.over:
            self.decisive = self.recent
            self.verdict = self._verdict()

    def share(self, state: str) -> float:
        part: float = self.decisive.get(state, 0.0)
        return part

    @property
    def slow(self) -> Row | None:
        """The slowest of its brokers, if one is slow for it."""
        if self.is_answered_quickly:
            return None
        slow = [each for each in self.brokers if self.latency(each) >= _SLOW_SECONDS or answers_none(each)]
        return max(slow, key=lambda each: (answers_none(each), self.latency(each)), default=None)

    @property
    def is_at_limit(self) -> bool:
        """It waits for a limit that is used up."""
        used = max((each["used_ratio_60s"] or 0 for each in self.limits), default=0)
        return self.share("limit") >= LEAST_HELD and used >= _USED_UP

    @property
    def is_at_brokers(self) -> bool:
        """A slow broker holds it up, or one that fails has cut it off."""
        slow = self.slow
        is_cut_off = slow is not None and bool(slow["failing"]) and not self.client["connections"]
        return is_cut_off or (slow is not None and self.share("broker") >= _LEAST_AT_BROKER)

    def latency(self, broker: Row) -> float:
        """Seconds, of the kind of requests that this client sends, if the broker was sent any."""
        kinds = ("produce", "others") if self.client["produces_per_second"] else ("others", "produce")
        seconds: float = next((broker[kind]["p50_seconds"] for kind in kinds if broker[kind]["count"]), 0.0)
        return seconds

    @property
    def has_small_requests(self) -> bool:
        """So many of them that their number costs time."""
        produces: float = self.client["produces_per_second"]
        is_busy = produces >= _MANY_PER_SECOND or self.share("broker") >= _LEAST_AT_BROKER
        return produces >= _SMALL_PER_SECOND and is_busy and bool(self.client["bytes_per_request"] < _SMALL_BYTES)

    @property
    def is_answered_quickly(self) -> bool:
        """By Little's law: the requests that brokers work on, divided by their rate, are the time that each takes. A
        broker works on one request of a connection at a time, however many the client has in flight.
        """
        at_brokers = max(min(self.client["in_flight"], self.client["connections"]), self.share("broker"))
        return bool(at_brokers < _QUICK_SECONDS * self.client["requests_per_second"])

    def waited(self, name: str) -> float:
        """Seconds of the last minute, over all its connections, for a limit or a bound of the proxy."""
        seconds: float = sum(each["seconds"] for each in self.waits if each["limit"] == name)
        return seconds

    @property
    def has_too_many_requests(self) -> bool:
        """More in flight than `--max-pending-requests` lets pass."""
        waited, connections = self.waited("max_pending_requests"), max(1, self.client["connections"])
        return bool(waited >= LEAST_HELD * self.client["window_seconds"] * connections)

    @property
    def throttled_seconds(self) -> float:
        """Throttle times that brokers gave it in the time that decides."""
        seconds: float = self.client.get(f"broker_throttled_{'60s' if self.decisive is self.states else '10s'}", 0)
        return seconds

    @property
    def rebalancing(self) -> Row | None:
        """The group of it that rebalances most, if that is too often."""
        groups = [each for each in self.client.get("groups", ()) if each["rebalances_60s"] >= _OFTEN]
        return max(groups, key=lambda each: each["rebalances_60s"], default=None)

    @property
    def is_behind(self) -> bool:
        """A consumer has left records in its brokers."""
        return bool(self.client["fetch_bytes_per_second"] and self.client.get("lag_records"))

    @property
    def over(self) -> list[str]:
        """The states that took much of the minute, and nothing lately."""
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
        """Neither a limit nor a quota of the brokers."""
        # Nothing comes, or records that are there come late, too.
        is_late = is_silent(self.client) or (largest == "data" and self.slow is not None)
        if largest in {"broker", "client", "data"} and is_late:
            return "broker"
        if largest == "data":
            return "client" if self.rebalancing is not None else "data"
        if largest != "broker":
            return largest
        return "client" if self.has_small_requests or self.has_too_many_requests else "none"


def is_silent(row: Row) -> bool:
    """A broker, or the brokers of a client, has not answered a request for long."""
    return bool(row["oldest_request_seconds"] >= _SILENT_SECONDS)


def answers_none(broker: Row) -> bool:
    return bool(broker["failing"]) or is_silent(broker)


def _parts(states: Mapping[str, float], unused: float) -> dict[str, float]:
    """Of the whole. A connection that does nothing says nothing: clients keep one to a bootstrap server."""
    used = {**states, "client": states.get("client", 0) - unused}
    total = sum(part for part in used.values() if part > 0)
    return {name: part / total for name, part in used.items() if part > 0}
