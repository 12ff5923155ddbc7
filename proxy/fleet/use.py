"""How much of a limit is used, and whether clients wait for it, sampled several times a second."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from quotas.admission.limit import Limit
from quotas.fleet.policy import HEADROOM_PERCENT, Demand
from quotas.time_units import NS_PER_SECOND

PER_UNIT: Final = 1_000
"""Rates of `quotas.fleet` are in thousandths."""
SLOT_NS: Final = 200_000_000
SLOTS: Final = 4
WINDOW: Final = 3
"""Use is measured over `WINDOW` neighbouring slots of the last `SLOTS`, and the highest counts, because frames do not
arrive evenly. A client with ten batches a second, each up to 100 ms late, would claim 29 % more than it uses if
measured over one slot, 12 % over two, and 6 % over three; and what is claimed in vain, nobody can use.
"""
QUEUED_NS: Final = 120_000_000
"""Longer than a bucket needs to fill: for a shorter time, a frame may wait just for the one before it."""
NEARLY_ALL_PERCENT: Final = 98
IDLE_NS: Final = 2 * NS_PER_SECOND
"""A limit that has not been used for this long is idle."""


@dataclass(slots=True, eq=False)
class Use:
    """The use of one limit. Units are thousandths.

        slots     │  ≥ 200 ms  │  ≥ 200 ms  │  ≥ 200 ms  │  ≥ 200 ms  │ current
        _peaks    │     0      │     0      │    800     │   1,200    │          rate of each, the latest one last
        _peak     the highest average of three neighbouring slots: (0 + 800 + 1,200) ÷ 3 = 667

    rate         what may pass in a second
    _since_ns    since when the rate has been that
    _at_ns       when the current slot began
    _passed      what had passed by then since the limit exists, in whole units
    _earned      what could have passed in this slot, times a second in ns
    _before      what passed, and what could have passed, in the previous slot, in the unit of `_earned`
    _is_full     whether nearly everything that could pass in the last two slots did
    _unseen      for how many slots all of a raised rate counts as used, because its use has not been measured
    _queued_ns   the last time at which no request was queued
    _used_ns     the last time at which something passed or waited
    """

    limit: Limit
    rate: int = 0
    _since_ns: int = 0
    _earned: int = 0
    _at_ns: int = 0
    _passed: int = 0
    _used_ns: int = 0
    _peaks: tuple[int, ...] = (0,) * SLOTS
    _peak: int = 0
    _unseen: int = 0
    _before: tuple[int, int] = (0, 0)
    _is_full: bool = False
    _queued_ns: int = 0

    def grant(self, rate: int, now_ns: int) -> None:
        """Set the rate that may pass from now on. Until a slot shows how much of a higher rate is used, all of it
        counts.
        """
        if rate > self.rate:
            self._unseen = WINDOW
        self._earned += self.rate * (now_ns - self._since_ns)
        self.rate, self._since_ns = rate, now_ns

    def is_idle(self, now_ns: int) -> bool:
        """Whether nothing has passed or waited lately."""
        if self._passed != self.limit.algorithm.passed or self.limit.waiters.waiting:
            self._used_ns = now_ns
        return now_ns - self._used_ns >= IDLE_NS

    def begin(self, now_ns: int) -> None:
        """Start sampling: nothing is known about the time before."""
        self._at_ns = self._since_ns = self._queued_ns = now_ns
        self._earned, self._passed = 0, self.limit.algorithm.passed
        self._peaks, self._peak, self._before, self._is_full = (0,) * SLOTS, 0, (0, 0), False

    def demand(self, now_ns: int, *, is_at_floor: bool) -> Demand:
        """The demand of the last slots. Clients wait for the limit if one of these is true:

        - requests have been queued for `QUEUED_NS`
        - nearly everything that could pass in two slots did, and notices still contain a wait. Clients that are
          notified of a debt wait without a queue
        - there is debt while the member is at its floor. Elsewhere, a debt alone proves nothing, because a frame that
          is larger than the bucket leaves a debt, too
        """
        limit, span_ns = self.limit, now_ns - self._at_ns
        if span_ns >= SLOT_NS:
            self.grant(self.rate, now_ns)
            passed = (limit.algorithm.passed - self._passed) * PER_UNIT * NS_PER_SECOND
            if passed or limit.waiters.waiting or limit.debt_ns(now_ns):
                self._peaks = *self._peaks[1:], passed // span_ns
            else:  # it has stopped, so others get all of it at once
                self._peaks = (0,) * SLOTS
            self._peak = _highest(self._peaks)
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
        return Demand(max(self._peak, unseen), waits)


def _highest(peaks: Sequence[int]) -> int:
    """The highest average of `WINDOW` neighbours."""
    return max(sum(peaks[at : at + WINDOW]) for at in range(len(peaks) - WINDOW + 1)) // WINDOW
