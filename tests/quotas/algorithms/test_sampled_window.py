"""The sampled window against Kafka's bookkeeping replayed from a list of all charges, its vectors, and its bounds."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.algorithms.sampled_window import SampledWindow
from quotas.algorithms.token_bucket import AMPLE
from tests.quotas.asking import admit, spend

MS = 1_000_000
SECOND = 1_000_000_000
TEN_YEARS = 10 * 365 * 86_400 * SECOND


@dataclass
class Sample:
    start_ms: int
    latest_ms: int
    total: int = 0


class SlowWindow:
    """All charges, and Kafka's SampledStat replayed from them for every question: a ring of samples + 1 slots that are
    cleared in place, after each charge (as Kafka's quota check does) and at the question. What is kept beyond that is
    a total and the time since when it is owed.
    """

    def __init__(self, rate: int | Fraction, samples: int, window_ms: int, first_window: bool) -> None:
        self.rate, self.samples, self.window_ms, self.first_window = Fraction(rate), samples, window_ms, first_window
        self.charges: list[tuple[int, int]] = []
        self.kept: tuple[Fraction, Fraction] | None = None
        self.has_changed = False

    def measure(self, now_ms: int) -> tuple[int, int]:
        """Kafka's WindowedSum.measure and Rate.windowSize, or the first-window rule's."""
        ring: list[Sample] = []
        current = 0
        for at_ms, amount in self.charges:
            if not ring:
                ring.append(Sample(at_ms, at_ms))
            if at_ms - ring[current].start_ms >= self.window_ms:
                current = (current + 1) % (self.samples + 1)
                ring[current : current + 1] = [Sample(at_ms, at_ms)]
            ring[current].total += amount
            ring[current].latest_ms = at_ms
            self.purge(ring, at_ms)
        self.purge(ring, now_ms)
        elapsed_ms = now_ms - min((sample.start_ms for sample in ring), default=now_ms)
        if self.is_warming_up(now_ms):
            time_ms = max(elapsed_ms, self.window_ms)
        else:
            whole = elapsed_ms // self.window_ms
            time_ms = max(1, elapsed_ms + max(0, self.samples - 1 - whole) * self.window_ms)
        return sum(sample.total for sample in ring), time_ms

    def purge(self, ring: list[Sample], now_ms: int) -> None:
        for slot, sample in enumerate(ring):
            if now_ms - sample.latest_ms >= self.samples * self.window_ms:
                ring[slot] = Sample(now_ms, now_ms)

    def is_warming_up(self, now_ms: int) -> bool:
        warm_up_ms = max(1, self.samples - 1) * self.window_ms
        return self.first_window and (not self.charges or now_ms - self.charges[0][0] < warm_up_ms)

    def throttle_ms(self, amount: int, now_ms: int) -> int:
        """By the windows alone, if `amount` were charged."""
        total, time_ms = self.measure(now_ms)
        total += amount
        observed = Fraction(total * 1000, time_ms)
        if observed <= self.rate:
            return 0
        throttle = (observed - self.rate) / self.rate * time_ms + Fraction(1, 2)
        throttle_ms = throttle.numerator // throttle.denominator
        if self.is_warming_up(now_ms) and self.charges:
            throttle_ms += time_ms - (now_ms - self.charges[0][0])  # the rate stands still so long
        elif self.is_warming_up(now_ms):
            throttle_ms += time_ms
        return throttle_ms

    def kept_ms(self, amount: int, now_ms: int) -> int:
        if self.kept is None or self.due_ms(*self.kept) <= now_ms:
            return 0
        total, since_ms = self.kept
        return max(0, self.due_ms(total + amount, since_ms) - now_ms)

    def due_ms(self, total: Fraction, since_ms: Fraction) -> int:
        due = since_ms + total * 1000 / self.rate + Fraction(1, 2)
        return due.numerator // due.denominator

    def wait_ms(self, amount: int, now_ms: int) -> int:
        return max(self.throttle_ms(amount, now_ms), self.kept_ms(amount, now_ms), self.ever_ms(amount, now_ms))

    def counts_ever(self, now_ms: int) -> bool:
        return self.first_window and not self.has_changed and bool(self.charges) and not self.is_warming_up(now_ms)

    def ever_ms(self, amount: int, now_ms: int) -> int:
        if not self.counts_ever(now_ms):
            return 0
        total = sum(each for _, each in self.charges) + amount
        return max(0, self.due_ms(Fraction(total), Fraction(self.charges[0][0])) - now_ms)

    def headroom(self, now_ms: int) -> int:
        if self.wait_ms(0, now_ms):
            return 0
        total, time_ms = self.measure(now_ms)
        fits = self.rate * time_ms / 1000
        room = fits.numerator // fits.denominator - total
        if self.counts_ever(now_ms):
            fits = self.rate * (now_ms - self.charges[0][0]) / 1000
            room = min(room, fits.numerator // fits.denominator - sum(each for _, each in self.charges))
        return max(0, room)

    def asks_no_wait(self, amount: int, now_ms: int, now_ns: int, latest_ns: int) -> bool:
        """Finds no debt, and has been earned since the charge before it, at 19/20 of the rate."""
        if not self.first_window or self.wait_ms(0, now_ms):
            return False
        if not self.charges:
            return amount <= 1
        total, time_ms = self.measure(now_ms)
        if total > Fraction(19, 20) * self.rate * time_ms / 1000:
            return False
        return amount <= Fraction(19, 20) * self.rate * (now_ns - latest_ns) / SECOND

    def charge(self, amount: int, now_ms: int) -> int:
        throttle_ms, kept_ms = self.throttle_ms(amount, now_ms), self.kept_ms(amount, now_ms)
        ever_ms = self.ever_ms(amount, now_ms)
        if ever_ms > throttle_ms and ever_ms >= kept_ms:
            self.kept = Fraction(sum(each for _, each in self.charges) + amount), Fraction(self.charges[0][0])
        elif kept_ms > throttle_ms:
            assert self.kept is not None
            self.kept = self.kept[0] + amount, self.kept[1]
        else:
            # Kafka's throttle is the time until the total would be paid, since it began to count.
            total, time_ms = self.measure(now_ms)
            warm = self.is_warming_up(now_ms)
            since_ms = (self.charges[0][0] if self.charges else now_ms) if warm else now_ms - time_ms
            self.kept = (Fraction(total + amount), Fraction(since_ms)) if throttle_ms else None
        self.charges.append((now_ms, amount))
        return max(throttle_ms, kept_ms, ever_ms)

    def change(self, rate: int | Fraction, now_ms: int) -> None:
        left_ms = self.kept_ms(0, now_ms)
        beyond_the_windows = left_ms > self.throttle_ms(0, now_ms)
        owed = left_ms * self.rate / 1000
        self.has_changed = self.has_changed or self.rate != rate
        self.rate = Fraction(rate)
        self.kept = (owed, Fraction(now_ms)) if beyond_the_windows else None
        kept = self.kept
        self.charge(0, now_ms)  # what the windows say at the new rate is kept as well
        self.charges.pop()
        if self.kept is None and kept is not None and self.kept_ms(0, now_ms):
            self.kept = kept


@dataclass(frozen=True)
class Step:
    """After quarters of a window and some ns, do something with an amount and with tenths of what a window brings."""

    do: str
    quarters: int
    elapsed_ns: int
    amount: int
    tenths: int
    rate: int | Fraction


rates = st.one_of(
    st.integers(1, 200),
    st.integers(1, 1 << 53),
    st.fractions(Fraction(1, 100), 200, max_denominator=1000),
)
elapsed = st.one_of(
    st.sampled_from([0, 0, 0, MS, -MS, 1, -1]),
    st.integers(0, 3 * MS),
    st.integers(0, 3 * SECOND),
    st.integers(-SECOND, 0),
    st.just(TEN_YEARS),
)
quarters = st.one_of(st.integers(0, 5), st.integers(0, 5), st.integers(0, 48))
amounts = st.one_of(st.just(0), st.integers(0, 60), st.integers(0, 1 << 54))
steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["admit", "admit", "admit", "spend", "record", "ask", "change"]),
        quarters,
        elapsed,
        st.one_of(st.just(0), st.just(0), amounts),
        st.integers(0, 30),
        rates,
    ),
    min_size=1,
    max_size=60,
)
samples = st.one_of(st.integers(1, 4), st.just(11))
windows_ms = st.sampled_from([1000, 1000, 100, 7, 1])


@given(rates, samples, windows_ms, st.booleans(), steps)
def test_agrees_with_kafkas_bookkeeping_to_the_millisecond(
    rate: int | Fraction, samples: int, window_ms: int, first_window: bool, schedule: list[Step]
) -> None:
    """Every answer of a window on this schedule is the model's."""
    window = SampledWindow(rate, samples=samples, window_ns=window_ms * MS, first_window=first_window)
    model = SlowWindow(rate, samples, window_ms, first_window)
    now_ns, latest_ns = 0, -TEN_YEARS
    for step in schedule:
        now_ns += step.quarters * window_ms * MS // 4 + step.elapsed_ns
        units = step.amount + int(step.tenths * window.rate * window_ms // 10_000)
        clock_ns = max(now_ns, latest_ns)
        now_ms = clock_ns // MS

        def in_ns(wait_ms: int, at_ms: int = now_ms, at_ns: int = clock_ns) -> int:
            return (at_ms + wait_ms) * MS - at_ns if wait_ms else 0

        assert window.debt_ns(now_ns) == in_ns(model.wait_ms(0, now_ms))
        assert window.debt_ns(now_ns, units) == in_ns(model.wait_ms(units, now_ms))
        assert window.headroom(now_ns) == model.headroom(now_ms)
        if step.do == "ask":
            continue
        if step.do == "change":
            window.set_rate(step.rate, 0, now_ns)
            model.change(step.rate, now_ms)
            assert (window.rate, window.debt_ns(now_ns)) == (step.rate, in_ns(model.wait_ms(0, now_ms)))
            continue
        if step.do == "admit":
            held_ms = model.wait_ms(0, now_ms)
            paced = model.asks_no_wait(units, now_ms, clock_ns, latest_ns)
            expected = -in_ns(held_ms) if held_ms else in_ns(model.charge(units, now_ms)) * (not paced)
            assert admit(window, units, now_ns) == expected
            charged = not held_ms
        elif step.do == "spend":
            left = model.headroom(now_ms) - units
            charged = left >= 0 and not model.wait_ms(0, now_ms)
            assert spend(window, units, now_ns) == (min(left, AMPLE) if charged else -1)
            if charged:
                assert model.charge(units, now_ms) == 0
        else:
            paced = model.asks_no_wait(units, now_ms, clock_ns, latest_ns)
            assert window.record(units, now_ns) == in_ns(model.charge(units, now_ms)) * (not paced)
            charged = True
        if charged:
            latest_ns = clock_ns
            assert window.last_ns == latest_ns


attempts = st.lists(st.tuples(st.integers(0, 1200), st.integers(0, 60)), min_size=1, max_size=60)


def pass_through(window: SampledWindow, schedule: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What passes, and when in ms, of frames that are tried in turn, each tried again when its wait is over."""
    passed, now_ms = [], 0
    for pause_ms, amount in schedule:
        now_ms += pause_ms
        while (answer := admit(window, amount, now_ms * MS)) < 0:
            now_ms += -answer // MS
        passed.append((now_ms, amount))
    return passed


@pytest.mark.claim("limits", "the bound of sampled-window")
@given(st.integers(1, 200), samples, st.sampled_from([1000, 100]), st.booleans(), attempts)
def test_what_passes_in_any_time_is_bounded(
    rate: int, samples: int, window_ms: int, first_window: bool, schedule: list[tuple[int, int]]
) -> None:
    window = SampledWindow(rate, samples=samples, window_ns=window_ms * MS, first_window=first_window)
    passed = pass_through(window, schedule)
    in_all_ms = samples * window_ms
    allowed = Fraction(rate * (samples + 1) * window_ms, 1000)
    largest = max(amount for _, amount in passed)
    for at, (now_ms, _) in enumerate(passed):
        before = sum(amount for at_ms, amount in passed[:at] if now_ms - at_ms < in_all_ms)
        assert before <= allowed
        for from_ms, _ in passed[: at + 1]:
            parts = (now_ms - from_ms) // in_all_ms + 1
            assert sum(a for at_ms, a in passed[: at + 1] if at_ms >= from_ms) <= (allowed + largest) * parts


@given(st.integers(1, 200), samples, st.sampled_from([1000, 100]), st.booleans(), attempts)
def test_every_charge_is_paid_for(
    rate: int, samples: int, window_ms: int, first_window: bool, schedule: list[tuple[int, int]]
) -> None:
    schedule = [(pause_ms, amount * rate) for pause_ms, amount in schedule]  # up to a minute's worth each
    passed = pass_through(
        SampledWindow(rate, samples=samples, window_ns=window_ms * MS, first_window=first_window), schedule
    )
    model = SlowWindow(rate, samples, window_ms, first_window)
    for (now_ms, amount), (next_ms, _) in pairwise(passed):
        model.charges.append((now_ms, amount))
        total, time_ms = model.measure(now_ms)
        assert next_ms - now_ms >= Fraction(total * 1000, rate) - time_ms - Fraction(1, 2)


def kafkas(rate: int | Fraction, samples: int = 11, window_ns: int = SECOND) -> SampledWindow:
    return SampledWindow(rate, samples=samples, window_ns=window_ns, first_window=False)


def with_first_window(rate: int | Fraction, samples: int = 11, window_ns: int = SECOND) -> SampledWindow:
    return SampledWindow(rate, samples=samples, window_ns=window_ns, first_window=True)


def observed_rate(window: SampledWindow, now_ns: int) -> Fraction:
    """Units per second, as in Kafka's metric: what is left under two bounds far above it is what each earns in the time
    of the windows, less their sum.
    """
    left = []
    for bound in (10**30, 2 * 10**30):
        asked = copy(window)
        asked.set_rate(bound, 0, now_ns)
        left.append(asked.headroom(now_ns))
    earned = left[1] - left[0]
    return Fraction((earned - left[0]) * 10**30, earned)


def test_kafkas_vector_testquotaviolation() -> None:
    """ClientQuotaManagerTest.testQuotaViolation: 500 B/s; 10 x 400 B a second apart, then 2300 B: 2100 ms."""
    window = kafkas(500)
    assert [window.record(400, second * SECOND) for second in range(10)] == [0] * 10
    now_ns = 10_500 * MS
    assert window.debt_ns(now_ns, 2300) == 2100 * MS
    assert window.record(2300, now_ns) == 2100 * MS
    # "Could continue to see delays until the bursty sample disappears": 5500 bytes since second 2.
    assert admit(window, 400, now_ns + 2100 * MS) == -400 * MS
    assert window.headroom(now_ns + 11 * SECOND) == 5000


@pytest.mark.pure
@pytest.mark.parametrize(("samples", "observed", "throttle_ms"), [(3, 100, 2000), (2, 55, 100), (10, 100, 9000)])
def test_kafkas_vector_quotautils(samples: int, observed: int, throttle_ms: int) -> None:
    """QuotaUtilsTest: bound 50, so many samples of 1 s (the time is one less). Its cap of 500 ms, which cuts the last,
    is a notice's and not the window's.
    """
    window = kafkas(50, samples)
    assert window.record(observed * (samples - 1), 0) == throttle_ms * MS
    assert observed_rate(window, 0) == observed


@pytest.mark.parametrize(
    ("first_window", "at_once", "wait_ms"),
    [
        pytest.param(False, 200, 50, id="Kafka's rule lets ten windows pass"),
        pytest.param(True, 20, 1050, id="the first-window rule lets one pass"),
    ],
)
def test_what_passes_at_once(first_window: bool, at_once: int, wait_ms: int) -> None:
    window = SampledWindow(20, samples=11, window_ns=SECOND, first_window=first_window)
    assert window.headroom(0) == at_once
    assert [window.record(1, 0) for _ in range(at_once)] == [0] * at_once
    assert window.record(1, 0) == wait_ms * MS
    assert window.debt_ns(wait_ms * MS) == 0


@pytest.mark.pure
def test_seed_000_the_31st_connection_waits() -> None:
    """30/s, 2 samples of 1 s, one connection every 25 ms: the rate after the 30th is 30/s."""
    window = with_first_window(30, samples=2)
    assert [window.record(1, event * 25 * MS) for event in range(30)] == [0] * 30
    assert observed_rate(window, 725 * MS) == observed_rate(window, 750 * MS) == 30
    assert spend(window, 1, 750 * MS) == -1
    # At 750 ms the rate after it would stand at 31 until the first second is over, and be 30 after 31/30 s.
    wait_ns = window.debt_ns(750 * MS, 1)
    assert wait_ns == (1033 - 750) * MS
    assert window.record(1, 750 * MS) == wait_ns
    assert window.debt_ns(750 * MS + wait_ns - 1) == 1
    assert window.debt_ns(750 * MS + wait_ns) == 0
    assert window.record(1, 775 * MS) == (1067 - 775) * MS  # the next one a thirtieth later


@pytest.mark.pure
@pytest.mark.parametrize(
    ("at_ms", "events", "with_the_rule", "without"), [(20, 1, 1, 0.98), (90, 3, 3, 2.75), (730, 30, 30, 17.34)]
)
def test_seed_000_rates(at_ms: int, events: int, with_the_rule: int, without: float) -> None:
    fixed, unfixed = with_first_window(30, samples=2), kafkas(30, samples=2)
    for window in (fixed, unfixed):
        for event in range(events):
            window.record(1, event * 25 * MS)
    assert observed_rate(fixed, at_ms * MS) == with_the_rule
    assert float(observed_rate(unfixed, at_ms * MS)) == pytest.approx(without, abs=0.005)


@pytest.mark.pure
@pytest.mark.parametrize("make", [kafkas, with_first_window])
def test_after_long_idleness_the_earlier_windows_count_as_empty(
    make: Callable[[int, int], SampledWindow],
) -> None:
    """Seed 000's other case, with a history: Kafka's rule with and without the first-window rule."""
    window = make(30, 2)
    window.record(1, 0)
    start_ns = TEN_YEARS
    for event in range(30):
        assert window.record(1, start_ns + event * 25 * MS) == 0
    assert observed_rate(window, start_ns + 730 * MS) == Fraction(30 * 1000, 1730)
    assert spend(window, 1, start_ns + 750 * MS) >= 0


def test_a_window_counts_up_to_64_bits_and_the_debt_any_further() -> None:
    window = kafkas(1, samples=2)
    assert window.record(1 << 70, 0) == ((1 << 70) - 1) * SECOND
    assert window.record(1 << 70, SECOND) == ((2 << 70) - 1) * SECOND
