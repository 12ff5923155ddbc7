"""Kafka's sampled window (SampledStat, WindowedSum, Rate and QuotaUtils of Kafka 4) with seed 000's first-window rule.

What is charged is counted in windows of W ms. A window opens with the first charge at or after the end of the one
before, so there may be gaps; it is forgotten when its latest charge is `samples` * W old. The rate is the sum of the
windows that are left over the time since the oldest of them opened. For that time Kafka takes at least `samples - 1`
whole windows: each that is missing is taken for an empty one. Where the rate is above the bound after a charge, the
wait is floor((rate - bound) / bound * time + 1/2) ms. All of it is exact, in integers; Kafka has doubles.

Kafka forgets by clearing a slot in place and giving it the present as its start. That start never matters: the window
that is open then is as old, and is forgotten no sooner. So what is forgotten is dropped here, and asking changes
nothing.

Where this is not Kafka, on purpose:

- The first-window rule (pull request 12034, not merged): windows that never existed are not counted as empty. Until
  `samples - 1` windows (at least one) have passed since the first charge ever, the time is that since the first charge,
  at least W. Before W has passed the rate stands still, so the wait is the time until the rate is at most the bound,
  which is W minus the time passed more than Kafka's formula. An entity that was idle has a history and keeps Kafka's
  rule.
- Where that rule is on, all charges since the first one count against the bound as well, until the bound changes:
  windows that are forgotten while a debt for them is paid would be paid for by nothing.
- Where that rule is on, a charge that comes evenly is asked for no wait (`admit` and `record` return 0), though it
  leaves a debt for what comes too early after it: one that finds no debt, is earned by the time since the charge before
  it, and finds the sum of the windows earned, both at 19/20 of the bound. Kafka counts k events over k - 1 intervals:
  where fewer than ten events are in that time, an even load at 0.9 of the bound is above it at each event.
- Debt is kept: the debt of a charge is paid in full, though its windows are forgotten before. (With
  Kafka another connection of the same client would pass then.) A charge while such a debt lasts is added to it.
  While the first-window rule holds nothing has been forgotten: there, giving back leaves what the windows alone say.
- What finds debt is held before it is charged; Kafka's next request is charged and then held.
- Kafka's clock has milliseconds: times are rounded down to them, and a debt ends at a whole one.

What it guarantees, where the token bucket has its conservation law. R is the bound, F the largest single charge, and
half a millisecond of R may be added throughout (Kafka rounds it away):

- when a charge passes, what was charged in the `samples` * W before it is at most R * (samples + 1) * W. So in a time T
  no more passes than R * (samples + 1) * W + F for each `samples` * W, or part of it, in T
- after a charge that leaves the sum S, taken over the time t, nothing passes for S / R - t: a charge larger than all
  windows together is paid for, however long that takes
- under the first-window rule no more than R * max(T, W) + F passes in the first T after the first charge; without it,
  and after idleness, R * (samples - 1) * W + F may pass at once
- under the first-window rule charges of the same amount that come evenly at up to 0.9 of the bound find no debt and are
  asked for no wait, but for a first one that is more than one unit and more than R * W

A debt may begin, or turn out longer than was told, with no charge in between: when a window ends or is forgotten, the
time that the sum is taken over can get shorter, and the rate jumps up. Under the first-window rule it never does.

A claim counts when it is made, and its frame passes later: the above is about charges. A refund reduces the window that
was open when the amount was charged, and the debt that is kept by as much; once that window is forgotten it gives
nothing. (Kafka's negative record counts in the present window: it is too much from the time the charged one is
forgotten until the present one is.) A refund of all that the present window holds, where it was charged in one
millisecond, closes the window as if it had not been opened.
"""

from __future__ import annotations

from array import array
from fractions import Fraction
from functools import lru_cache
from math import floor
from typing import Final

from quotas.algorithms.claims import CountedClaims

NS_PER_MS: Final = 1_000_000
_LONGEST: Final = (1 << 63) - 1


class _Terms:
    """What follows from the bound and the windows; shared by all that have it in common, never changed.

    units, per   total * per > units * window_ms: the rate of the total is above the bound
    forget_ms    age of its latest charge at which a window is forgotten
    warm_up_ms   how long the first-window rule holds; 0 where it is off
    """

    __slots__ = ("forget_ms", "per", "rate", "samples", "units", "warm_up_ms", "window_ms")

    def __init__(self, rate: int | Fraction, samples: int, window_ns: int, first_window: bool) -> None:
        if rate <= 0:
            raise ValueError(f"rate must be above zero, not {rate}")
        if samples < 1:
            raise ValueError(f"samples must be at least 1, not {samples}")
        if window_ns <= 0 or window_ns % NS_PER_MS:
            raise ValueError(f"window_ns must be whole milliseconds above zero, not {window_ns}")
        self.rate = rate
        self.samples = samples
        self.window_ms = window_ns // NS_PER_MS
        self.units = rate.numerator
        self.per = 1000 * rate.denominator
        self.forget_ms = samples * self.window_ms
        self.warm_up_ms = max(samples - 1, 1) * self.window_ms if first_window else 0

    def span_ms(self, total: int | Fraction) -> int:
        """The time over which the rate of `total` is the bound, rounded as Java's Math.round does."""
        return (2 * total * self.per + self.units) // (2 * self.units)


_terms = lru_cache(maxsize=1024)(_Terms)


class SampledWindow(CountedClaims):
    """One sampled window. Amounts are whole units; times are nanoseconds of any monotonic clock.

    rate          the bound, in units per second
    samples       `quota.window.num`
    window_ns     `quota.window.size.seconds`, in whole milliseconds
    first_window  whether the first-window rule holds

    A clock that goes back is taken to stand still until it has caught up. Forgetting an entity is a new object.
    The count of one window ends at 2**63 - 1.

    Raises ValueError when the rate is not above zero, there is no sample, or the window is not whole milliseconds.
    """

    __slots__ = ("_before", "_closed", "_count", "_ever", "_kept", "_start_ms", "_terms", "_warm_until_ms", "last_ns")

    last_ns: int
    """Time of the latest charge; asking and refusing leave it alone."""

    def __init__(self, rate: int | Fraction, *, samples: int, window_ns: int, first_window: bool) -> None:
        self._terms = _terms(rate, samples, window_ns, first_window)
        self._closed: array[int] | None = None  # start, latest charge, count of each closed window, the oldest first
        self._before = 0  # the sum of the closed windows
        self._count = 0
        self._start_ms = 0
        self._kept: tuple[int | Fraction, int] | None = None  # a total, and since when it counts
        self._warm_until_ms = _LONGEST if first_window else -_LONGEST
        self.last_ns = -_LONGEST
        self._ever: int | None = 0 if first_window else None  # all that was charged; None: it does not count

    @property
    def rate(self) -> int | Fraction:
        """The bound, in units per second."""
        return self._terms.rate

    @property
    def burst_ns(self) -> int:
        """All windows together, `samples` * W: after so long without a charge everything is forgotten."""
        return self._terms.forget_ms * NS_PER_MS

    def observed_rate(self, now_ns: int) -> Fraction:
        """Units per second, as Kafka's metric and the examples of seed 000 have it."""
        total, time_ms = self._measure(max(now_ns, self.last_ns) // NS_PER_MS)
        return Fraction(total * 1000, time_ms)

    def admit(self, amount: int, now_ns: int) -> int:
        """Charge `amount` if out of debt. Returns the wait in ns that is asked for: the debt left, or 0 where it comes
        evenly (see the module); not charged, *minus* the debt.
        """
        if now_ns < self.last_ns:
            now_ns = self.last_ns
        now_ms = now_ns // NS_PER_MS
        total, time_ms = self._measure(now_ms)
        debt = self._debt(0, now_ms, total, time_ms)
        if debt is not None:
            return now_ns - self._end_ms(debt) * NS_PER_MS
        return self._charge(amount, now_ns, total, time_ms)

    def record(self, amount: int, now_ns: int) -> int:
        """Charge `amount` whatever the state. Returns the wait in ns that is asked for, as `admit`."""
        if now_ns < self.last_ns:
            now_ns = self.last_ns
        return self._charge(amount, now_ns, *self._measure(now_ns // NS_PER_MS))

    def record_capped(self, amount: int, now_ns: int) -> int:
        """Charge what leaves a debt of at most one window, now and when windows are forgotten, and no more. Returns the
        debt in ns.
        """
        if now_ns < self.last_ns:
            now_ns = self.last_ns
        now_ms = now_ns // NS_PER_MS
        total, time_ms = self._measure(now_ms)
        room = self._capped_room(now_ms, total)
        if room > 0:
            return self._charge(min(amount, room), now_ns, total, time_ms)
        return self.debt_ns(now_ns)

    def refund(self, amount: int, charged_ns: int, now_ns: int) -> None:
        """Give back `amount` units that were charged at `charged_ns`, at most what its window holds; nothing once that
        window is forgotten. See the module.
        """
        now_ns = max(now_ns, self.last_ns)
        now_ms, charged_ms = now_ns // NS_PER_MS, charged_ns // NS_PER_MS
        last_ms = self.last_ns // NS_PER_MS
        if charged_ms > last_ms or last_ms <= now_ms - self._terms.forget_ms:
            return
        taken = self._take_from_window(amount, charged_ms, now_ms)
        if not taken:
            return
        if self._ever is not None:
            self._ever -= taken
        kept = self._kept
        if kept is not None:
            self._kept = None if now_ms < self._warm_until_ms else (kept[0] - taken, kept[1])
            self._kept = self._debt(0, now_ms, *self._measure(now_ms))

    def spend(self, amount: int, now_ns: int) -> int:
        """Charge `amount` if that leaves no debt. Returns the whole units left, or, not charged, -1."""
        if now_ns < self.last_ns:
            now_ns = self.last_ns
        now_ms = now_ns // NS_PER_MS
        total, time_ms = self._measure(now_ms)
        left = self._room(now_ms, total, time_ms) - amount
        if left < 0 or self._debt(0, now_ms, total, time_ms) is not None:
            return -1
        self._charge(amount, now_ns, total, time_ms)
        return left

    def debt_ns(self, now_ns: int) -> int:
        """Nanoseconds until out of debt; 0 when it is. See the module for when it is found longer afterwards."""
        return self.wait_ns(0, now_ns)

    def wait_ns(self, amount: int, now_ns: int) -> int:
        """Nanoseconds until `amount` can be charged without leaving debt, by Kafka's formula: the debt that charging
        it now would leave. It does not come down to 0 for an amount that is too large for empty windows.
        """
        if now_ns < self.last_ns:
            now_ns = self.last_ns
        now_ms = now_ns // NS_PER_MS
        debt = self._debt(amount, now_ms, *self._measure(now_ms))
        return 0 if debt is None else self._end_ms(debt) * NS_PER_MS - now_ns

    def headroom(self, now_ns: int) -> int:
        """Whole units that can be charged before the rate is above the bound; 0 when in debt."""
        now_ms = max(now_ns, self.last_ns) // NS_PER_MS
        total, time_ms = self._measure(now_ms)
        return self._room(now_ms, total, time_ms) if self._debt(0, now_ms, total, time_ms) is None else 0

    def set_rate(self, rate: int | Fraction, burst_ns: int, now_ns: int) -> None:
        """Hold to another bound from now on. What was counted stays, and is measured against the new bound, as in
        Kafka; a debt whose windows are forgotten stays in units. The windows are not changed: `burst_ns` has no use.
        """
        old = self._terms
        if rate != old.rate:
            self._ever = None
        now_ms = max(now_ns, self.last_ns) // NS_PER_MS
        measured = self._measure(now_ms)
        if self._kept is not None:
            left_ms = self._end_ms(self._kept) - now_ms
            counted = self._debt_of_windows(now_ms, *measured)
            if counted is None or self._end_ms(counted) - now_ms < left_ms:
                self._kept = Fraction(left_ms * old.units, old.per), now_ms
            else:
                self._kept = None
        self._terms = _terms(rate, old.samples, old.window_ms * NS_PER_MS, old.warm_up_ms > 0)
        self._kept = self._debt(0, now_ms, *measured)

    def _end_ms(self, debt: tuple[int | Fraction, int]) -> int:
        total, since_ms = debt
        return since_ms + self._terms.span_ms(total)

    def _charge(self, amount: int, now_ns: int, total: int, time_ms: int) -> int:
        """`total` and `time_ms` are what `_measure` says before the charge. Returns the debt in ns."""
        now_ms = now_ns // NS_PER_MS
        debt = self._debt(amount, now_ms, total, time_ms)
        asked = debt
        if (
            debt is not None
            and self._is_even(amount, now_ns, total, time_ms)
            and self._debt(0, now_ms, total, time_ms) is None
        ):
            asked = None
        self._kept = debt
        self._advance(now_ms)
        self._count += amount
        self.last_ns = now_ns
        if self._ever is not None:
            self._ever += amount
        return 0 if asked is None else self._end_ms(asked) * NS_PER_MS - now_ns

    def _is_even(self, amount: int, now_ns: int, total: int, time_ms: int) -> bool:
        """Whether at 19/20 of the bound `amount` was earned since the charge before it, and `total` in its time. (Where
        the first-window rule is on. The first charge ever has none before it: it is even if it is one unit.)
        """
        terms = self._terms
        if not terms.warm_up_ms:
            return False
        if self._warm_until_ms == _LONGEST:
            return amount <= 1
        earned = 19 * terms.units * (now_ns - self.last_ns)
        return 20 * amount * terms.per * NS_PER_MS <= earned and 20 * total * terms.per <= 19 * terms.units * time_ms

    def _take_from_window(self, amount: int, charged_ms: int, now_ms: int) -> int:
        """Take `amount` from the window that was open then, unless it is forgotten; returns how much it held of it."""
        if charged_ms >= self._start_ms:
            taken = max(0, min(amount, self._count))
            self._count -= taken
            if not self._count and self._start_ms == self.last_ns // NS_PER_MS:
                self._reopen()
            return taken
        closed = self._closed
        if closed is None:
            return 0
        forgotten_ms = now_ms - self._terms.forget_ms
        for at in range(len(closed) - 3, -1, -3):
            if closed[at + 1] <= forgotten_ms or closed[at + 1] < charged_ms:
                return 0
            if closed[at] <= charged_ms:
                taken = max(0, min(amount, closed[at + 2]))
                closed[at + 2] -= taken
                self._before -= taken
                return taken
        return 0

    def _reopen(self) -> None:
        """The present window is empty as if it had never been opened: the one before is the present one again."""
        closed = self._closed
        if closed:
            self._start_ms, last_ms, self._count = closed[-3:]
            self._before -= self._count
            del closed[-3:]
            self.last_ns = last_ms * NS_PER_MS
        else:
            if self._warm_until_ms == self._start_ms + self._terms.warm_up_ms:
                self._warm_until_ms = _LONGEST  # that was the first charge ever
            self.last_ns = -_LONGEST

    def _capped_room(self, now_ms: int, total: int) -> int:
        """How much can be charged without a debt of more than one window."""
        terms = self._terms
        most_ms = terms.window_ms
        if now_ms >= self._warm_until_ms:
            # The time that the rate is taken over is never less than all windows but one, so that it stays so.
            room = terms.units * terms.forget_ms // terms.per - total
            if self._ever is not None:
                first_ms = self._warm_until_ms - terms.warm_up_ms
                room = min(room, terms.units * (now_ms - first_ms + most_ms) // terms.per - self._ever)
        else:
            first_ms = min(now_ms, self._warm_until_ms - terms.warm_up_ms)
            room = terms.units * (now_ms - first_ms + most_ms) // terms.per - total
        kept = self._kept
        if kept is not None and self._end_ms(kept) > now_ms:
            kept_room = terms.units * (now_ms - kept[1] + most_ms) // terms.per - kept[0]
            room = min(room, floor(kept_room))
        return room

    def _room(self, now_ms: int, total: int, time_ms: int) -> int:
        terms = self._terms
        room = terms.units * time_ms // terms.per - total
        if self._ever is not None and now_ms >= self._warm_until_ms:
            first_ms = self._warm_until_ms - terms.warm_up_ms
            room = min(room, terms.units * (now_ms - first_ms) // terms.per - self._ever)
        return max(0, room)

    def _debt(self, amount: int, now_ms: int, total: int, time_ms: int) -> tuple[int | Fraction, int] | None:
        """The debt a charge of `amount` would leave: that of the windows, the kept one, or that of all charges ever,
        whichever ends last.
        """
        debt = self._debt_of_windows(now_ms, total + amount, time_ms)
        if self._ever is not None and now_ms >= self._warm_until_ms:
            ever = self._ever + amount, self._warm_until_ms - self._terms.warm_up_ms
            if self._end_ms(ever) > (now_ms if debt is None else self._end_ms(debt)):
                debt = ever
        kept = self._kept
        if kept is None or self._end_ms(kept) <= now_ms:
            return debt
        if amount < 0 and now_ms < self._warm_until_ms:
            return debt  # no window is forgotten yet, and what is left in them may be within the bound
        kept = kept[0] + amount, kept[1]
        return kept if self._end_ms(kept) > (now_ms if debt is None else self._end_ms(debt)) else debt

    def _debt_of_windows(self, now_ms: int, total: int, time_ms: int) -> tuple[int | Fraction, int] | None:
        terms = self._terms
        if total * terms.per <= terms.units * time_ms:
            return None
        since_ms = now_ms - time_ms
        if now_ms < self._warm_until_ms:  # where the time may be longer than what has passed
            since_ms = min(now_ms, self._warm_until_ms - terms.warm_up_ms)
        debt = total, since_ms
        return debt if self._end_ms(debt) > now_ms else None  # half a millisecond above the bound is no wait

    def _measure(self, now_ms: int) -> tuple[int, int]:
        """The sum of what is not forgotten (WindowedSum), and the time that it is taken over (Rate.windowSize)."""
        terms = self._terms
        total, oldest_ms = self._count, self._start_ms
        forgotten_ms = now_ms - terms.forget_ms
        closed = self._closed
        if self.last_ns // NS_PER_MS <= forgotten_ms:
            total, oldest_ms = 0, now_ms
        elif closed:
            if closed[1] > forgotten_ms:
                total, oldest_ms = self._before + total, closed[0]
            else:
                for at in range(len(closed) - 3, 0, -3):
                    if closed[at + 1] <= forgotten_ms:
                        break
                    total += closed[at + 2]
                    oldest_ms = closed[at]
        elapsed_ms = now_ms - oldest_ms
        if now_ms < self._warm_until_ms:
            return total, max(elapsed_ms, terms.window_ms)
        missing = terms.samples - 1 - elapsed_ms // terms.window_ms
        if missing > 0:
            elapsed_ms += missing * terms.window_ms
        return total, max(elapsed_ms, 1)

    def _advance(self, now_ms: int) -> None:
        """Drop what is forgotten, and open a window for a charge where the present one is complete."""
        terms = self._terms
        last_ms = self.last_ns // NS_PER_MS
        forgotten_ms = now_ms - terms.forget_ms
        if last_ms <= forgotten_ms:
            if self._warm_until_ms == _LONGEST:
                self._warm_until_ms = now_ms + terms.warm_up_ms
            self._closed = None
            self._before = self._count = 0
            self._start_ms = now_ms
            return
        closed = self._closed
        while closed and closed[1] <= forgotten_ms:
            self._before -= closed[2]
            del closed[:3]
        if now_ms - self._start_ms >= terms.window_ms:
            count = max(-_LONGEST, min(self._count, _LONGEST))
            if closed is None:
                self._closed = array("q", (self._start_ms, last_ms, count))
            else:
                closed.extend((self._start_ms, last_ms, count))
            self._before += count
            self._count = 0
            self._start_ms = now_ms
