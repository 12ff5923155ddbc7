"""The limits in use: one bucket for each entity, made on first use, updated, removed after an idle hour.

Clients can invent client ids, and have millions of IPv6 addresses, so the number of limits by default entries is
bounded. Above the bound, each new limit checks the few that were checked longest ago, and drops those that were not
used since and have neither debt nor waiters. So the bound is exceeded only while more limits are in use or in debt, by
at most one for each new name. A client whose limit was dropped gets a new one, with its whole burst. Until the next
`expire`, a minute later, its open sessions still charge the old one, so clients that share a limit may have both.

After a change of the configuration, each limit is updated at its next look-up or by `refresh`, as of the time of the
change. So the change itself costs little, however many limits are in use.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Final, Protocol

from quotas.admission.limit import Limit
from quotas.admission.topic_thresholds import TopicThreshold
from quotas.algorithms.algorithm import Algorithm, AlgorithmSettings
from quotas.algorithms.leased_bucket import LeasedBucket
from quotas.algorithms.producer_ids import ProducerIdQuota
from quotas.entity import AnyEntity, EntityKind
from quotas.limit_kinds import LIMIT_KINDS, LIMIT_NAMES, THRESHOLDS, Measure
from quotas.registry.configured import Configured
from quotas.registry.idle import IDLE_NS, Idle
from quotas.registry.override import Applies

MAX_OF_DEFAULTS: Final = 100_000
"""Limits by default entries: about 80 MB."""
_CHECKED_AT_ONCE: Final = 4


class Granter(Protocol):
    """Sets the rates of limits by a rule outside of the configuration (see `Registry.set_rate`)."""

    def grant(self, limit: Limit, rate: int | Fraction, burst_ns: int | None) -> None:
        """Grant a rate to a limit that is new or was configured anew, with this rate and its own burst (or None). Do it
        before this returns: charges may follow at once.
        """

    def end(self, limit: Limit) -> None:
        """Grant no more to this limit: it was dropped, or belongs to this process alone. Called for any limit."""


class LimitStore:
    """The limits in use and their configuration; `share` scales every rate. `granter` sets those of shared limits."""

    def __init__(self, configured: Configured, settings: AlgorithmSettings, share: Fraction) -> None:
        self.configured = configured
        self.share = share
        self.granter: Granter | None = None
        self._settings = settings
        self._limits: dict[str, dict[AnyEntity, Limit]] = {name: {} for name in LIMIT_NAMES}
        self._idle: Idle[Limit] = Idle()
        #: The limits by default entries, the one checked longest ago first, with their latest use at that time;
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
        """The limit of this entity, made on first use. Without a time, no limit is dropped to make room for it."""
        limit = self.find(name, applies.entity)
        if limit is None:
            is_of_default = applies.entity != applies.origin
            if is_of_default and now_ns is not None:
                self._make_room(now_ns)
            rate, yields = self.scaled(applies.rate), applies.options.moving(name)
            first = rate if yields is None else self.scaled(yields.least)
            of_entry = applies.options.algorithm, applies.options.burst_ns
            algorithm = self._settings.make(name, first, *of_entry, moves=yields is not None)
            limit = self.add(Limit(name, applies.entity, algorithm, origin=applies.origin, options=applies.options))
            self._is_granted(limit, applies, rate)
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
        """Add a limit, replacing a previous one."""
        self._limits[limit.name][limit.entity] = limit
        self._idle.watch(limit)
        return limit

    def scaled(self, rate: int | Fraction) -> int | Fraction:
        """A rate times the share."""
        if self.share == 1:
            return rate
        shared = rate * self.share
        return shared.numerator if shared.denominator == 1 else shared

    # ---- changing

    def replace(self, configured: Configured, share: Fraction, now_ns: int) -> None:
        """Replace the configuration. The caller then updates all limits (see `refresh`)."""
        self.configured, self.share = configured, share
        self._changed_ns = now_ns
        self._stale = {limit: self._stale.get(limit, False) for limit in self}

    def forget_debts(self, now_ns: int) -> None:
        """Reset the limits in debt. Known producer ids stay known. See `refresh`."""
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
        if self.granter is not None:
            self.granter.end(limit)

    def _is_granted(self, limit: Limit, applies: Applies, rate: int | Fraction) -> bool:
        """Rates of token buckets are granted, except those of connections and of entries with `scope=process`."""
        if self.granter is None:
            return False
        is_rate = LIMIT_KINDS[limit.name].measure is not Measure.CONNECTION_RATE
        is_granted = is_rate and not applies.options.is_per_process and isinstance(limit.algorithm, LeasedBucket)
        if is_granted:
            self.granter.grant(limit, rate, applies.options.burst_ns)
        else:
            self.granter.end(limit)
        return is_granted

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
        if name in THRESHOLDS:  # its algorithm looks up the threshold itself
            if THRESHOLDS[name] not in self.configured.limits_of(EntityKind.TOTAL):
                self._drop(limit)
            elif is_forgotten:
                _begin_anew(algorithm)
            return
        applies = self.configured.find_for_bucket(name, limit.entity)
        if applies is None or type(algorithm) is not self._class_of(name, applies):
            self._drop(limit)
            return
        if is_forgotten and not _begin_anew(algorithm):
            self._drop(limit)
            return
        self._configure(limit, applies)

    def _class_of(self, name: str, applies: Applies) -> type[Algorithm]:
        options = applies.options
        return self._settings.class_of(name, options.algorithm, moves=options.moving(name) is not None)

    def _configure(self, limit: Limit, applies: Applies) -> None:
        limit.origin, limit.options = applies.origin, applies.options
        rate = self._settings.per_second(limit.name, self.scaled(applies.rate))
        if (
            not self._is_granted(limit, applies, rate) and applies.options.moving(limit.name) is None
        ):  # else its lease goes on
            burst_ns = applies.options.burst_ns
            limit.algorithm.set_rate(rate, self._settings.burst_ns if burst_ns is None else burst_ns, self._changed_ns)


def _begin_anew(algorithm: Algorithm) -> bool:
    """Forget the debt of an algorithm that also remembers other things. False: replace the object instead."""
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


def _idle_until_ns(limit: Limit) -> int:
    """An hour after its last use; producer ids are kept for their window, which may be longer."""
    until_ns = limit.algorithm.last_ns + IDLE_NS
    return max(until_ns, limit.algorithm.empty_ns) if isinstance(limit.algorithm, ProducerIdQuota) else until_ns
