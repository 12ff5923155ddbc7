"""The limit that all producers share while the disk guard slows or stops them, and what streams read of the guard.

It is an ordinary limit with a leased rate, which a client has only while the guard is active. Clients pass it before
their own limits, so that a request that is refused here was charged to no other limit.
"""

from collections.abc import Iterable
from fractions import Fraction
from typing import Final

from quotas.admission.limit import Limit
from quotas.algorithms.leased_bucket import LeasedBucket
from quotas.entity import TOTAL
from quotas.exemption import Exemption
from quotas.limit_kinds import DISK_GUARD
from quotas.time_units import NS_PER_MS, NS_PER_SECOND

BURST_NS: Final = 100 * NS_PER_MS
#: While producers are stopped, the limit owes one byte that it earns in this time, and is charged another one before.
_STOPPED: Final = Fraction(1, 60)
_LEAST_STOP_NS: Final = 30 * NS_PER_SECOND
HOLD_NS: Final = 15 * NS_PER_SECOND
"""A request is held for half of its client's timeout, at most this long: Java's is 30 s. Then it is refused."""
USUAL_TIMEOUT_MS: Final = 30_000
TOGETHER_NS: Final = 50 * NS_PER_MS
"""A request that arrives so soon after a refused one of its connection waited behind it: it is refused at once. Clients
wait longer before they send a request again.
"""
TRANSACTION_NS: Final = 60 * NS_PER_SECOND
"""How long open transactions may go on when producers are stopped: Java's transaction.timeout.ms by default."""
MAX_TRANSACTIONS: Final = 10_000


class ProducerGuard:
    """The guard as streams see it, while it is active: see `Registry.guard`.

    limit      shared by all producers that are not exempt
    message    for clients and pages: which disk, and how full
    refused    requests that were answered with an error
    spare      bytes that open transactions may still write
    """

    def __init__(self, exempt: Iterable[Exemption] = ()) -> None:
        self._exempt: Final = tuple(exempt)
        self.message = ""
        self.refused = self.spare = 0
        self._ended: set[bytes] = set()
        self._transactions_until_ns = 0
        self.limit = self._new_limit()

    def renew(self) -> None:
        """Forget the debt."""
        self.limit = self._new_limit()

    def _new_limit(self) -> Limit:
        return Limit(DISK_GUARD, TOTAL, LeasedBucket(1, BURST_NS))

    def applies_to(self, user: str, client_id: str) -> bool:
        """Whether this client is slowed."""
        return not any(each.covers(user, client_id) for each in self._exempt)

    def terms(self, rate: int, now_ns: int) -> tuple[int | Fraction, int, int, int | Fraction]:
        """The arguments of `Registry.set_rate` for a rate in bytes per second; 0: producers are stopped. The lease ends
        at once with the same rate as its floor: nothing passes in a process that does not renew it.
        """
        granted = rate or _STOPPED
        return granted, BURST_NS, now_ns, granted

    def stay_stopped(self, now_ns: int) -> None:
        """Keep the limit in debt, after each `Registry.set_rate` with a rate of 0."""
        if self.limit.debt_ns(now_ns) < _LEAST_STOP_NS:
            self.limit.algorithm.record(1, now_ns)
            self.limit.last_charged_by = 0  # no frame may go on

    @staticmethod
    def hold_ns(timeout_ms: int) -> int:
        """How long a request may be held; `timeout_ms`: of its client, as the request has it."""
        return min(HOLD_NS, max(0, timeout_ms) * NS_PER_MS // 2)

    # ---- transactions

    def stopped(self, spare: int, now_ns: int) -> None:
        """Producers are stopped from now on. Open transactions may write `spare` bytes more, all together."""
        self.spare = spare
        self._transactions_until_ns = now_ns + TRANSACTION_NS
        self._ended.clear()

    def resumed(self) -> None:
        """Producers are no longer stopped."""
        self._transactions_until_ns = 0

    def transaction_ended(self, transactional_id: bytes, now_ns: int) -> None:
        """Its next request begins another one."""
        if now_ns < self._transactions_until_ns and len(self._ended) < MAX_TRANSACTIONS:
            self._ended.add(transactional_id)

    def spares(self, transactional_id: bytes, size: int, now_ns: int) -> bool:
        """Whether a request of an open transaction passes though producers are stopped. One that has not ended since
        they were stopped counts as open.
        """
        is_open = transactional_id and transactional_id not in self._ended
        if now_ns >= self._transactions_until_ns or size > self.spare or not is_open:
            return False
        self.spare -= size
        return True
