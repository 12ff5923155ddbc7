"""A bucket whose rate is granted, as a fraction of units: the model of `LeasedBucket`."""

from fractions import Fraction
from math import ceil

SECOND = 1_000_000_000
FOR_EVER = 1 << 62


class SlowLease:
    """Tokens as a fraction of units. `earned`: the integral of the rates in force."""

    def __init__(self, rate: int | Fraction, burst_ns: int) -> None:
        self.rate = Fraction(rate)
        self.burst_ns = burst_ns
        self.until_ns = FOR_EVER
        self.floor = self.rate
        self.tokens = self.burst
        self.earned = Fraction(0)
        self.now_ns = 0

    @property
    def burst(self) -> Fraction:
        return self.rate * self.burst_ns / SECOND

    def pass_time(self, now_ns: int) -> None:
        if now_ns > self.until_ns:
            self._earn(self.until_ns)
            self._change(self.floor, self.burst_ns, FOR_EVER)
        self._earn(now_ns)

    def grant(self, rate: int | Fraction, burst_ns: int, until_ns: int, floor: int | Fraction, now_ns: int) -> None:
        self.pass_time(now_ns)
        self._change(Fraction(rate), burst_ns, until_ns)
        self.floor = Fraction(floor)

    def debt_ns(self) -> int:
        """Until out of debt, if nothing more happens."""
        wait_ns = max(Fraction(0), -self.tokens / self.rate * SECOND)
        left_ns = self.until_ns - self.now_ns
        if wait_ns > left_ns:
            owed_then = -self.tokens - self.rate * left_ns / SECOND
            wait_ns = left_ns + owed_then / self.floor * SECOND
        return ceil(wait_ns)

    def _earn(self, now_ns: int) -> None:
        amount = self.rate * max(0, now_ns - self.now_ns) / SECOND
        self.earned += amount
        self.tokens = min(self.burst, self.tokens + amount)
        self.now_ns = max(now_ns, self.now_ns)

    def _change(self, rate: Fraction, burst_ns: int, until_ns: int) -> None:
        self.rate, self.burst_ns, self.until_ns = rate, burst_ns, until_ns
        self.tokens = min(self.burst, self.tokens)
