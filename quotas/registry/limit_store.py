"""The limits in use: one bucket for each owner, made on first use, kept up to date, forgotten after an idle hour.

A change of an entity that owns a bucket concerns that bucket, which takes it over at once. A change of a default may
concern a million buckets. It is kept as a *moment*, and when a bucket is used next it takes over the moments that it
has not seen yet: one after the other, each as of its own time, so that its debt is what it would be if it had been
told of each at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from quotas.admission.limit import Limit
from quotas.algorithms.producer_ids import ProducerIdQuota
from quotas.entity import TOTAL
from quotas.limit_kinds import LIMIT_NAMES
from quotas.registry.configured import THRESHOLDS, Configured
from quotas.registry.idle import IDLE_NS, Idle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from fractions import Fraction

    from quotas.algorithms.algorithm import AlgorithmSettings
    from quotas.entity import AnyEntity
    from quotas.registry.change import Change
    from quotas.registry.override import Applies, Override

MAX_MOMENTS: Final = 64
"""Of more changes than this that a bucket has not seen the first ones count as made together with the next."""


class _Moment:
    """A change that may concern any number of buckets: when it was made, and the entries of before it."""

    __slots__ = ("_entries", "at_ns")

    def __init__(self, at_ns: int, entries: Sequence[tuple[AnyEntity, Override | None]]) -> None:
        self.at_ns: Final = at_ns
        self._entries = entries

    def swap(self, configured: Configured) -> None:
        """Take the change back, or, the next time, make it again."""
        self._entries = [(entity, configured.put(entity, override)) for entity, override in self._entries]


class LimitStore:
    """The limits in use, and what is configured for them; `share` scales every rate."""

    def __init__(self, configured: Configured, settings: AlgorithmSettings, share: Fraction) -> None:
        self.configured = configured
        self.share = share
        self._settings = settings
        self._limits: dict[str, dict[AnyEntity, Limit]] = {name: {} for name in LIMIT_NAMES}
        self._idle: Idle[Limit] = Idle()
        self._moments: list[_Moment] = []
        self._version = 0  # grows with each moment; a limit of this version has seen them all

    def __iter__(self) -> Iterator[Limit]:
        """Every limit that has a bucket now; safe against changes while it is read. O(limits)."""
        self._catch_up_all()
        for limits in self._limits.values():
            yield from list(limits.values())

    # ---- looking up

    def get(self, name: str, applies: Applies) -> Limit:
        """The limit of this owner, made if it is not there."""
        limit = self.find(name, applies.entity)
        if limit is None:
            rate = self.scaled(applies.rate)
            algorithm = self._settings.make(name, rate, applies.algorithm, applies.burst_ns)
            limit = self.add(Limit(name, applies.entity, algorithm, origin=applies.origin, mode=applies.mode))
        return limit

    def get_all(self, name: str, found: Iterable[dict[str, Applies]]) -> tuple[Limit, ...]:
        """The limits of this name among all that was found for somebody."""
        return tuple([self.get(name, applies[name]) for applies in found if name in applies])

    def find(self, name: str, owner: AnyEntity) -> Limit | None:
        """The limit of this owner if it is in use."""
        limit = self._limits[name].get(owner)
        if limit is None or limit.version == self._version:
            return limit
        self._catch_up(limit)
        return limit if self._is_in_use(limit) else None

    def add(self, limit: Limit) -> Limit:
        """Take in a limit whose algorithm was made elsewhere; it puts out of use the one that is there."""
        limit.version = self._version
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

    def change(self, changes: Sequence[Change], now_ns: int) -> None:
        """Set what is configured, and take it over: O(changes).

        Who waits for a limit that goes out of use has to be woken by the caller.
        """
        own = []
        of_others: dict[AnyEntity, None] = {}
        for change in changes:
            if self.configured.concerns_others(change.entity, change.limit_name):
                of_others[change.entity] = None
            else:
                own.append(change)
                self.find(change.limit_name, change.entity)  # for what has been changed before
        if of_others:
            self._moments.append(_Moment(now_ns, [(entity, self.configured.get(entity)) for entity in of_others]))
            del self._moments[:-MAX_MOMENTS]
            self._version += 1
        for change in changes:
            self.configured.set(change.entity, change.limit_name, change.rate)
        for change in own:
            limit = self._limits[change.limit_name].get(change.entity)
            if limit is not None:
                limit.version = self._version
                self._refresh(limit, now_ns)

    def replace(self, configured: Configured, share: Fraction, now_ns: int) -> None:
        """Put all this in place of what is configured, and take it over: O(limits)."""
        self._catch_up_all()
        self.configured, self.share = configured, share
        for limit in self:
            self._refresh(limit, now_ns)

    def expire(self, now_ns: int) -> int:
        """Forget the limits that were idle for an hour, owe nothing and have no waiters; returns how many.

        O(limits that are due for a look).
        """
        forgotten = 0
        for limit in self._idle.due(now_ns):
            self._catch_up(limit)
            if not self._is_in_use(limit):
                continue
            idle_until_ns = _idle_until_ns(limit)
            if idle_until_ns > now_ns:
                self._idle.look_again(limit, idle_until_ns)
                if isinstance(limit.algorithm, ProducerIdQuota):
                    limit.algorithm.clean_up(now_ns)
            elif limit.waiters.waiting or limit.waiters.claimants or limit.debt_ns(now_ns):
                self._idle.look_again(limit, now_ns + IDLE_NS)
            else:
                self._drop(limit)
                forgotten += 1
        return forgotten

    # ---- inside

    def _is_in_use(self, limit: Limit) -> bool:
        return self._limits[limit.name].get(limit.entity) is limit

    def _drop(self, limit: Limit) -> None:
        del self._limits[limit.name][limit.entity]

    def _catch_up_all(self) -> None:
        if not self._moments:
            return
        for limits in self._limits.values():
            for limit in list(limits.values()):
                self._catch_up(limit)
        self._moments.clear()

    def _catch_up(self, limit: Limit) -> None:
        """Take over what has been changed since this limit was used last."""
        if limit.version == self._version:
            return
        unseen = self._moments[limit.version - self._version :]
        limit.version = self._version
        for moment in reversed(unseen[1:]):
            moment.swap(self.configured)
        for nth, moment in enumerate(unseen):
            if nth:
                moment.swap(self.configured)
            if self._is_in_use(limit):
                self._refresh(limit, moment.at_ns)

    def _refresh(self, limit: Limit, now_ns: int) -> None:
        """Give a limit what is configured now: its debt stays, at the new rate. One that is not configured any more, or
        to be measured by another algorithm, goes out of use.
        """
        name = limit.name
        if name in THRESHOLDS:  # its algorithm looks up the threshold by itself
            if THRESHOLDS[name] not in self.configured.limits_of(TOTAL):
                self._drop(limit)
            return
        applies = self.configured.find_for_bucket(name, limit.entity)
        if applies is None or not self._settings.is_made_of(limit.algorithm, name, applies.algorithm):
            self._drop(limit)
            return
        limit.origin, limit.mode = applies.origin, applies.mode
        rate = self._settings.per_second(name, self.scaled(applies.rate))
        burst_ns = self._settings.burst_ns if applies.burst_ns is None else applies.burst_ns
        limit.algorithm.set_rate(rate, burst_ns, now_ns)


def _idle_until_ns(limit: Limit) -> int:
    """An hour after its last use; a memory of producer ids lasts as long as its window, which may be longer."""
    until_ns = limit.algorithm.last_ns + IDLE_NS
    return max(until_ns, limit.algorithm.empty_ns) if isinstance(limit.algorithm, ProducerIdQuota) else until_ns
