"""The rule by which a frame passes its limits, chunk by chunk.

A *frame* carries data: it is a Produce request or a Fetch response. A *chunk* is the part of it that arrived together.

1. A chunk passes its limits one after the other, own before shared (`Limit.rank`): those of the client, of its groups,
   of the topics found so far, and of the total. It is charged to each limit when it passes that limit.
2. It passes a limit that is out of debt and has no queue, or that this very frame took into debt. Otherwise the frame
   waits there, in the limit's fair queue, and no more of it is read.
3. The frame that takes a limit into debt continues to its end. So a client is notified once, and is not stopped in the
   middle of a request.
4. In a queue a frame counts once, with what is left of it. Once it has been served, its later chunks go first.

Nothing is charged for bytes that have not arrived, and nothing that was charged is returned. So a frame that stalls, a
fetch that stays open and a connection that goes away need no rule.

In any time T a token bucket charges at most burst + rate * T + one frame, because in debt it charges only the frame
that took it there. What passes is what is charged at the last limit of the order; at an earlier one, each frame that
waits at a later limit was charged for a chunk that has not passed. No frame starves: it queues at each of its limits
once, and each queue is fair by bytes.

A frame that waits at a shared limit has been charged one chunk by its own limits, even if its client then hangs up.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from operator import itemgetter
from typing import Final, NamedTuple

from quotas.admission.limit import Limit
from quotas.algorithms.algorithm import UNLIMITED

Charge = tuple[Limit, int]
"""A limit, and the units that it is charged."""

_numbers: Final = count(1)


def next_number() -> int:
    """The number of a new frame: not 0."""
    return next(_numbers)


class Verdict(NamedTuple):
    """How far a chunk passes its limits.

    passed    how many of its charges may be made, starting with the first
    limit     the limit where its frame then waits; None if it passes all
    wait_ns   until that limit is out of debt; 0 if it is, but other frames wait
    """

    passed: int
    limit: Limit | None
    wait_ns: int


def in_order(amounts: Mapping[Limit, int]) -> list[Charge]:
    """These charges in the order in which a frame passes its limits."""
    return sorted(amounts.items(), key=_rank)


def _rank(charge: Charge) -> int:
    return charge[0].rank


def decide(charges: Sequence[Charge], number: int, turn: Limit | None, now_ns: int) -> Verdict:
    """How far a chunk of the frame with this number passes. Changes nothing.

    turn   the limit whose queue has just served the frame
    """
    passed = 0
    for limit, _ in charges:
        if limit.last_charged_by != number:
            wait_ns = limit.algorithm.debt_ns(now_ns)
            if wait_ns or (limit.waiters.waiting and limit is not turn):
                return Verdict(passed, limit, wait_ns)
        passed += 1
    return Verdict(passed, None, 0)


def room_for(charges: Iterable[Charge], size: int, now_ns: int) -> int:
    """Bytes that fit before a limit is in debt, in chunks like one of `size` bytes with these charges."""
    return min((limit.headroom(now_ns) * size // units for limit, units in charges if units), default=UNLIMITED)


def worst_debt(limits: Iterable[Limit], now_ns: int) -> tuple[int, Limit | None]:
    """The longest of these debts, and its limit; a limit that is out of debt and has waiters counts as one of 0 ns."""
    owing = [(limit.debt_ns(now_ns), limit) for limit in limits]
    return max([each for each in owing if each[0] or each[1].waiters.waiting], key=itemgetter(0), default=(0, None))
