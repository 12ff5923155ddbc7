"""Resource groups that use what the clients leave that they yield to: once a second, each rate is decided and set.

`quotas.adaptive.yielding` decides, from what the observers of connections report to `BrokerTimes`. A rate is granted
for `LEASE_NS`, so the limit falls to its lower bound if this stops. In a fleet, each member advertises the rate that it
would allow as a fact about itself, the lowest one applies, and it scales the share of each member.
"""

from asyncio import AbstractEventLoop, TimerHandle
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from typing import Final

from proxy.background.host import Host
from proxy.fleet.fleet import Fleet
from proxy.fleet.shared_limits import key_of
from proxy.observability.logs import EventLog, RateLimited
from proxy.observability.metrics import MovingRate
from proxy.observability.response_times import BrokerTimes
from quotas.adaptive.yielding import USED, Cause, State, Terms, Yielding, advertised, agreed, evened_out
from quotas.admission.limit import Limit
from quotas.entity import EntityKind
from quotas.fleet.parameters import WHOLE
from quotas.limit_kinds import PRODUCER_BYTE_RATE
from quotas.limit_options import Yields
from quotas.registry.registry import Registry
from quotas.time_units import NS_PER_MS, NS_PER_SECOND

TICK_SECONDS: Final = 1.0
LEASE_NS: Final = 4 * NS_PER_SECOND
BURST_NS: Final = 100 * NS_PER_MS
"""The depth of the bucket, unless its entry has one: a burst of a second would be felt by the protected clients."""
USE_NS: Final = 3 * NS_PER_SECOND
"""Use is measured over this time, as large requests pass unevenly at low rates."""
LEARN_NS: Final = 20 * NS_PER_SECOND
"""By then a member that has joined a fleet has read the facts of all others, which they advertise every 15 s."""
SHOWN_NS: Final = 60 * NS_PER_SECOND
LOGGED_NS: Final = 30 * NS_PER_SECOND

_log = EventLog(__name__)


@dataclass(slots=True, eq=False)
class _Group:
    """A resource group that yields. `passed`: the bytes that had passed, at the times of the last decisions."""

    name: str
    yields: Yields
    rule: Yielding
    limit: Limit
    made_ns: int
    passed: deque[tuple[int, int]] = field(default_factory=deque)
    is_used: bool = False
    is_learning: bool = True
    #: The lowest rate that other members advertised last.
    lowest: float = 0
    applies: float = 0
    used_ns: int | None = None

    @property
    def fact(self) -> str:
        """The name of the fact that members of a fleet advertise."""
        return f"yield.{sha256(self.name.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


class YieldingGroups:
    """Runs from `start` to `close`."""

    def __init__(self, registry: Registry, brokers: BrokerTimes, host: Host, fleet: Fleet | None) -> None:
        self._registry: Final = registry
        self._brokers: Final = brokers
        self._clock: Final = host.clock
        self._fleet: Final = fleet
        self._groups: dict[str, _Group] = {}
        self._lines = RateLimited(LOGGED_NS)
        self._timer: TimerHandle | None = None

    def start(self, loop: AbstractEventLoop) -> None:
        self._timer = loop.call_later(TICK_SECONDS, self.start, loop)
        self.tick(self._clock())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def tick(self, now_ns: int) -> None:
        """Decide and set each rate."""
        yielding = self._registry.yielding
        for name in [each for each in self._groups if each not in yielding]:
            self._end(self._groups.pop(name))
        for name, yields in yielding.items():
            self._refresh(name, yields, now_ns)
        for group in self._groups.values():
            self._decide(group, now_ns)
        self._even_out()
        for group in self._groups.values():
            self._set(group, now_ns)

    def moving(self) -> Iterator[MovingRate]:
        """For pages and metrics."""
        now_ns = self._clock()
        for group in list(self._groups.values()):
            rule, cause = group.rule, group.rule.cause
            why = "" if cause is None or now_ns - cause.at_ns >= SHOWN_NS else _why(group, cause)
            yield MovingRate(
                group.limit,
                group.applies,
                rule.terms.least,
                rule.terms.most,
                group.yields.to,
                group.yields.is_observed,
                rule.state.value,
                why,
                rule.cuts,
                rule.exceeded,
            )

    # ---- inside

    def _refresh(self, name: str, yields: Yields, now_ns: int) -> None:
        """The group as it is configured now, with its rate so far."""
        registry = self._registry
        configured = registry.configured_value(PRODUCER_BYTE_RATE, EntityKind.RESOURCE_GROUP, name)
        limit = registry.place_limit(PRODUCER_BYTE_RATE, EntityKind.RESOURCE_GROUP, now_ns, name)
        if configured is None or limit is None:
            return
        share = registry.share
        terms = Terms(float(yields.least * share), float(configured.rate * share), yields.target_ns)
        group = self._groups.get(name)
        if group is None:
            rule = Yielding(terms, terms.least, now_ns)
            group = self._groups[name] = _Group(name, yields, rule, limit, now_ns)
        if group.limit is not limit:
            group.passed.clear()
        group.yields, group.limit, group.rule.terms = yields, limit, terms

    def _end(self, group: _Group) -> None:
        for times in self._brokers.values():
            times.signals.pop(group.name, None)
        if self._fleet is not None:
            del self._fleet.member.facts[group.fact]

    def _decide(self, group: _Group, now_ns: int) -> None:
        rule = group.rule
        self._follow(group, now_ns)
        group.is_used = self._is_used(group, now_ns)
        if group.is_used:
            group.used_ns = now_ns
        before = rule.cut_ns
        windows = {
            address: signal.take(before, rule.terms.target_ns)
            for address, times in self._brokers.items()
            if (signal := times.signals.get(group.name)) is not None
        }
        rule.decide(windows, now_ns, is_used=group.is_used)
        cause = rule.cause
        if cause is not None and cause.at_ns == now_ns:
            name = "would_yield" if group.yields.is_observed else "yields"
            fields = {"entity": str(group.limit.entity), "limit": group.limit.name, "rate": round(rule.rate)}
            fields |= {"least": round(rule.terms.least), "why": _why(group, cause)}
            self._lines.event(_log.info, name, group.name, now_ns, **fields)

    def _is_used(self, group: _Group, now_ns: int) -> bool:
        """Whether at least `USED` of the rate is used: by this process, or by all members of the fleet."""
        limit, passed, fleet = group.limit, group.passed, self._fleet
        if fleet is not None and limit.whole is not None and fleet.member.caps.is_joined(now_ns):
            key = fleet.member.caps.keys.get(key_of(limit))
            return key is not None and key.total >= USED * WHOLE
        passed.append((now_ns, limit.passed))
        while len(passed) > 2 and passed[1][0] <= now_ns - USE_NS:
            passed.popleft()
        (since_ns, before), (_, after) = passed[0], passed[-1]
        earned = group.rule.rate * (now_ns - since_ns) / NS_PER_SECOND
        return bool(limit.waiters.waiting) or (earned > 0 and after - before >= USED * earned)

    def _even_out(self) -> None:
        """Groups that use their rates and yield to the same clients end up with the same rate."""
        alike = defaultdict[tuple[str, int], list[_Group]](list)
        for group in self._groups.values():
            if group.is_used and group.rule.state in {State.RAISED, State.CUT}:
                alike[group.yields.to, group.yields.target_ns].append(group)
        for groups in alike.values():
            for group, rate in zip(groups, evened_out([each.rule.rate for each in groups]), strict=True):
                group.rule.move_to(rate)

    def _set(self, group: _Group, now_ns: int) -> None:
        self._agree(group, now_ns)
        if group.yields.is_observed:
            return
        limit, terms, until_ns = group.limit, group.rule.terms, now_ns + LEASE_NS
        if self._fleet is not None and limit.whole is not None:
            factor = Fraction(int(group.applies)) / Fraction(terms.most)
            least = Fraction(terms.least) / Fraction(terms.most)
            self._fleet.limits.scale(limit, min(Fraction(1), factor), least, until_ns, now_ns)
        else:
            burst_ns = limit.options.burst_ns
            granted, least = Fraction(group.applies), Fraction(terms.least)
            burst_ns = BURST_NS if burst_ns is None else burst_ns
            self._registry.set_rate(limit, granted, burst_ns, until_ns, least, now_ns)

    # ---- in a fleet

    def _others(self, group: _Group, now_ns: int) -> list[int]:
        """What the other members advertise."""
        if self._fleet is None or group.limit.whole is None:
            return []
        member, fact = self._fleet.member, group.fact
        facts = member.live_facts(now_ns)
        found = (value.get(fact) for name, value in facts.items() if name != member.caps.name)
        return [value for value in found if isinstance(value, int)]

    def _follow(self, group: _Group, now_ns: int) -> None:
        """Keep the own rate near that of the fleet, and note cuts by other members."""
        others, rule = self._others(group, now_ns), group.rule
        lowest = min((each for each in others if each > 0), default=0)
        if 0 < lowest < 0.98 * group.lowest:
            rule.cut_ns = now_ns
        group.lowest = lowest
        if others:  # a member that has just started takes what it finds; alone, it starts at the lower bound
            own = rule.terms.most if group.is_learning else rule.rate
            rule.move_to(agreed(own, others, watches=rule.watches(now_ns)).own)
        if others or now_ns - group.made_ns >= LEARN_NS:
            group.is_learning = False

    def _agree(self, group: _Group, now_ns: int) -> None:
        """Find the rate that applies, and advertise what this member would allow."""
        rule, others = group.rule, self._others(group, now_ns)
        watches = rule.watches(now_ns)
        group.applies = max(rule.terms.least, agreed(rule.rate, others, watches=watches).applies)
        if self._fleet is None or group.limit.whole is None or group.yields.is_observed:
            return
        uses = group.used_ns is not None and now_ns - group.used_ns < USE_NS
        facts = self._fleet.member.facts
        value = None if group.is_learning else advertised(rule.rate, others, watches=watches, uses=uses)
        if value is None:
            del facts[group.fact]
        else:
            facts[group.fact] = value


def _why(group: _Group, cause: Cause) -> str:
    """In a clause: what the protected clients saw."""
    window, target_ms = cause.window, group.rule.terms.target_ns / NS_PER_MS
    where = f"broker {cause.broker}" if cause.broker else "all brokers together"
    if not window.count:
        return (
            f"a Produce request of {group.yields.to} has had no response from {where} for {window.waits_ns / 1e9:.0f} s"
        )
    part, mean_ms = window.above / window.count, target_ms + window.mean_excess_ns / NS_PER_MS
    return (
        f"{part:.0%} of the Produce responses to {group.yields.to} took longer than {target_ms:g} ms at {where}, "
        f"{mean_ms:.0f} ms on average"
    )
