"""The interface of all algorithms, and the choice of one."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Protocol

from quotas.algorithms.ewma import Ewma
from quotas.algorithms.leased_bucket import LeasedBucket
from quotas.algorithms.paced_window import PacedWindow
from quotas.algorithms.producer_ids import ProducerIdQuota
from quotas.algorithms.sampled_window import SampledWindow
from quotas.algorithms.token_bucket import TokenBucket
from quotas.limit_kinds import LIMIT_KINDS, PRODUCER_IDS_RATE, Measure
from quotas.time_units import NS_PER_SECOND

TOKEN_BUCKET: Final = "token-bucket"  # noqa: S105 - no password
SAMPLED_WINDOW: Final = "sampled-window"
EWMA: Final = "ewma"
ALGORITHMS: Final = (TOKEN_BUCKET, SAMPLED_WINDOW, EWMA)


UNLIMITED: Final = (1 << 63) - 1
"""The headroom without a limit."""


class Algorithm(Protocol):
    """The bucket of a limit. Durations are nanoseconds, amounts whole units (bytes, ...).

    In debt: a token bucket below zero, or a rate above its bound.
    """

    @property
    def rate(self) -> int | Fraction:
        """Units per second."""

    @property
    def burst_ns(self) -> int:
        """How much may pass at once after a pause, as nanoseconds of the rate; 0 if undefined."""

    @property
    def last_ns(self) -> int:
        """Time of the latest use."""

    @property
    def passed(self) -> int:
        """Units charged so far: only grows. Readers keep their own last value."""

    def record(self, amount: int, now_ns: int, /) -> int:
        """Charge `amount` in any state. Returns the debt, or 0 if the client needs not wait for it."""

    def debt_ns(self, now_ns: int, more: int = 0, /) -> int:
        """Time until out of debt, if `more` units were charged now. EWMA and thresholds, whose debts do not depend on
        the amount of a charge before the next tick, and producer ids ignore `more`.
        """

    def headroom(self, now_ns: int, /) -> int:
        """Whole units that can be charged before it is in debt."""

    def set_rate(self, rate: int | Fraction, burst_ns: int, now_ns: int, /) -> None:
        """Change the rate as of `now_ns`; earlier charges remain."""


@dataclass(frozen=True, slots=True)
class AlgorithmSettings:
    """The algorithm flags, for entries without their own options.

    window_num, window_ns                   `quota.window.num`, `quota.window.size.seconds` of sampled windows
    first_window                            the rule of PR 12034 (see `quotas.algorithms.sampled_window`)
    producer_ids_window_ns, .._count        `producer.id.quota.window.size.seconds`, `producer.id.quota.window.count`
    producer_ids_salt                       a random number of this process (see `quotas.algorithms.producer_ids`)
    leases                                   whether the rates of token buckets are set by a rule (`LeasedBucket`)

    Raises ValueError for an unknown algorithm, and for numbers that the algorithms would refuse later.
    """

    algorithm: str = TOKEN_BUCKET
    burst_ns: int = NS_PER_SECOND
    window_num: int = 11
    window_ns: int = NS_PER_SECOND
    first_window: bool = True
    producer_ids_window_ns: int = 3600 * NS_PER_SECOND
    producer_ids_window_count: int = 4
    producer_ids_salt: int = 0
    leases: bool = False

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, not {self.algorithm!r}")
        TokenBucket(1, self.burst_ns)
        self._sampled_window(1)
        self._producer_ids(1)

    def class_of(self, limit_name: str, own: str | None, *, moves: bool = False) -> type[Algorithm]:
        """The algorithm of a limit: that of its entry, `own`, otherwise that of the limit (KIP-612: sampled windows,
        which are paced unless they must be exactly Kafka's), otherwise that of the flag. `moves`: its rate is set by a
        rule, whatever the others are.
        """
        if moves:
            return LeasedBucket
        if limit_name == PRODUCER_IDS_RATE:
            return ProducerIdQuota
        if own is None and LIMIT_KINDS[limit_name].measure is Measure.CONNECTION_RATE:
            return PacedWindow if self.first_window else SampledWindow
        name = own or self.algorithm
        if name == TOKEN_BUCKET:
            return LeasedBucket if self.leases else TokenBucket
        return Ewma if name == EWMA else SampledWindow

    def make(
        self, limit_name: str, rate: int | Fraction, own: str | None, burst_ns: int | None, *, moves: bool = False
    ) -> Algorithm:
        """A new algorithm of `rate` units per second; `own` and `burst_ns` are the entry's. `moves`: see `class_of`."""
        made = self.class_of(limit_name, own, moves=moves)
        if made is ProducerIdQuota:
            return self._producer_ids(rate)
        if made is Ewma:
            return Ewma(rate)
        if issubclass(made, SampledWindow):
            return self._sampled_window(rate, made)
        return (LeasedBucket if made is LeasedBucket else TokenBucket)(
            rate, self.burst_ns if burst_ns is None else burst_ns
        )

    def per_second(self, limit_name: str, rate: int | Fraction) -> int | Fraction:
        """A configured value as units per second: producer ids are configured per window."""
        if limit_name != PRODUCER_IDS_RATE:
            return rate
        return Fraction(rate) * NS_PER_SECOND / self.producer_ids_window_ns

    def _sampled_window(self, rate: int | Fraction, made: type[SampledWindow] = SampledWindow) -> SampledWindow:
        return made(rate, samples=self.window_num, window_ns=self.window_ns, first_window=self.first_window)

    def _producer_ids(self, ids_per_window: int | Fraction) -> ProducerIdQuota:
        return ProducerIdQuota(
            ids_per_window,
            window_ns=self.producer_ids_window_ns,
            window_count=self.producer_ids_window_count,
            salt=self.producer_ids_salt,
        )
