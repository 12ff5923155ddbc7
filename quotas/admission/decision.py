"""The decision on a request that is admitted or refused as a whole: a frozen value. See `limit_set`."""

from typing import Final, NamedTuple

from quotas.admission.limit import Limit


# A named tuple: a frozen dataclass takes twice as long to make.
class Decision(NamedTuple):
    """The decision on one request of some amount (bytes, for byte rates).

    admitted
        True: every limit was charged; the request may pass now.
        False: nothing was charged; the request must wait.
    wait_ns
        Nanoseconds until `limit` is out of debt. Admitted: the debt that this request leaves, 0 for none.
        Not admitted: how long to hold; 0 if the limit is out of debt but has waiters, which are due.
    limit
        The limit with the longest wait; None without any wait.
    exceeded
        Every limit with a wait, in the order of the set; contains `limit`.
    """

    admitted: bool
    wait_ns: int
    limit: Limit | None
    exceeded: tuple[Limit, ...] = ()


ADMITTED: Final = Decision(admitted=True, wait_ns=0, limit=None)
"""Passes and leaves no debt: the common result, one shared object, so callers may compare by identity."""
