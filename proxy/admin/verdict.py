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
#: Small requests that wait less than this at brokers are too many; the brokers are not too slow.
_QUICK_SECONDS: Final = 0.01


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
        if self.has_small_requests and self.is_answered_quickly:
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
        produces: float = self.client["produces_per_second"]
        return produces >= _SMALL_PER_SECOND and bool(self.client["bytes_per_request"] < _SMALL_BYTES)

    @property
    def is_answered_quickly(self) -> bool:
        """By Little's law: its requests at brokers, by their rate, are the time that each is there."""
        at_brokers = max(self.client["in_flight"], self.share("broker"))
        return bool(at_brokers < _QUICK_SECONDS * self.client["requests_per_second"])

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
        if largest == "limit" or self.is_at_limit:
            return "limit"
        if largest in {"broker", "client"} and self.is_at_brokers:
            return "broker"
        # Nothing comes, or records that are there come late, too.
        is_late = is_silent(self.client) or (largest == "data" and self.slow is not None)
        if largest in {"broker", "client", "data"} and is_late:
            return "broker"
        if largest != "broker":
            return largest
        return "client" if self.has_small_requests else "none"


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
