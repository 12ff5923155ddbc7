"""The token bucket: smooth, may go into debt, exact on integers.

The level is kept in *grains*. With a rate of `n / d` units per second (a fraction in lowest terms), one unit is
`d * 1_000_000_000` grains, so that every nanosecond brings exactly `n` grains: no rounding ever, whatever the rate, the
schedule or the number of events. Python's integers have no upper end, so 1 byte/s, 2**53 bytes/s and ten idle years are
all the same code.

Rules, and where they are from:

- starts full; `burst_ns` is nanoseconds of the rate (Kafka's TokenBucket: samples * window; here one second by default)
- out of debt means `level >= 0`; a charge is never refused for being larger than the level, it leaves debt (KIP-599)
- a change of rate keeps the level *in units*, as Kafka's TokenBucket does (it stores tokens and reads the bound anew at
  each record): what was overdrawn stays overdrawn and is paid back at the new rate, so raising a quota frees a client
  sooner. Credit is cut to the new burst. Unlike Kafka, the time before the change earns at the old rate, not the new.
- in any time T at most rate * T + burst + one frame passes (see `claim` for frames that several limits hold)
- a clock that goes back earns nothing and costs nothing: the bucket waits until the clock has caught up
- a refund never leaves more credit than if the amount had not been charged. Without the charge the bucket would have
  been fuller ever since, and would have lost what goes beyond the burst. So a refund gives back no more than the
  smallest room up to the burst that the bucket had since the charge, and nothing if it was full in between.
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
    """What follows from rate and burst, in grains; shared by all buckets that have both in common, never changed.

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
        # Whole rates, nearly all there are, share this one integer object.
        self.unit = NS_PER_SECOND if rate.denominator == 1 else rate.denominator * NS_PER_SECOND
        self.full = rate.numerator * burst_ns


class _Peaks:
    """How close to full the bucket came, and when: what bounds a refund (see `TokenBucket.refund`).

    Entries are (time, room up to full) with growing times and growing rooms: a later entry with less room replaces
    all that had more. Room is in grains. At `_MOST_PEAKS` entries neighbours are merged into one with the later time
    and the smaller room, so that a refund may turn out smaller, never larger.
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
        """The smallest room after this time; None if nothing happened since."""
        entries = self._entries
        first = bisect_right(entries, at_ns, key=_time_of)
        return entries[first][1] if first < len(entries) else None

    def refund(self, grains: int, charged_ns: int) -> None:
        """From `charged_ns` on the bucket counts as fuller by so much."""
        entries, self._entries = self._entries, []
        for at_ns, room in entries:
            self.add(at_ns, room - grains if at_ns > charged_ns else room)

    def convert(self, new_unit: int, old_unit: int) -> None:
        """The grains of a unit change."""
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


# A default quota gives a million clients a bucket each on the same terms: these integers once, not a million times.
_terms = lru_cache(maxsize=1024)(_Terms)


class TokenBucket:
    """One bucket. Amounts are whole units (bytes); times are nanoseconds of any monotonic clock.

    `admit` and `record` are called for every data frame: plain integers, no properties, and the same few lines twice.

    Raises ValueError when the rate is not above zero or the burst is below zero.
    """

    __slots__ = ("_claimed", "_full", "_full_ns", "_level", "_peaks", "_terms", "last_ns")

    last_ns: int
    """Time of the latest `admit`, `record` or `set_rate`; asking (`debt_ns`, `headroom`) leaves it alone."""

    def __init__(self, rate: int | Fraction, burst_ns: int = NS_PER_SECOND) -> None:
        self._terms = _terms(rate, burst_ns)
        self._claimed = 0
        # The largest credit now: that of the terms, less what is claimed.
        self._level = self._full = self._terms.full
        self.last_ns = _BEFORE_ALL_TIME
        self._full_ns = _BEFORE_ALL_TIME  # when it was full last
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
        """Charge `amount` if out of debt. Returns the debt left in ns, or, not charged, *minus* the wait in ns."""
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
        """Charge `amount` whatever the state. Returns the debt in ns."""
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

    def record_capped(self, amount: int, now_ns: int) -> int:
        """Charge what leaves a debt of at most one second, and no more. Returns the debt in ns."""
        self._catch_up(now_ns)
        terms = self._terms
        lowest = -terms.earn * NS_PER_SECOND
        if self._level > lowest:
            self._level = max(lowest, self._level - amount * terms.unit)
        return 0 if self._level >= 0 else -(self._level // terms.earn)

    def refund(self, amount: int, charged_ns: int, now_ns: int) -> None:
        """Give back `amount` units that were charged at `charged_ns`; see the module for how much that is.

        Where the bucket's level has peaked very often since, the smallest room is known to about 3 % of the largest.
        What it gives back is gone from that room too: another refund cannot use it again. A charge that came while the
        clock stood back may get nothing.
        """
        self._catch_up(now_ns)
        grains = self._returnable(amount * self._terms.unit, charged_ns)
        if grains <= 0:
            return
        self._level = min(self._full, self._level + grains)
        if self._peaks is not None:
            self._peaks.refund(grains, charged_ns)

    def spend(self, amount: int, now_ns: int) -> int:
        """Charge `amount` if that leaves no debt. Returns the whole units left, or, not charged, -1."""
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
        """Nanoseconds until out of debt, rounded up; 0 when it is."""
        level = self._level
        if level >= 0:
            return 0
        elapsed_ns = now_ns - self.last_ns
        if elapsed_ns > 0:
            level += elapsed_ns * self._terms.earn
        return 0 if level >= 0 else -(level // self._terms.earn)

    def headroom(self, now_ns: int) -> int:
        """Whole units that can be charged before the bucket is in debt; 0 when it is."""
        level = self._level_at(now_ns)
        return 0 if level <= 0 else level // self._terms.unit

    def wait_ns(self, amount: int, now_ns: int) -> int:
        """Nanoseconds until `amount` could be charged without debt, rounded up; more than the burst: until full."""
        terms = self._terms
        missing = min(amount * terms.unit, self._full) - self._level_at(now_ns)
        return 0 if missing <= 0 else -(-missing // terms.earn)

    def claim(self, amount: int, now_ns: int) -> bool:
        """Charge `amount` for a frame that passes later, when another limit lets it; False: not now.

        Until it has passed (`settle`) the credit may only grow to the burst less the claims, else the bucket would fill
        up while the frame waits, and both would pass at once. For the same reason claims together stay within the
        burst, except that one frame that is larger than the burst may claim alone.

        So in any interval of length T at most rate * T + burst + one frame passes. Where a frame is larger than the
        burst, and another limit may hold it too, its size counts in place of the burst: rate * T + two such frames.
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
        """A claimed frame will never pass: give back what it was charged at `claimed_ns`.

        While it was claimed the burst was smaller by as much, so nothing of it was lost by a full bucket; except for a
        frame that is larger than the burst.
        """
        self._catch_up(now_ns)
        grains = amount * self._terms.unit
        beyond = min(grains, self._claimed - self._terms.full)
        if beyond > 0:
            grains -= beyond - self._returnable(beyond, claimed_ns)
        self._set_claimed(self._claimed - amount * self._terms.unit)
        self._level = min(self._full, self._level + grains)

    def set_rate(self, rate: int | Fraction, burst_ns: int, now_ns: int) -> None:
        """Earn at the old rate until `now_ns` and at the new one from then on.

        The level stays in units (see the module), rounded down to the new grain: by less than a billionth of a unit.
        """
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
        """The level of now is a peak: it falls from here."""
        if self._level >= self._full:
            self._full_ns = at_ns
            self._peaks = None
        else:
            self._add_peak(at_ns, self._full - self._level)

    def _returnable(self, grains: int, charged_ns: int) -> int:
        """How many of these grains, charged then, would be there now without the charge."""
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
