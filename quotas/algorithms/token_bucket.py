"""The token bucket: smooth, may go into debt, exact on integers.

The level is in *grains*. With a rate of `n / d` units per second (in lowest terms), one unit is `d * 1_000_000_000`
grains, so every nanosecond earns exactly `n` grains, without rounding. Python's integers are unbounded, so 1 byte/s,
2**53 bytes/s and ten idle years need no special case.

Rules and their sources:

- Starts full; `burst_ns` is nanoseconds of the rate (Kafka's TokenBucket: samples * window; here 1 s by default).
- Out of debt means `level >= 0`; a charge above the level is not refused, it leaves debt (KIP-599).
- A change of rate keeps the level *in units*, as Kafka's TokenBucket: debt is paid at the new rate, so raising a quota
  releases a client sooner. Credit is cut to the new burst. Unlike Kafka, the time before the change earns at the old
  rate.
- In any time T at most rate * T + burst + one frame passes (for frames that several limits hold see `claim`).
- A clock that goes back earns and costs nothing until it has caught up.
- A refund never leaves more credit than without the charge. Without it the bucket would have been fuller since, and
  would have lost what exceeds the burst. So a refund is at most the smallest room up to the burst since the charge, and
  nothing if the bucket was full in between.
"""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from functools import lru_cache
from typing import Final

NS_PER_SECOND: Final = 1_000_000_000
_BEFORE_ALL_TIME: Final = -(1 << 63)
_MOST_PEAKS: Final = 64


class _Terms:
    """Rate and burst in grains; immutable, shared by all buckets with the same rate and burst.

    earn    grains per nanosecond
    unit    grains per unit
    full    the largest credit
    """

    __slots__ = ("earn", "full", "unit")

    def __init__(self, rate: int | Fraction, burst_ns: int) -> None:
        if rate <= 0:
            raise ValueError(f"rate must be above zero, not {rate}")
        if burst_ns < 0:
            raise ValueError(f"burst_ns must not be below zero, not {burst_ns}")
        self.earn = rate.numerator
        # Whole rates, nearly all, share this integer object.
        self.unit = NS_PER_SECOND if rate.denominator == 1 else rate.denominator * NS_PER_SECOND
        self.full = rate.numerator * burst_ns


class _Peaks:
    """The peaks of the level, which bound a refund (see `TokenBucket.refund`).

    Entries are (time, room up to full in grains), both ascending: an entry replaces earlier ones with more room. At
    `_MOST_PEAKS` entries neighbours are merged, with the later time and the smaller room, so a refund may be too small,
    never too large.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[int, int]] = []

    def add(self, at_ns: int, room: int) -> None:
        entries = self._entries
        while entries and entries[-1][1] >= room:
            at_ns = max(at_ns, entries.pop()[0])
        entries.append((at_ns, room))
        if len(entries) >= _MOST_PEAKS:
            self._merge()

    def least_room_after(self, at_ns: int) -> int | None:
        """The smallest room after this time; None without an entry since."""
        entries = self._entries
        first = bisect_right(entries, at_ns, key=_time_of)
        return entries[first][1] if first < len(entries) else None

    def refund(self, grains: int, charged_ns: int) -> None:
        """Reduce the room after `charged_ns` by `grains`."""
        entries, self._entries = self._entries, []
        for at_ns, room in entries:
            self.add(at_ns, room - grains if at_ns > charged_ns else room)

    def convert(self, new_unit: int, old_unit: int) -> None:
        """Convert the rooms to another grain."""
        self._entries = [(at_ns, room * new_unit // old_unit) for at_ns, room in self._entries]

    def _merge(self) -> None:
        entries = self._entries
        gap = (entries[-1][1] - entries[0][1]) * 2 // _MOST_PEAKS + 1
        merged = [entries[0]]
        for at_ns, room in entries[1:]:
            if room - merged[-1][1] < gap:
                merged[-1] = (at_ns, merged[-1][1])
            else:
                merged.append((at_ns, room))
        self._entries = merged


def _time_of(entry: tuple[int, int]) -> int:
    return entry[0]


# A default quota has up to a million buckets on the same terms.
_terms = lru_cache(maxsize=1024)(_Terms)


class TokenBucket:
    """One bucket. Amounts are whole units (bytes); times are nanoseconds of any monotonic clock.

    `admit` and `record` are called for every data frame: they duplicate lines and use no properties, for speed.

    Raises ValueError if the rate is not above zero or the burst is negative.
    """

    __slots__ = ("_claimed", "_full", "_full_ns", "_level", "_peaks", "_terms", "last_ns")

    last_ns: int
    """Time of the latest change; `debt_ns` and `headroom` do not change it."""

    def __init__(self, rate: int | Fraction, burst_ns: int = NS_PER_SECOND) -> None:
        self._terms = _terms(rate, burst_ns)
        self._claimed = 0
        # The largest credit now: that of the terms less the claims.
        self._level = self._full = self._terms.full
        self.last_ns = _BEFORE_ALL_TIME
        self._full_ns = _BEFORE_ALL_TIME  # when it was last full
        self._peaks: _Peaks | None = None  # since then

    @property
    def rate(self) -> int | Fraction:
        """Units per second."""
        terms = self._terms
        return terms.earn if terms.unit == NS_PER_SECOND else Fraction(terms.earn * NS_PER_SECOND, terms.unit)

    @property
    def burst_ns(self) -> int:
        """The largest credit, as nanoseconds of the rate."""
        return self._terms.full // self._terms.earn

    def admit(self, amount: int, now_ns: int) -> int:
        """Charge `amount` if out of debt. Returns the debt left in ns, or, if not charged, *minus* the wait in ns."""
        terms = self._terms
        level = self._level
        elapsed_ns = now_ns - self.last_ns
        if elapsed_ns > 0:
            self.last_ns = now_ns
            level += elapsed_ns * terms.earn
            if level >= self._full:
                level = self._full
                self._full_ns = now_ns
                self._peaks = None
            else:
                self._add_peak(now_ns, self._full - level)
        if level < 0:
            self._level = level
            return level // terms.earn  # floor of a negative number: the wait is rounded up
        self._level = level = level - amount * terms.unit
        return 0 if level >= 0 else -(level // terms.earn)

    def record(self, amount: int, now_ns: int) -> int:
        """Charge `amount` in any state. Returns the debt in ns."""
        terms = self._terms
        level = self._level
        elapsed_ns = now_ns - self.last_ns
        if elapsed_ns > 0:
            self.last_ns = now_ns
            level += elapsed_ns * terms.earn
            if level >= self._full:
                level = self._full
                self._full_ns = now_ns
                self._peaks = None
            else:
                self._add_peak(now_ns, self._full - level)
        self._level = level = level - amount * terms.unit
        return 0 if level >= 0 else -(level // terms.earn)

    def refund(self, amount: int, charged_ns: int, now_ns: int) -> None:
        """Refund `amount` units that were charged at `charged_ns`, as far as the module's rule allows.

        After many peaks the smallest room is known to about 3 % of the largest. A refund reduces that room, so the next
        one cannot use it again. A charge made while the clock was behind may be refunded nothing.
        """
        self._catch_up(now_ns)
        grains = self._refundable(amount * self._terms.unit, charged_ns)
        if grains <= 0:
            return
        self._level = min(self._full, self._level + grains)
        if self._peaks is not None:
            self._peaks.refund(grains, charged_ns)

    def spend(self, amount: int, now_ns: int) -> int:
        """Charge `amount` if that leaves no debt. Returns the whole units left, or, if not charged, -1."""
        terms = self._terms
        level = self._level
        elapsed_ns = now_ns - self.last_ns
        if elapsed_ns > 0:
            self.last_ns = now_ns
            level += elapsed_ns * terms.earn
            if level >= self._full:
                level = self._full
                self._full_ns = now_ns
                self._peaks = None
            else:
                self._add_peak(now_ns, self._full - level)
            self._level = level
        level -= amount * terms.unit
        if level < 0:
            return -1
        self._level = level
        return level // terms.unit

    def unspend(self, amount: int) -> None:
        """Undo a `spend` of `amount`, with no other call in between."""
        self._level += amount * self._terms.unit

    def debt_ns(self, now_ns: int) -> int:
        """Nanoseconds until out of debt, rounded up."""
        level = self._level
        if level >= 0:
            return 0
        elapsed_ns = now_ns - self.last_ns
        if elapsed_ns > 0:
            level += elapsed_ns * self._terms.earn
        return 0 if level >= 0 else -(level // self._terms.earn)

    def headroom(self, now_ns: int) -> int:
        """Whole units that can be charged before the bucket is in debt."""
        level = self._level_at(now_ns)
        return 0 if level <= 0 else level // self._terms.unit

    def wait_ns(self, amount: int, now_ns: int) -> int:
        """Nanoseconds until `amount` can be charged without debt, rounded up; above the burst, until full."""
        terms = self._terms
        missing = min(amount * terms.unit, self._full) - self._level_at(now_ns)
        return 0 if missing <= 0 else -(-missing // terms.earn)

    def claim(self, amount: int, now_ns: int) -> bool:
        """Charge `amount` for a frame that passes later, after another limit; False: no room now.

        Until `settle` the credit grows only to the burst less the claims: otherwise the bucket could fill while the
        frame waits, and both would pass at once. For the same reason all claims together are at most the burst, except
        for one single frame above the burst.

        So in any time T at most rate * T + burst + one frame passes. For a frame above the burst that several limits
        may hold, its size counts in place of the burst: rate * T + two such frames.
        """
        grains = amount * self._terms.unit
        if self._claimed and self._claimed + grains > self._terms.full:
            return False
        self.record(amount, now_ns)
        self._set_claimed(self._claimed + grains)
        return True

    def settle(self, amount: int, now_ns: int) -> None:
        """A claimed frame passes now."""
        self._catch_up(now_ns)
        self._set_claimed(self._claimed - amount * self._terms.unit)

    def unclaim(self, amount: int, claimed_ns: int, now_ns: int) -> None:
        """A claimed frame will not pass: refund what was charged at `claimed_ns`.

        A claim reduces the burst by as much, so a full bucket loses nothing of it; except for a frame above the burst.
        """
        self._catch_up(now_ns)
        grains = amount * self._terms.unit
        above = min(grains, self._claimed - self._terms.full)
        if above > 0:
            grains -= above - self._refundable(above, claimed_ns)
        self._set_claimed(self._claimed - amount * self._terms.unit)
        self._level = min(self._full, self._level + grains)

    def set_rate(self, rate: int | Fraction, burst_ns: int, now_ns: int) -> None:
        """Earn at the new rate from `now_ns` on. The level stays in units, rounded down to the new grain."""
        self._catch_up(now_ns)
        old, new = self._terms, _terms(rate, burst_ns)
        self._terms = new
        self._set_claimed(self._claimed * new.unit // old.unit)
        self._level = min(self._full, self._level * new.unit // old.unit)
        if self._peaks is not None:
            self._peaks.convert(new.unit, old.unit)
        self._note_level(self.last_ns)

    def _set_claimed(self, grains: int) -> None:
        self._claimed = max(0, grains)
        self._full = max(0, self._terms.full - self._claimed)

    def _add_peak(self, at_ns: int, room: int) -> None:
        if self._peaks is None:
            self._peaks = _Peaks()
        self._peaks.add(at_ns, room)

    def _note_level(self, at_ns: int) -> None:
        """Store the present level as a peak."""
        if self._level >= self._full:
            self._full_ns = at_ns
            self._peaks = None
        else:
            self._add_peak(at_ns, self._full - self._level)

    def _refundable(self, grains: int, charged_ns: int) -> int:
        """How many of these grains the bucket would have now without their charge."""
        if self._full_ns > charged_ns:
            return 0
        room = None if self._peaks is None else self._peaks.least_room_after(charged_ns)
        return grains if room is None else min(grains, room)

    def _catch_up(self, now_ns: int) -> None:
        if now_ns > self.last_ns:
            self._level = self._level_at(now_ns)
            self.last_ns = now_ns
            self._note_level(now_ns)

    def _level_at(self, now_ns: int) -> int:
        elapsed_ns = now_ns - self.last_ns
        if elapsed_ns <= 0:
            return self._level
        return min(self._full, self._level + elapsed_ns * self._terms.earn)
