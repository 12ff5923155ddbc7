"""Thresholds against a slow model that sums, divides and replays everything anew for each question; and their cost."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from quotas.admission.topic_thresholds import ThresholdError, Thresholds, TopicThreshold
from quotas.algorithms.algorithm import UNLIMITED
from quotas.algorithms.ewma import Meter
from quotas.algorithms.token_bucket import AMPLE
from tests.quotas.admission.thresholds import set_topic, set_total
from tests.quotas.asking import admit, spend
from tests.quotas.cost import CountedName, calls_during

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
BYTES = "bytes.in.per.sec.threshold"

Log = list[tuple[int, int]]


def replayed(log: Log) -> Meter:
    meter = Meter()
    for now_ns, amount in log:
        meter.record(amount, now_ns)
    return meter


@dataclass
class SlowThresholds:
    """The proposal's words, one by one. Knows a topic by the log of what it accepted."""

    total: int | Fraction | None = None
    explicit: dict[str, int | Fraction] = field(default_factory=dict)
    topics: dict[str, Log] = field(default_factory=dict)
    confirmed: set[str] = field(default_factory=set)
    accepted: Log = field(default_factory=list)

    def fits(self, total: int | Fraction | None, explicit: Mapping[str, int | Fraction]) -> bool:
        if not explicit:
            return True
        return total is not None and sum(map(Fraction, explicit.values())) <= total

    def expected(self, topic: str) -> int | Fraction:
        if self.total is None:
            return UNLIMITED
        if topic in self.explicit:
            return self.explicit[topic]
        sharing = [name for name in self.topics if name in self.confirmed and name not in self.explicit]
        return Fraction(self.total - sum(map(Fraction, self.explicit.values()))) / (len(sharing) or 1)

    def exceeded(self, topic: str, now_ns: int) -> bool:
        if self.total is None:
            return False
        observed_total = replayed(self.accepted).one_minute_rate(now_ns)
        observed_topic = replayed(self.topics[topic]).one_minute_rate(now_ns)
        return observed_total > float(self.total) and observed_topic > float(self.expected(topic))

    def headroom(self, topic: str, now_ns: int) -> int:
        if self.total is None:
            return UNLIMITED
        room_of_total = replayed(self.accepted).room(self.total, now_ns)
        return max(room_of_total, replayed(self.topics[topic]).room(self.expected(topic), now_ns))

    def record(self, topic: str, amount: int, now_ns: int) -> None:
        self.topics[topic].append((now_ns, amount))
        self.accepted.append((now_ns, amount))


@dataclass(frozen=True)
class Step:
    do: str
    topic: str
    elapsed_ns: int
    amount: int


@dataclass(frozen=True)
class Change:
    do: str
    topic: str
    total: int | Fraction | None
    explicit: int | Fraction | None
    batch: dict[str, int | Fraction]


TOPICS = "abcd"
# Some of the explicit ones fit under a total and some do not; the amounts make rates below, between and above the two.
totals = st.one_of(st.integers(50, 2000), st.fractions(100, 1000, max_denominator=30))
explicits = st.one_of(st.integers(1, 400), st.fractions(Fraction(1, 10), 400, max_denominator=30))
batches = st.dictionaries(st.sampled_from(TOPICS), explicits, max_size=3)
topics = st.sampled_from(TOPICS)
steps = st.builds(
    Step,
    st.sampled_from(["admit", "admit", "spend", "accepted", "accepted", "accepted"]),
    topics,
    st.one_of(st.integers(0, 12 * SECOND), st.integers(0, SECOND), st.just(MINUTE), st.integers(-SECOND, 0)),
    st.one_of(st.integers(1, 100), st.integers(1, 50_000), st.integers(5_000, 50_000)),
)
changes = st.builds(
    Change,
    st.sampled_from(["forget", "confirm", "confirm", "confirm", "set_topic", "set_topic", "set_total", "replace"]),
    topics,
    st.one_of(totals, totals, totals, totals, st.none()),
    st.one_of(explicits, explicits, st.none()),
    batches,
)
schedules = st.lists(st.one_of(steps, steps, steps, changes), min_size=10, max_size=40)


def changed(do: Any, *arguments: Any) -> bool:
    """Whether a change was taken."""
    try:
        do(*arguments)
    except ThresholdError:
        return False
    return True


@given(totals, st.dictionaries(topics, st.integers(1, 12)), st.sets(topics), schedules)
def test_agrees_with_the_slow_model(
    total: int | Fraction, explicit: dict[str, int | Fraction], known_first: set[str], schedule: list[Step | Change]
) -> None:
    thresholds, model = Thresholds(BYTES), SlowThresholds(total, explicit)
    for name in known_first:
        thresholds.topic(name)
        model.topics[name] = []
    thresholds.replace(total, explicit)
    now_ns = 0
    for step in schedule:
        if isinstance(step, Change):
            change(thresholds, model, step)
        else:
            now_ns += step.elapsed_ns
            use(thresholds.topic(step.topic), model, step, now_ns)
        assert len(thresholds._known) == len(model.topics)
        assert thresholds.total == model.total
        assert thresholds.accepted.count == sum(amount for _, amount in model.accepted)
        for name in TOPICS:
            assert thresholds.threshold_of(name) == model.expected(name)
        for name, log in model.topics.items():
            known = thresholds.topic(name)
            exceeded = model.exceeded(name, now_ns)
            assert (known.debt_ns(now_ns) > 0) == exceeded
            assert known.debt_ns(now_ns, 1) == known.debt_ns(now_ns)
            assert known.headroom(now_ns) == model.headroom(name, now_ns)
            assert known.rate == model.expected(name)
            assert known.accepted.count == sum(amount for _, amount in log)


def change(thresholds: Thresholds, model: SlowThresholds, step: Change) -> None:
    total, explicit = model.total, model.explicit
    match step.do:
        case "forget":
            thresholds.forget(step.topic)
            model.topics.pop(step.topic, None)
            model.confirmed.discard(step.topic)
            return
        case "confirm":
            thresholds.confirm(step.topic)
            model.confirmed |= {step.topic} & model.topics.keys()
            return
        case "set_total":
            total = step.total
            taken = changed(set_total, thresholds, total)
        case "set_topic":
            explicit = {name: value for name, value in explicit.items() if name != step.topic}
            if step.explicit is not None:
                explicit[step.topic] = step.explicit
            taken = changed(set_topic, thresholds, step.topic, step.explicit)
        case _:
            total, explicit = step.total, step.batch
            taken = changed(thresholds.replace, total, explicit)
    assert taken == model.fits(total, explicit)
    if taken:
        model.total, model.explicit = total, explicit


def use(known: TopicThreshold, model: SlowThresholds, step: Step, now_ns: int) -> None:
    model.topics.setdefault(step.topic, [])
    refused = model.exceeded(step.topic, now_ns)
    if step.do == "admit":
        wait_ns = known.debt_ns(now_ns)
        assert admit(known, step.amount, now_ns) == -wait_ns
        assert refused == (wait_ns > 0)
    elif step.do == "spend":
        left = model.headroom(step.topic, now_ns) - step.amount
        assert spend(known, step.amount, now_ns) == (-1 if refused or left < 0 else min(left, AMPLE))
    else:
        known.record_accepted(step.amount, now_ns)
        model.record(step.topic, step.amount, now_ns)


@given(totals, explicits, st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 90_000)), min_size=1, max_size=20))
def test_a_debt_ends_at_its_reported_time(
    total: int | Fraction, explicit: int | Fraction, amounts: list[tuple[str, int]]
) -> None:
    thresholds = Thresholds(BYTES)
    thresholds.replace(total + explicit, {"a": explicit})
    for index, (name, amount) in enumerate(amounts):
        thresholds.topic(name).record_accepted(amount, index * SECOND)
    now_ns = len(amounts) * SECOND + 5 * SECOND
    for name in "ab":
        known = thresholds.topic(name)
        debt_ns = known.debt_ns(now_ns)
        if debt_ns:
            assert known.debt_ns(now_ns + debt_ns - 1) == 1
            assert known.debt_ns(now_ns + debt_ns) == 0


@given(totals, explicits, st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9_000)), min_size=1, max_size=20))
def test_the_headroom_leaves_no_debt_and_a_little_more_does(
    total: int | Fraction, explicit: int | Fraction, amounts: list[tuple[str, int]]
) -> None:
    now_ns = len(amounts) * SECOND
    for beyond in (False, True):
        thresholds = Thresholds(BYTES)
        thresholds.replace(total + explicit, {"a": explicit})
        for index, (name, amount) in enumerate(amounts):
            thresholds.topic(name).record_accepted(amount, index * SECOND)
        known = thresholds.topic("a")
        headroom = known.headroom(now_ns)
        one_is_above = (
            thresholds.accepted.one_minute_rate(now_ns) > total + explicit
            or known.accepted.one_minute_rate(now_ns) > explicit
        )
        if not headroom or (beyond and one_is_above):
            return
        known.record_accepted(headroom + 2 * beyond, now_ns)
        assert known.debt_ns(now_ns) == 0
        after_one_tick_ns = now_ns + 5 * SECOND  # of either meter
        assert (known.debt_ns(after_one_tick_ns) > 0) == beyond


class CountedValue(int):
    """A threshold: what is added to it, and what it is taken from, are calls."""

    def __add__(self, other: int) -> int:
        return int(self) + other

    __radd__ = __add__

    def __rsub__(self, other: int) -> int:
        return other - int(self)


def operations_with(topics: int) -> list[int]:
    """Calls of each kind of change, with that many topics explicit and as many sharing."""
    thresholds = Thresholds(BYTES)
    thresholds.replace(10**9, {CountedName(f"explicit-{i}"): CountedValue(10) for i in range(topics)})
    for i in range(topics):
        thresholds.topic(CountedName(f"explicit-{i}"))
        thresholds.topic(CountedName(f"sharing-{i}"))
        thresholds.confirm(CountedName(f"sharing-{i}"))
    name = CountedName("orders")
    changes: list[Callable[[], object]] = [
        lambda: thresholds.topic(name),
        lambda: thresholds.confirm(name),
        lambda: thresholds.topic(name).record_accepted(1, 0),
        lambda: thresholds.topic(name).debt_ns(60 * SECOND),
        lambda: thresholds.forget(name),
    ]
    return [calls_during(change) for change in changes]


def test_a_change_costs_the_same_with_any_number_of_topics() -> None:
    few = operations_with(3)
    assert few == operations_with(3000)
    assert 0 < min(few) <= max(few) <= 12
