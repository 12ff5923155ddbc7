"""Thresholds of topics under a total (seed 004), in bytes and in messages: a topic is refused only while the total is
exceeded and the topic exceeds its threshold.

- The explicit thresholds sum to at most the total; a change that breaks this is refused as a whole (`ThresholdError`).
  Thresholds without a total would hold nothing, so they are refused, and so is removing the total while they exist.
- A topic without a threshold has the share `(total - sum of the explicit ones) / (number of sharing topics)`, an exact
  fraction, updated in O(1). With a share of 0 a topic passes while the total is not exceeded.
- A topic is known from its first use until `forget`; explicit thresholds are deducted even if their topic is unknown.
- The sharing topics are the known ones without a threshold that exist (`confirm`). A topic that is not confirmed has
  the same share and lowers that of no other: clients can invent names.
- Observed rates are one-minute rates (`ewma.Meter`), one of the total and one for each known topic. A change of
  threshold does not change them.
- Records count when the broker's response says so: as accepted on topic and total, or as erroneous. A request that
  passes is not charged. Erroneous and throttled records have one meter each, not one per topic.

A rate changes only when its meter ticks, so what passes between two ticks is unbounded (see `quotas.algorithms.ewma`).
"""

from collections.abc import Mapping
from fractions import Fraction

from quotas.admission.limit import Limit
from quotas.algorithms.algorithm import UNLIMITED
from quotas.algorithms.ewma import Meter


class ThresholdError(ValueError):
    """The thresholds of topics do not fit under the total. All numbers are units per second.

    limit_name     the topics' limit; the total's has "total." in front
    explicit_sum   the sum of the explicit thresholds
    total          None without a total
    """

    def __init__(self, limit_name: str, explicit_sum: int | Fraction, total: int | Fraction | None) -> None:
        super().__init__(limit_name, explicit_sum, total)
        self.limit_name = limit_name
        self.explicit_sum = explicit_sum
        self.total = total

    def __str__(self) -> str:
        name, explicit_sum = self.limit_name, _written(self.explicit_sum)
        if self.total is None:
            return (
                f"{name} of topics (sum {explicit_sum}) has no effect without total.{name}: "
                f"set the total, or remove the thresholds of topics"
            )
        return (
            f"{name} of all topics sums to {explicit_sum}, above total.{name}={_written(self.total)}: "
            f"raise the total, or lower the thresholds of topics"
        )


def check_thresholds(
    limit_name: str, total: int | Fraction | None, explicit: Mapping[str, int | Fraction]
) -> int | Fraction:
    """The sum of these thresholds (by topic). Raises ThresholdError if they do not fit under the total, and ValueError
    for a value that is not above zero.
    """
    values = {} if total is None else {f"total.{limit_name}": total}
    values |= {f"{limit_name} of topic {topic!r}": value for topic, value in explicit.items()}
    for what, value in values.items():
        if value <= 0:
            raise ValueError(f"{what} must be above zero, not {value}")
    explicit_sum = sum(explicit.values())
    if explicit and (total is None or explicit_sum > total):
        raise ThresholdError(limit_name, explicit_sum, total)
    return explicit_sum


class Thresholds:
    """The total and the topics of one unit: bytes, or messages. Every change costs O(1), except `replace`.

    limit_name   the topics' limit ("bytes.in.per.sec.threshold"), for messages to users
    accepted     meter of what the responses accept
    erroneous    meter of what was answered with an error
    throttled    meter of what was refused or held, each amount once (see `count_throttled`)
    """

    def __init__(self, limit_name: str) -> None:
        self.limit_name = limit_name
        self.accepted = Meter()
        self.erroneous = Meter()
        self.throttled = Meter()
        self._total: int | Fraction | None = None
        self._explicit: dict[str, int | Fraction] = {}
        self._explicit_sum: int | Fraction = 0
        self._known: dict[str, TopicThreshold] = {}
        self._confirmed = 0  # known topics that exist
        self._sharing = 0  # of these, the ones without an explicit threshold
        self._share: int | Fraction | None = UNLIMITED  # None: to be computed on the next read

    @property
    def total(self) -> int | Fraction | None:
        """Units per second; None: nothing is enforced."""
        return self._total

    @property
    def share(self) -> int | Fraction:
        """The rate of each topic without a threshold."""
        share = self._share
        if share is None:
            share = self._share = self._divided()
        return share

    def threshold_of(self, topic: str) -> int | Fraction:
        """The explicit threshold of a topic, else the share; `UNLIMITED` without a total."""
        explicit = self._explicit.get(topic)
        return self.share if explicit is None else explicit

    def topic(self, name: str) -> "TopicThreshold":
        """This topic, known from now on."""
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = TopicThreshold(self, name)
        return known

    def confirm(self, topic: str) -> None:
        """This topic exists: if it is known, it is one of the sharing topics from now on."""
        known = self._known.get(topic)
        if known is not None and not known.exists:
            known.exists = True
            self._add_confirmed(topic, 1)

    def forget(self, topic: str) -> None:
        """Remove an idle or deleted topic from the known ones. Its explicit threshold stays. A `TopicThreshold` that is
        still in use continues to measure.
        """
        known = self._known.pop(topic, None)
        if known is not None and known.exists:
            self._add_confirmed(topic, -1)

    def replace(self, total: int | Fraction | None, explicit: Mapping[str, int | Fraction]) -> None:
        """Replace all thresholds in one step; O(thresholds). Raises as `check_thresholds`, without a change."""
        self._explicit_sum = check_thresholds(self.limit_name, total, explicit)
        self._total = total
        self._explicit = dict(explicit)
        known = self._known
        self._sharing = self._confirmed - sum(topic in known and known[topic].exists for topic in explicit)
        self._share = None

    def _add_confirmed(self, topic: str, number: int) -> None:
        self._confirmed += number
        if topic not in self._explicit:
            self._sharing += number
            self._share = None

    def _divided(self) -> int | Fraction:
        if self._total is None:
            return UNLIMITED
        share = Fraction(self._total - self._explicit_sum) / max(1, self._sharing)
        return share.numerator if share.denominator == 1 else share


class TopicThreshold:
    """One topic under its thresholds: the `Algorithm` of its limit. Passing requests do not charge it: see the module.

    Amounts are whole units (bytes or messages), durations nanoseconds. In debt: topic and total are both above their
    thresholds; the debt is the time until one of them is not, if nothing more is recorded.

    exists   see `Thresholds.confirm`
    passed   units accepted so far
    """

    __slots__ = ("accepted", "exists", "passed", "thresholds", "topic")

    def __init__(self, thresholds: Thresholds, topic: str) -> None:
        self.thresholds = thresholds
        self.topic = topic
        self.accepted = Meter()
        self.exists = False
        self.passed = 0

    @property
    def rate(self) -> int | Fraction:
        """The topic's threshold, in units per second; may be 0."""
        return self.thresholds.threshold_of(self.topic)

    @property
    def burst_ns(self) -> int:
        """0: a one-minute rate has no burst."""
        return 0

    @property
    def last_ns(self) -> int:
        """Time of the latest accepted record."""
        return self.accepted.last_ns

    def record(self, amount: int, now_ns: int) -> int:
        """Records nothing: see `record_accepted`. Returns the debt."""
        return self.debt_ns(now_ns)

    def record_accepted(self, amount: int, now_ns: int) -> None:
        """Record an amount on topic and total that the broker has accepted."""
        self.passed += amount
        self.accepted.record(amount, now_ns)
        self.thresholds.accepted.record(amount, now_ns)

    def debt_ns(self, now_ns: int, more: int = 0) -> int:
        """Nanoseconds until topic or total is within its threshold, if nothing more is recorded: `more` is not."""
        thresholds = self.thresholds
        total = thresholds.total
        # Compared as floats, as in the meters, for the same result.
        if total is None or thresholds.accepted.one_minute_rate(now_ns) <= float(total):
            return 0
        expected = thresholds.threshold_of(self.topic)
        if self.accepted.one_minute_rate(now_ns) <= float(expected):
            return 0
        total_ns = thresholds.accepted.ns_until_at_most(total, now_ns)
        return min(total_ns, self.accepted.ns_until_at_most(expected, now_ns))

    def headroom(self, now_ns: int) -> int:
        """Whole units that can be recorded before the next ticks without debt after them; 0 when in debt.

        A rate that is above its threshold now has no room, even if the next tick will bring it below: sometimes too
        little, never too much. More may pass before the ticks (see the module).
        """
        thresholds = self.thresholds
        total = thresholds.total
        if total is None:
            return UNLIMITED
        expected = thresholds.threshold_of(self.topic)
        return max(thresholds.accepted.room(total, now_ns), self.accepted.room(expected, now_ns))

    def forget_rate(self) -> None:
        """Measure the topic anew; the total stays."""
        last_ns = self.accepted.last_ns
        self.accepted = Meter()
        self.accepted.last_ns = last_ns

    def set_rate(self, rate: int | Fraction, burst_ns: int, now_ns: int) -> None:
        """Nothing: see `Thresholds.replace`."""


def count_throttled(limit: Limit, amount: int, now_ns: int) -> None:
    """Records were refused or held by this limit: thresholds count them."""
    if isinstance(limit.algorithm, TopicThreshold):
        limit.algorithm.thresholds.throttled.record(amount, now_ns)


def _written(number: int | Fraction) -> str:
    return str(number.numerator if number.denominator == 1 else float(number))
