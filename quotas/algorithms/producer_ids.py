"""The quota of producer ids (KIP-936, seed 001): new ids of a user per window.

A broker keeps state for every producer id for a day, so a client that opens a producer for each message can use up its
memory. A recently seen id is known and costs nothing (`layered_bloom_filter`); a new one is counted. How to call it for
a frame, without the -1 of batches that are not idempotent:

    new = quota.unknown(ids, now_ns)
    new:       the frame passes if `quota` is out of debt, and is charged with len(new), through a `Limit`; after it has
               passed: quota.remember(new, now_ns)
    not new:   the frame costs nothing and is never held
    held:      call `unknown` again when it is served, because another frame may have added the same id

Rules where KIP and seed are silent:

- New ids are counted in steps, by the rule of the filter's layers: a step ends after `window / count`, or when it
  contains the share of one layer, and counts for a window from its start. So at most one step's share expires too
  early: any window contains at most the limit, that share, and the ids of the last frame above the limit.
- Out of debt means below the limit: a frame with several new ids passes whole, and may exceed the limit.
- A false positive (1 % of new ids at P = 0.01) makes the quota more lenient, never stricter.
- Counting and remembering are separate: what a full quota must take (a dry run) grows the filter by its own rule and
  adds to the newest step, so both stay bounded.
- A limit below one id per window counts as one.
"""

from collections.abc import Iterable
from fractions import Fraction
from math import floor
from typing import Final

from quotas.algorithms.layered_bloom_filter import LayeredBloomFilter
from quotas.time_units import NS_PER_SECOND

_BEFORE_ALL_TIME: Final = -(1 << 63)


class _Step:
    """New ids counted in one step of the window, until `expires_ns`."""

    __slots__ = ("expires_ns", "ids", "started_ns")

    def __init__(self, ids: int, started_ns: int, expires_ns: int) -> None:
        self.ids = ids
        self.started_ns: Final = started_ns
        self.expires_ns: Final = expires_ns


class ProducerIdQuota:
    """The producer ids of one user: the algorithm of a `Limit`, and the filter of known ids.

    Amounts are new ids; times are nanoseconds of any monotonic clock, which counts as unchanged while it goes back.

    ids_per_window                the limit
    window_ns                     `producer.id.quota.window.size.seconds`
    window_count                  `producer.id.quota.window.count`
    false_positive_probability    the share of new ids that may count as known
    salt                          a random number of this process: clients cannot search for colliding ids

    Raises ValueError if the limit is not above zero, for a window or a count below 1, and for a probability that is not
    above 0 and below 1.
    """

    __slots__ = ("_counted", "_filter", "_limit", "_steps", "last_ns", "passed", "rate")

    rate: int | Fraction
    """The limit as ids per second."""

    last_ns: int
    """Time of the latest use; `debt_ns` and `headroom` do not change it."""
    passed: int
    """New ids counted so far."""

    def __init__(
        self,
        ids_per_window: int | Fraction,
        *,
        window_ns: int,
        window_count: int,
        false_positive_probability: float = 0.01,
        salt: int = 0,
    ) -> None:
        self._filter = LayeredBloomFilter(
            1,
            window_ns=window_ns,
            window_count=window_count,
            false_positive_probability=false_positive_probability,
            salt=salt,
        )
        self._steps: list[_Step] = []
        self._counted = 0  # of all steps in the list, expired ones included
        self.last_ns = _BEFORE_ALL_TIME
        self.passed = 0
        self.set_limit(ids_per_window)

    # ---- which ids are new

    def unknown(self, producer_ids: Iterable[int], now_ns: int) -> tuple[int, ...]:
        """The ids not seen within the window, each once, in order; the others count as seen now."""
        at_ns = self._pass_time(now_ns)
        see = self._filter.see
        new: dict[int, None] = {}
        for producer_id in producer_ids:
            if producer_id not in new and not see(producer_id, at_ns):
                new[producer_id] = None
        return tuple(new)

    def known_until_ns(self, producer_id: int, now_ns: int) -> int | None:
        """Whether this one is known: until when `unknown` needs not be asked for it again. None: it is new."""
        return None if self.unknown((producer_id,), now_ns) else self._filter.known_until_ns

    def remember(self, producer_ids: Iterable[int], now_ns: int) -> None:
        """Add the ids to the known ones. Counts nothing: see `record`."""
        at_ns = self._pass_time(now_ns)
        for producer_id in producer_ids:
            self._filter.put(producer_id, at_ns)

    def clean_up(self, now_ns: int) -> None:
        """Release the memory of expired layers."""
        self._filter.clean_up(now_ns)

    @property
    def empty_ns(self) -> int:
        """When the last known and the last counted id expire."""
        layers = self._filter.layers
        return max(
            layers[-1].expires_ns if layers else _BEFORE_ALL_TIME,
            self._steps[-1].expires_ns if self._steps else _BEFORE_ALL_TIME,
        )

    # ---- how many new ones (`quotas.algorithms.algorithm.Algorithm`)

    @property
    def ids_per_window(self) -> int:
        """The limit in whole ids."""
        return self._limit

    @property
    def burst_ns(self) -> int:
        """The window: its whole limit may pass at once."""
        return self._filter.window_ns

    def record(self, amount: int, now_ns: int) -> int:
        """Count `amount` in any state. Returns 0 in spite of debt: the ids are known now, so this client need not wait.
        The debt is for the next new ids.
        """
        at_ns = self._pass_time(now_ns)
        self._drop_expired(at_ns)
        if amount > 0:
            self.passed += amount
            self._count(amount, at_ns)
        return 0

    def debt_ns(self, now_ns: int, more: int = 0) -> int:
        """Nanoseconds until fewer than the limit are counted; 0 when they are. No client waits for `more`, which would
        be known then.
        """
        return 0 if self._counted < self._limit else self._until_at_most(self._limit - 1, now_ns)

    def headroom(self, now_ns: int) -> int:
        """How many more fit into the window."""
        return max(0, self._limit - self._live(max(now_ns, self.last_ns)))

    def set_rate(self, rate: int | Fraction, burst_ns: int, now_ns: int) -> None:
        """Like `set_limit`, in ids per second. `burst_ns` is not used."""
        self.set_limit(Fraction(rate) * self._filter.window_ns / NS_PER_SECOND)

    def set_limit(self, ids_per_window: int | Fraction) -> None:
        """Change the limit. Counted and known ids stay; new layers fit the new limit. Raises ValueError if it is not
        above zero.
        """
        if ids_per_window <= 0:
            raise ValueError(f"ids_per_window must be above zero, not {ids_per_window}")
        rate = Fraction(ids_per_window) * NS_PER_SECOND / self._filter.window_ns
        self.rate = rate.numerator if rate.denominator == 1 else rate
        self._limit = max(1, floor(ids_per_window))
        self._filter.ids_per_layer = -(-self._limit // self._filter.window_count)

    def forget_counted(self) -> None:
        """Reset the count. Known ids stay known."""
        self._steps, self._counted = [], 0

    # ---- the steps

    def _pass_time(self, now_ns: int) -> int:
        if now_ns > self.last_ns:
            self.last_ns = now_ns
        return self.last_ns

    def _count(self, amount: int, at_ns: int) -> None:
        newest = self._steps[-1] if self._steps else None
        if (
            newest is None
            or at_ns >= newest.started_ns + self._filter.layer_ns
            or (newest.ids + amount > self._filter.ids_per_layer and self._counted < self._limit)
        ):
            newest = _Step(0, at_ns, at_ns + self._filter.window_ns)
            self._steps.append(newest)
        newest.ids += amount
        self._counted += amount

    def _drop_expired(self, at_ns: int) -> None:
        while self._steps and self._steps[0].expires_ns <= at_ns:
            self._counted -= self._steps.pop(0).ids

    def _live(self, at_ns: int) -> int:
        return self._counted - sum(step.ids for step in self._steps if step.expires_ns <= at_ns)

    def _until_at_most(self, most: int, now_ns: int) -> int:
        at_ns = max(now_ns, self.last_ns)
        left = self._counted
        wait_ns = 0
        for step in self._steps:
            if left <= most:
                break
            left -= step.ids
            wait_ns = max(0, step.expires_ns - at_ns)
        return wait_ns
