"""How the proxy's own clients try again after a failure: ever more rarely, and with one line for each new reason.

Many proxies lose the same broker, topic or right at once: pauses are random, so that they do not return together.
"""

from random import uniform
from typing import Final

FIRST_SECONDS: Final = 1.0
MOST_SECONDS: Final = 30.0


class Retries:
    """The failures of one client since it last worked."""

    def __init__(self) -> None:
        self._failures = 0
        self._reasons: set[str] = set()

    @property
    def is_failing(self) -> bool:
        return self._failures > 0

    def failed(self, reason: str) -> bool:
        """An attempt has failed. Returns whether to report it."""
        self._failures += 1
        return self.is_new(reason)

    def is_new(self, reason: str) -> bool:
        """Whether nothing has failed for this reason since it last worked: then report it."""
        known = len(self._reasons)
        self._reasons.add(reason)
        return len(self._reasons) > known

    def worked(self) -> None:
        self._failures = 0
        self._reasons.clear()

    def pause_seconds(self) -> float:
        """Until the next attempt: twice as long after each failure, up to `MOST_SECONDS`, give or take a half."""
        longest: float = min(MOST_SECONDS, FIRST_SECONDS * 2 ** min(self._failures - 1, 10))
        return longest * uniform(0.5, 1.5)  # noqa: S311 - no secret
