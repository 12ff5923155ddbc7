"""The result of the engine: a frozen value, never an action. See `limit_set`."""

from __future__ import annotations

from typing import Final, NamedTuple

from quotas.admission.limit import Limit


# A named tuple: a throttled client gets one for every frame, and a frozen dataclass takes twice as long to make.
class Decision(NamedTuple):
    """The answer to one request of some amount (bytes, for byte rates).

    admitted
        True: every limit has been charged (for `check`: would be), the request may pass now.
        False: nothing has been charged; the request has to wait.
    wait_ns
        Nanoseconds until `limit` is out of debt. Admitted: the debt this request leaves behind, 0 for none.
        Not admitted: how long to hold; 0 when the limit is out of debt already but others wait for it (their turn is
        due).
    limit
        The limit with the longest wait; None without any wait.
    exceeded
        Every limit with a wait, in the order of the set; `limit` is one of them.
    topics
        Not admitted: the topics of the request whose records a limit refuses. The others could pass without them. Empty
        where the request as a whole is refused, or no limit counts topics.
    """

    admitted: bool
    wait_ns: int
    limit: Limit | None
    exceeded: tuple[Limit, ...] = ()
    topics: tuple[str, ...] = ()


ADMITTED: Final = Decision(admitted=True, wait_ns=0, limit=None)
"""Passes and leaves no debt: the common result, one shared object, so that callers may compare by identity."""
