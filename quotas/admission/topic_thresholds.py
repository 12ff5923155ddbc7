"""Thresholds of topics under a total: nobody is refused before the total is exceeded, and then only who exceeds too.

The proposal behind it (seed 004 of this project) gives a broker `total.bytes.in.per.sec.threshold` and a topic
`bytes.in.per.sec.threshold`; here there is the same in messages. Its rules, and what they come to:

- the explicit thresholds sum to no more than the total; a change that breaks this is refused (`ThresholdError`), a
  batch as a whole. Thresholds without a total would hold nothing, so they are refused too, and so is taking the total
  away from under them.
- a topic without a threshold has the share `(total - sum of the explicit ones) / (number of known topics without one)`,
  an exact fraction that follows every change and every new topic in O(1). Where the explicit ones take all of the total
  the share is 0: such a topic passes while the total is not exceeded.
- a topic is known from its first use until it is forgotten; explicit thresholds are deducted whether their topic is
  known or not.
- observed rates are one-minute rates (`ewma.Meter`), one of the total and one for each known topic. An amount is
  refused if the observed total *and* the observed topic are above what is expected; else it is recorded on both. A
  change of threshold leaves what was observed as it is.
- only what gets into the log counts as accepted. What a broker answered with an error, and what was throttled, has a
  meter of its own, without a level for topics.

A proxy learns of an error from the response, after it has recorded the request as accepted;
`TopicThreshold.record_error` then refunds the amount: what is still in the mean of it (see `Meter.refund`).

A rate moves only when its meter ticks, so what passes between two ticks has no bound (see `quotas.algorithms.ewma`).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from quotas.admission.limit import UNLIMITED
from quotas.algorithms.claims import CountedClaims
from quotas.algorithms.ewma import Meter


class ThresholdError(ValueError):
    """The thresholds of topics do not fit under the total. All numbers are units per second.

    limit_name     the topics' limit; the total's has "total." in front
    explicit_sum   what the explicit thresholds would sum to
    total          what they would have to fit into; None: there is no total
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
                f"{name} of topics (in sum {explicit_sum}) holds nothing without total.{name}: "
                f"set the total, or remove the thresholds of the topics"
            )
        return (
            f"{name} of all topics would sum to {explicit_sum}, beyond total.{name}={_written(self.total)}: "
            f"raise the total, or lower the thresholds of topics"
        )


def check_thresholds(
    limit_name: str, total: int | Fraction | None, explicit: Mapping[str, int | Fraction]
) -> int | Fraction:
    """Whether these thresholds (of topics, by name) can stand together under this total; their sum.

    Raises ThresholdError when they do not fit, and ValueError for a value that is not above zero.
    """
    if total is not None:
        _check_value(f"total.{limit_name}", total)
    for topic, value in explicit.items():
        _check_value(f"{limit_name} of topic {topic!r}", value)
    explicit_sum = sum(explicit.values())
    if explicit:
        _check_sum(limit_name, explicit_sum, total)
    return explicit_sum


class Thresholds:
    """The total and the topics of one unit: bytes, or messages. Every change costs O(1), but for `replace`.

    limit_name   the topics' limit ("bytes.in.per.sec.threshold"), for messages to users
    accepted     meter of what was let through and not answered with an error since
    erroneous    meter of what was answered with an error
    throttled    meter of what was refused: each amount once, however often it is refused (see `Demand.count_throttled`)
    """

    __slots__ = (
        "_explicit",
        "_explicit_sum",
        "_known",
        "_share",
        "_sharing",
        "_total",
        "accepted",
        "erroneous",
        "limit_name",
        "throttled",
    )

    def __init__(self, limit_name: str) -> None:
        self.limit_name = limit_name
        self.accepted = Meter()
        self.erroneous = Meter()
        self.throttled = Meter()
        self._total: int | Fraction | None = None
        self._explicit: dict[str, int | Fraction] = {}
        self._explicit_sum: int | Fraction = 0
        self._known: dict[str, TopicThreshold] = {}
        self._sharing = 0  # known topics without a threshold of their own
        self._share: int | Fraction | None = UNLIMITED  # None: to be worked out when somebody asks

    def __len__(self) -> int:
        """Topics that are known."""
        return len(self._known)

    @property
    def total(self) -> int | Fraction | None:
        """Units per second; None: nothing is enforced."""
        return self._total

    @property
    def share(self) -> int | Fraction:
        """What each known topic without a threshold may take, or, while there is none, the first one to come."""
        share = self._share
        if share is None:
            share = self._share = self._divided()
        return share

    def threshold_of(self, topic: str) -> int | Fraction:
        """The explicit threshold of a topic, else the share; `UNLIMITED` without a total."""
        explicit = self._explicit.get(topic)
        return self.share if explicit is None else explicit

    def topic(self, name: str) -> TopicThreshold:
        """This topic, which is known from now on."""
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = TopicThreshold(self, name)
            if name not in self._explicit:
                self._sharing += 1
                self._share = None
        return known

    def forget(self, topic: str) -> None:
        """This topic is known no more (if it was), and takes no share; for topics that are idle, or that do not exist.

        Its explicit threshold stays. A `TopicThreshold` that is still in use goes on measuring, for itself and the
        total.
        """
        if self._known.pop(topic, None) is not None and topic not in self._explicit:
            self._sharing -= 1
            self._share = None

    def set_total(self, value: int | Fraction | None) -> None:
        """Change the total; None takes it away. Raises as `check_thresholds`, and then nothing has changed."""
        if value is not None:
            _check_value(f"total.{self.limit_name}", value)
        if self._explicit:
            _check_sum(self.limit_name, self._explicit_sum, value)
        self._total = value
        self._share = None

    def set_topic(self, topic: str, value: int | Fraction | None) -> None:
        """Change the explicit threshold of a topic; None takes it away. Raises as `set_total`."""
        before = self._explicit.get(topic)
        if value is None:
            if before is None:
                return
            del self._explicit[topic]
            self._explicit_sum -= before
            if topic in self._known:
                self._sharing += 1
        else:
            _check_value(f"{self.limit_name} of topic {topic!r}", value)
            explicit_sum = self._explicit_sum - (before or 0) + value
            _check_sum(self.limit_name, explicit_sum, self._total)
            self._explicit[topic] = value
            self._explicit_sum = explicit_sum
            if before is None and topic in self._known:
                self._sharing -= 1
        self._share = None

    def replace(self, total: int | Fraction | None, explicit: Mapping[str, int | Fraction]) -> None:
        """Put these in place of all thresholds, as one step; O(number of them). Raises as `set_total`."""
        self._explicit_sum = check_thresholds(self.limit_name, total, explicit)
        self._total = total
        self._explicit = dict(explicit)
        self._sharing = len(self._known) - sum(topic in self._known for topic in explicit)
        self._share = None

    def record_error(self, amount: int, now_ns: int) -> None:
        """An amount that was never recorded as accepted met an error; see `TopicThreshold.record_error` for others."""
        self.erroneous.record(amount, now_ns)

    def record_throttled(self, amount: int, now_ns: int) -> None:
        """An amount was refused or held, for the first time."""
        self.throttled.record(amount, now_ns)

    def _divided(self) -> int | Fraction:
        if self._total is None:
            return UNLIMITED
        share = Fraction(self._total - self._explicit_sum) / max(1, self._sharing)
        return share.numerator if share.denominator == 1 else share


class TopicThreshold(CountedClaims):
    """One topic under its thresholds: the `Algorithm` of its limit. See the module.

    Amounts are whole units (bytes or messages), durations nanoseconds. "In debt" means that the topic and the total are
    both above what is expected of them; the debt is the time until one of them is not, if nothing more comes.
    """

    __slots__ = ("_thresholds", "accepted", "topic")

    def __init__(self, thresholds: Thresholds, topic: str) -> None:
        self._thresholds = thresholds
        self.topic = topic
        self.accepted = Meter()

    @property
    def rate(self) -> int | Fraction:
        """The topic's threshold now, in units per second; 0 where its share is nothing."""
        return self._thresholds.threshold_of(self.topic)

    @property
    def burst_ns(self) -> int:
        """0: a one-minute rate has no burst."""
        return 0

    @property
    def last_ns(self) -> int:
        """When something of this topic was last recorded."""
        return self.accepted.last_ns

    def admit(self, amount: int, now_ns: int) -> int:
        """Record `amount` on topic and total unless in debt. Returns 0, or, nothing recorded, minus the wait."""
        debt_ns = self.debt_ns(now_ns)
        if debt_ns:
            return -debt_ns
        self.accepted.record(amount, now_ns)
        self._thresholds.accepted.record(amount, now_ns)
        return 0

    def record(self, amount: int, now_ns: int) -> int:
        """Record `amount` on topic and total whatever the state. Returns the debt."""
        self.accepted.record(amount, now_ns)
        self._thresholds.accepted.record(amount, now_ns)
        return self.debt_ns(now_ns)

    def record_capped(self, amount: int, now_ns: int) -> int:
        """Record what leaves, after the next ticks, a debt of at most one tick, and no more. Returns the debt."""
        thresholds = self._thresholds
        if thresholds.total is None:
            return self.record(amount, now_ns)
        room = max(
            thresholds.accepted.capped_room(thresholds.total, now_ns), self.accepted.capped_room(self.rate, now_ns)
        )
        return self.record(min(amount, room), now_ns)

    def refund(self, amount: int, charged_ns: int, now_ns: int) -> None:
        """Take back `amount` that was recorded on topic and total at `charged_ns`; see `Meter.refund`."""
        self.accepted.refund(amount, charged_ns, now_ns)
        self._thresholds.accepted.refund(amount, charged_ns, now_ns)

    def record_error(self, amount: int, charged_ns: int, now_ns: int) -> None:
        """The broker answered an error for `amount` of what was recorded at `charged_ns`: it was not accepted."""
        self.refund(amount, charged_ns, now_ns)
        self._thresholds.record_error(amount, now_ns)

    def record_throttled(self, amount: int, now_ns: int) -> None:
        """An amount for this topic was refused, for the first time."""
        self._thresholds.record_throttled(amount, now_ns)

    def spend(self, amount: int, now_ns: int) -> int:
        """Record `amount` if it fits into `headroom`. Returns what is left of that, or, nothing recorded, -1."""
        left = self.headroom(now_ns) - amount
        if left < 0 or self.debt_ns(now_ns):
            return -1
        self.record(amount, now_ns)
        return left

    def debt_ns(self, now_ns: int) -> int:
        """Nanoseconds until topic and total are not both above what is expected, if nothing more comes."""
        thresholds = self._thresholds
        total = thresholds.total
        # As floats, which is how the meters compare: the same answer here and there.
        if total is None or thresholds.accepted.one_minute_rate(now_ns) <= float(total):
            return 0
        expected = thresholds.threshold_of(self.topic)
        if self.accepted.one_minute_rate(now_ns) <= float(expected):
            return 0
        total_ns = thresholds.accepted.ns_until_at_most(total, now_ns)
        return min(total_ns, self.accepted.ns_until_at_most(expected, now_ns))

    def wait_ns(self, amount: int, now_ns: int) -> int:
        """Nanoseconds until `amount` passes: the debt, whatever the amount."""
        return self.debt_ns(now_ns)

    def headroom(self, now_ns: int) -> int:
        """Whole units that can be recorded before the next ticks so that these do not find both above; 0 when in debt.

        A rate that is above now has no room, even if the next tick will find it below: too little at times, never too
        much. And more than that passes too, until the ticks (see the module).
        """
        thresholds = self._thresholds
        total = thresholds.total
        if total is None:
            return UNLIMITED
        expected = thresholds.threshold_of(self.topic)
        return max(thresholds.accepted.room(total, now_ns), self.accepted.room(expected, now_ns))

    def set_rate(self, rate: int | Fraction, burst_ns: int, now_ns: int) -> None:
        """Set the topic's explicit threshold; there is no burst. Raises as `Thresholds.set_topic`."""
        self._thresholds.set_topic(self.topic, rate)


def _check_value(what: str, value: int | Fraction) -> None:
    if value <= 0:
        raise ValueError(f"{what} must be above zero, not {value}")


def _check_sum(limit_name: str, explicit_sum: int | Fraction, total: int | Fraction | None) -> None:
    if total is None or explicit_sum > total:
        raise ThresholdError(limit_name, explicit_sum, total)


def _written(number: int | Fraction) -> str:
    return str(number.numerator if number.denominator == 1 else float(number))
