"""The limits in use: one bucket for each entity, made on first use, updated, removed after an idle hour.

Clients can invent client ids, and have millions of IPv6 addresses, so the limits by default entries are bounded in
number. Above the bound each new one checks the few that were checked longest ago, and drops those that were not used
since, have no debt and no waiters. So the bound is exceeded while more limits than that are in use or in debt, by one
for each new name at most. A client whose limit was dropped gets a new one, with its whole burst. Until the next
`expire`, a minute later, its open sessions still charge the old one: clients that share a limit may have both for so
long.

After a change of the configuration each limit is updated at its next look-up, or by `refresh`, as of the change. So a
change costs little at once, however many limits are in use.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Final

from quotas.admission.limit import Limit
from quotas.admission.topic_thresholds import TopicThreshold
from quotas.algorithms.algorithm import Algorithm, AlgorithmSettings
from quotas.algorithms.producer_ids import ProducerIdQuota
from quotas.entity import AnyEntity, Kind, Named
from quotas.limit_kinds import LIMIT_NAMES, THRESHOLDS
from quotas.registry.configured import Configured
from quotas.registry.idle import IDLE_NS, Idle
from quotas.registry.override import Applies

MAX_OF_DEFAULTS: Final = 100_000
"""Limits by default entries: about 80 MB."""
_CHECKED_AT_ONCE: Final = 4


class LimitStore:
    """The limits in use and their configuration; `share` scales every rate."""

    def __init__(self, configured: Configured, settings: AlgorithmSettings, share: Fraction) -> None:
        self.configured = configured
        self.share = share
        self._settings = settings
        self._limits: dict[str, dict[AnyEntity, Limit]] = {name: {} for name in LIMIT_NAMES}
        self._idle: Idle[Limit] = Idle()
        #: Those by default entries, the one checked longest ago first, with their latest use at that time;
        #: how many were dropped since the last `expire`.
        self._of_defaults: OrderedDict[Limit, int] = OrderedDict()
        self._dropped = 0
        #: Not updated since the last change, and whether their debts are forgotten; the time of that change.
        self._stale: dict[Limit, bool] = {}
        self._changed_ns = 0

    def __iter__(self) -> Iterator[Limit]:
        """Every limit with a bucket; safe against changes during iteration. O(limits)."""
        for limits in self._limits.values():
            yield from list(limits.values())

    # ---- looking up

    def get(self, name: str, applies: Applies, now_ns: int | None = None) -> Limit:
        """The limit of this entity, made on first use; without a time no limit is dropped for it."""
        limit = self.find(name, applies.entity)
        if limit is None:
            is_of_default = applies.entity != applies.origin
            if is_of_default and now_ns is not None:
                self._make_room(now_ns)
            rate = self.scaled(applies.rate)
            algorithm = self._settings.make(name, rate, applies.algorithm, applies.burst_ns)
            limit = self.add(Limit(name, applies.entity, algorithm, origin=applies.origin, mode=applies.mode))
            limit.exempt, limit.rejects = applies.exempt, _rejects(applies)
            if is_of_default:
                self._of_defaults[limit] = limit.algorithm.last_ns
        return limit

    def get_all(self, name: str, found: Iterable[dict[str, Applies]], now_ns: int | None = None) -> tuple[Limit, ...]:
        """The limits of this name among the configured limits of a client or topic."""
        return tuple([self.get(name, applies[name], now_ns) for applies in found if name in applies])

    def find(self, name: str, owner: AnyEntity) -> Limit | None:
        """The limit of this entity if it is in use."""
        limit = self._limits[name].get(owner)
        if limit is None or limit not in self._stale:
            return limit
        self._refresh(limit)
        return self._limits[name].get(owner)

    def is_in_use(self, limit: Limit) -> bool:
        """Whether it is the present limit of its entity."""
        return self.find(limit.name, limit.entity) is limit

    def add(self, limit: Limit) -> Limit:
        """Add a limit, in place of a previous one."""
        self._limits[limit.name][limit.entity] = limit
        self._idle.watch(limit)
        return limit

    def scaled(self, rate: int | Fraction) -> int | Fraction:
        """A rate with the share."""
        if self.share == 1:
            return rate
        shared = rate * self.share
        return shared.numerator if shared.denominator == 1 else shared

    # ---- changing

    def replace(self, configured: Configured, share: Fraction, now_ns: int) -> None:
        """Replace the configuration. All limits are to be updated then: see `refresh`."""
        self.configured, self.share = configured, share
        self._changed_ns = now_ns
        self._stale = {limit: self._stale.get(limit, False) for limit in self}

    def forget_debts(self, now_ns: int) -> None:
        """Begin anew with the limits in debt. Known producer ids stay known. See `refresh`."""
        self._changed_ns = now_ns
        self._stale = dict.fromkeys(self, True)

    def refresh(self, most: int) -> bool:
        """Update `most` limits after a change. Returns whether some are left. O(most)."""
        stale = self._stale
        while stale and most > 0:
            self._refresh(next(iter(stale)))
            most -= 1
        return bool(stale)

    def expire(self, now_ns: int) -> int:
        """Remove the limits that were idle for an hour and have no debt and no waiters. Returns how many were removed
        or dropped since the last call. O(limits due).
        """
        forgotten, self._dropped = self._dropped, 0
        for limit in self._idle.due(now_ns):
            if not self.is_in_use(limit):
                continue
            idle_until_ns = _idle_until_ns(limit)
            if idle_until_ns > now_ns:
                self._idle.check_at(limit, idle_until_ns)
                if isinstance(limit.algorithm, ProducerIdQuota):
                    limit.algorithm.clean_up(now_ns)
            elif _is_needed(limit, now_ns):
                self._idle.check_at(limit, now_ns + IDLE_NS)
            else:
                self._drop(limit)
                forgotten += 1
        return forgotten

    # ---- inside

    def _drop(self, limit: Limit) -> None:
        del self._limits[limit.name][limit.entity]
        self._of_defaults.pop(limit, None)
        self._idle.discard(limit)

    def _make_room(self, now_ns: int) -> None:
        """Drop limits of default entries if there are too many: see the module."""
        limits = self._of_defaults
        for _ in range(_CHECKED_AT_ONCE):
            if len(limits) < MAX_OF_DEFAULTS:
                return
            limit, checked_ns = next(iter(limits.items()))
            if limit.algorithm.last_ns != checked_ns or _is_needed(limit, now_ns):
                limits[limit] = limit.algorithm.last_ns
                limits.move_to_end(limit)
            else:
                self._drop(limit)
                self._dropped += 1

    def _refresh(self, limit: Limit) -> None:
        """Apply the configuration to a limit: its debt stays, at the new rate. It is dropped if it is no longer
        configured or has another algorithm.
        """
        is_forgotten = self._stale.pop(limit) and limit.debt_ns(self._changed_ns) > 0
        name, algorithm = limit.name, limit.algorithm
        if self._limits[name].get(limit.entity) is not limit:
            return
        if name in THRESHOLDS:  # its algorithm looks up the threshold by itself
            if THRESHOLDS[name] not in self.configured.limits_of(Kind.TOTAL):
                self._drop(limit)
            elif is_forgotten:
                _begin_anew(algorithm)
            return
        applies = self.configured.find_for_bucket(name, limit.entity)
        if applies is None or not self._settings.is_made_of(algorithm, name, applies.algorithm):
            self._drop(limit)
            return
        if is_forgotten and not _begin_anew(algorithm):
            self._drop(limit)
            return
        limit.origin, limit.mode, limit.exempt = applies.origin, applies.mode, applies.exempt
        limit.rejects = _rejects(applies)
        rate = self._settings.per_second(name, self.scaled(applies.rate))
        burst_ns = self._settings.burst_ns if applies.burst_ns is None else applies.burst_ns
        algorithm.set_rate(rate, burst_ns, self._changed_ns)


def _begin_anew(algorithm: Algorithm) -> bool:
    """Forget a debt, where more than the debt is known; False: a new object forgets it."""
    if isinstance(algorithm, ProducerIdQuota):
        algorithm.forget_counted()
    elif isinstance(algorithm, TopicThreshold):
        algorithm.forget_rate()
    else:
        return False
    return True


def _is_needed(limit: Limit, now_ns: int) -> bool:
    """Whether it has waiters, a debt, or known producer ids."""
    algorithm = limit.algorithm
    if isinstance(algorithm, ProducerIdQuota) and algorithm.empty_ns > now_ns:
        return True
    return limit.waiters.waiting > 0 or limit.debt_ns(now_ns) > 0


def _rejects(applies: Applies) -> bool:
    """Only records of a topic are refused, not those over other limits of the same entry."""
    return bool(applies.rejects) and isinstance(applies.entity, Named) and applies.entity.kind is Kind.TOPIC


def _idle_until_ns(limit: Limit) -> int:
    """An hour after its last use; producer ids are kept for their window, which may be longer."""
    until_ns = limit.algorithm.last_ns + IDLE_NS
    return max(until_ns, limit.algorithm.empty_ns) if isinstance(limit.algorithm, ProducerIdQuota) else until_ns
