"""Kafka's sampled window (SampledStat, WindowedSum, Rate and QuotaUtils of Kafka 4) with seed 000's first-window rule.

Charges are counted in windows of W ms. A window opens with the first charge at or after the end of the previous one, so
there may be gaps; it expires when its latest charge is `samples` * W old. The rate is the sum of the windows divided by
the time since the oldest one opened. For that time Kafka takes at least `samples - 1` whole windows: missing ones count
as empty. If the rate is above the bound after a charge, the wait is floor((rate - bound) / bound * time + 1/2) ms. All
of it is exact, in integers; Kafka has doubles.

Kafka expires a window by clearing its slot and setting its start to now. That start has no effect, since the open
window is as old and expires no sooner. So expired windows are dropped here, and reading changes nothing.

Differences from Kafka, on purpose:

- First-window rule (pull request 12034, not merged): windows that never existed do not count as empty. Until
  `samples - 1` windows (at least one) have passed since the first charge of all, the time is that since the first
  charge, at least W. Before W has passed the rate does not fall, so the wait is the time until the rate is at most the
  bound: Kafka's formula plus the rest of W. An entity that was idle has a history and keeps Kafka's rule.
- With that rule, all charges since the first one count against the bound as well, until the bound changes: otherwise
  windows that expire while their debt is paid would not be paid for.
- With that rule, an evenly spaced charge has no wait (`record` returns 0), though its debt holds a charge
  that follows too early. Evenly spaced: it finds no debt, 19/20 of the bound earned it since the previous charge, and
  the sum of the windows in their time. Kafka counts k events over k - 1 intervals: with fewer than ten events in that
  time, an even load at 0.9 of the bound is above it at each event.
- The debt of a charge is paid in full, even if its windows expire earlier. (With Kafka another connection of the client
  would pass then.) A charge during such a debt is added to it.
- A request that finds debt is held before it is charged; Kafka charges it and then holds it.
- Times are rounded down to milliseconds, like those of Kafka's clock, and a debt ends at a whole one.

Guarantees. R is the bound, F the largest single charge; add half a millisecond of R to each (Kafka's rounding):

- When a charge passes, the charges in the `samples` * W before it are at most R * (samples + 1) * W. So in a time T at
  most R * (samples + 1) * W + F passes for each `samples` * W, or part of it, in T.
- After a charge that leaves the sum S over the time t, nothing passes for S / R - t: a charge larger than all windows
  together is paid in full.
- With the first-window rule at most R * max(T, W) + F passes in the first T after the first charge; without it, and
  after an idle time, R * (samples - 1) * W + F may pass at once.
- With the first-window rule, evenly spaced charges of one amount at up to 0.9 of the bound find no debt and have no
  wait, except for a first one above one unit and above R * W.

A debt may begin, or get longer than reported, without a charge: when a window ends or expires, the time of the sum can
get shorter, and the rate rises. During the warm-up of the first-window rule it never does.

A debt is a total and its start: it ends when the bound could have earned the total since then. `_debt` has up to three,
and the one that ends last counts. For example, with a bound of 100 a second, `samples` = 3, W = 1 s, and the
first-window rule:

    time in s         0    0.5    1    1.5    2    2.5    3    3.5    4
    charges           250                           150 (at 2.6)
    debt              |------ 250 since 0 ----|     |- 400 since 0 -|      ends at 2.5; then at 4.0
    of the windows    |-----------------------|     |---|                  the window of 0 expires at 3.0
    kept (`_kept`)                                  |---------------|      as it was at the charge of 2.6
    of all charges                                  |---------------|      `_counts_all`: all since 0, 400

`_warm_until_ms` is the time, here 2.0, until which the rate is taken over the time since the first charge.
"""

from array import array
from fractions import Fraction
from functools import lru_cache
from typing import Final

from quotas.time_units import NS_PER_MS

_LONGEST: Final = (1 << 63) - 1


class _Terms:
    """The bound and the windows as integers; immutable, shared by all windows with the same settings.

    units, per   total * per > units * window_ms: the rate of the total is above the bound
    forget_ms    age of its latest charge at which a window expires
    warm_up_ms   how long the first-window rule applies; 0 if it is off
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
        """The time in which the bound earns `total`, rounded as by Java's Math.round."""
        return (2 * total * self.per + self.units) // (2 * self.units)


_terms = lru_cache(maxsize=1024)(_Terms)


class SampledWindow:
    """One rate over sampled windows. Amounts are whole units; times are nanoseconds of any monotonic clock.

    rate          the bound, in units per second
    samples       `quota.window.num`
    window_ns     `quota.window.size.seconds`, in whole milliseconds
    first_window  whether the first-window rule applies

    A clock that goes back counts as unchanged until it has caught up. The count of a window is at most 2**63 - 1.

    Raises ValueError if the rate is not above zero, there is no sample, or the window is not whole milliseconds.
    """

    __slots__ = (
        "_before",
        "_closed",
        "_count",
        "_counts_all",
        "_kept",
        "_start_ms",
        "_terms",
        "_warm_until_ms",
        "last_ns",
        "passed",
    )

    last_ns: int
    """Time of the latest charge."""
    passed: int
    """Units charged so far."""

    def __init__(self, rate: int | Fraction, *, samples: int, window_ns: int, first_window: bool) -> None:
        self._terms = _terms(rate, samples, window_ns, first_window)
        self._closed: array[int] | None = None  # start, latest charge, count of each closed window, the oldest first
        self._before = 0  # the sum of the closed windows
        self._count = 0
        self._start_ms = 0
        self._kept: tuple[int | Fraction, int] | None = None  # the debt of the latest charge: total, start in ms
        self._warm_until_ms = _LONGEST if first_window else -_LONGEST
        self.last_ns = -_LONGEST
        self.passed = 0
        self._counts_all = first_window  # whether `passed` counts against the bound

    @property
    def rate(self) -> int | Fraction:
        """The bound, in units per second."""
        return self._terms.rate

    @property
    def burst_ns(self) -> int:
        """All windows together, `samples` * W: everything expires after this time without a charge."""
        return self._terms.forget_ms * NS_PER_MS

    def record(self, amount: int, now_ns: int) -> int:
        """Charge `amount` in any state. Returns the debt in ns, or 0 if the charge is evenly spaced: see the module."""
        if now_ns < self.last_ns:
            now_ns = self.last_ns
        now_ms = now_ns // NS_PER_MS
        total, time_ms = self._measure(now_ms)
        debt = self._debt(amount, now_ms, total, time_ms)
        wait = debt
        if (
            debt is not None
            and self._is_even(amount, now_ns, total, time_ms)
            and self._debt(0, now_ms, total, time_ms) is None
        ):
            wait = None
        self._kept = debt
        self._advance(now_ms)
        self._count += amount
        self.passed += amount
        self.last_ns = now_ns
        return 0 if wait is None else self._end_ms(wait) * NS_PER_MS - now_ns

    def debt_ns(self, now_ns: int, more: int = 0) -> int:
        """Nanoseconds until out of debt if `more` units were charged now, by Kafka's formula. It may get longer without
        a charge: see the module.
        """
        if now_ns < self.last_ns:
            now_ns = self.last_ns
        now_ms = now_ns // NS_PER_MS
        debt = self._debt(more, now_ms, *self._measure(now_ms))
        return 0 if debt is None else self._end_ms(debt) * NS_PER_MS - now_ns

    def headroom(self, now_ns: int) -> int:
        """Whole units that can be charged before the rate is above the bound."""
        now_ms = max(now_ns, self.last_ns) // NS_PER_MS
        total, time_ms = self._measure(now_ms)
        return self._room(now_ms, total, time_ms) if self._debt(0, now_ms, total, time_ms) is None else 0

    def set_rate(self, rate: int | Fraction, burst_ns: int, now_ns: int) -> None:
        """Change the bound. Counts stay, as in Kafka, and so does debt of expired windows. `burst_ns` is not used."""
        old = self._terms
        if rate != old.rate:
            self._counts_all = False
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

    def _is_even(self, amount: int, now_ns: int, total: int, time_ms: int) -> bool:
        """Whether 19/20 of the bound earned `amount` since the previous charge and `total` in its time. With the
        first-window rule only; the first charge of all is even if it is one unit.
        """
        terms = self._terms
        if not terms.warm_up_ms:
            return False
        if self._warm_until_ms == _LONGEST:
            return amount <= 1
        earned = 19 * terms.units * (now_ns - self.last_ns)
        return 20 * amount * terms.per * NS_PER_MS <= earned and 20 * total * terms.per <= 19 * terms.units * time_ms

    def _room(self, now_ms: int, total: int, time_ms: int) -> int:
        terms = self._terms
        room = terms.units * time_ms // terms.per - total
        if self._counts_all and now_ms >= self._warm_until_ms:
            first_ms = self._warm_until_ms - terms.warm_up_ms
            room = min(room, terms.units * (now_ms - first_ms) // terms.per - self.passed)
        return max(0, room)

    def _debt(self, amount: int, now_ms: int, total: int, time_ms: int) -> tuple[int | Fraction, int] | None:
        """The debt after a charge of `amount`: of the windows, of `_kept` or of all charges, whichever ends last."""
        debt = self._debt_of_windows(now_ms, total + amount, time_ms)
        if self._counts_all and now_ms >= self._warm_until_ms:
            ever = self.passed + amount, self._warm_until_ms - self._terms.warm_up_ms
            if self._end_ms(ever) > (now_ms if debt is None else self._end_ms(debt)):
                debt = ever
        kept = self._kept
        if kept is None or self._end_ms(kept) <= now_ms:
            return debt
        kept = kept[0] + amount, kept[1]
        return kept if self._end_ms(kept) > (now_ms if debt is None else self._end_ms(debt)) else debt

    def _debt_of_windows(self, now_ms: int, total: int, time_ms: int) -> tuple[int | Fraction, int] | None:
        terms = self._terms
        if total * terms.per <= terms.units * time_ms:
            return None
        since_ms = now_ms - time_ms
        if now_ms < self._warm_until_ms:  # the time may be longer than the elapsed time
            since_ms = min(now_ms, self._warm_until_ms - terms.warm_up_ms)
        debt = total, since_ms
        return debt if self._end_ms(debt) > now_ms else None  # below half a millisecond

    def _measure(self, now_ms: int) -> tuple[int, int]:
        """The sum of the windows (WindowedSum), and its time (Rate.windowSize)."""
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
        """Drop expired windows, and open a new one if the present one has ended."""
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
            count = min(self._count, _LONGEST)
            if closed is None:
                self._closed = array("q", (self._start_ms, last_ms, count))
            else:
                closed.extend((self._start_ms, last_ms, count))
            self._before += count
            self._count = 0
            self._start_ms = now_ms
