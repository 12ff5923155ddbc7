"""How much of a limit is used, and whether clients wait for it: sampled, some times a second."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from quotas.admission.limit import Limit
from quotas.algorithms.token_bucket import NS_PER_SECOND
from quotas.fleet.policy import HEADROOM_PERCENT, Demand

PER_UNIT: Final = 1_000
"""Rates of `quotas.fleet` are in thousandths."""
SLOT_NS: Final = 200_000_000
SLOTS: Final = 4
"""Use is measured over two slots, the highest of so many: frames do not come evenly. Over one slot, a client of ten
batches a second would hold half as much again as it uses.
"""
QUEUED_NS: Final = 120_000_000
"""Longer than a bucket needs to fill: before, a frame may wait for the one before."""
NEARLY_ALL_PERCENT: Final = 98
IDLE_NS: Final = 2 * NS_PER_SECOND
"""A limit that was not used for so long is idle."""


@dataclass(slots=True, eq=False)
class Use:
    """Of one limit. Units are thousandths; `_earned`: what could have passed in this slot, times a second in ns."""

    limit: Limit
    rate: int = 0
    _since_ns: int = 0
    _earned: int = 0
    _at_ns: int = 0
    _passed: int = 0
    _used_ns: int = 0
    _peaks: tuple[int, ...] = (0,) * SLOTS
    _unseen: int = 0
    _before: tuple[int, int] = (0, 0)
    _is_full: bool = False
    _queued_ns: int = 0

    def lend(self, rate: int, now_ns: int) -> None:
        """So much may pass from now on. Until a slot shows how much of more does, it counts as used."""
        if rate > self.rate:
            self._unseen = 2
        self._earned += self.rate * (now_ns - self._since_ns)
        self.rate, self._since_ns = rate, now_ns

    def is_idle(self, now_ns: int) -> bool:
        """Whether nothing has passed or waited lately."""
        if self._passed != self.limit.algorithm.passed or self.limit.waiters.waiting:
            self._used_ns = now_ns
        return now_ns - self._used_ns >= IDLE_NS

    def begin(self, now_ns: int) -> None:
        """From now on it is sampled: nothing is known of the time before."""
        self._at_ns = self._since_ns = self._queued_ns = now_ns
        self._earned, self._passed = 0, self.limit.algorithm.passed
        self._peaks, self._before, self._is_full = (0,) * SLOTS, (0, 0), False

    def demand(self, now_ns: int, *, is_at_floor: bool) -> Demand:
        """Clients wait if requests were queued for `QUEUED_NS`. Those that are told of a debt wait without a queue;
        then all passes that may, in two slots. A debt alone shows that only of a floor: a frame that is larger than
        the bucket leaves one, too.
        """
        limit, span_ns = self.limit, now_ns - self._at_ns
        if span_ns >= SLOT_NS:
            self.lend(self.rate, now_ns)
            passed = (limit.algorithm.passed - self._passed) * PER_UNIT * NS_PER_SECOND
            if passed or limit.waiters.waiting or limit.debt_ns(now_ns):
                self._peaks = *self._peaks[1:], passed // span_ns
            else:  # it has stopped: others get all of it at once
                self._peaks = (0,) * SLOTS
            self._unseen = max(0, self._unseen - 1)
            all_passed, all_earned = self._before[0] + passed, self._before[1] + self._earned
            self._is_full = min(passed, self._before[0]) > 0 and 100 * all_passed >= NEARLY_ALL_PERCENT * all_earned
            self._before = passed, self._earned
            self._at_ns, self._earned, self._passed = now_ns, 0, limit.algorithm.passed
        if not limit.waiters.waiting:
            self._queued_ns = now_ns
        waits = now_ns - self._queued_ns >= QUEUED_NS
        waits = waits or (is_at_floor and limit.debt_ns(now_ns) > 0)
        waits = waits or (self._is_full and limit.soft_wait_ns(now_ns) > 0)
        unseen = self.rate * 100 // HEADROOM_PERCENT if self._unseen else 0
        peak = max(map(sum, pairwise(self._peaks))) // 2
        return Demand(max(peak, unseen), waits)
