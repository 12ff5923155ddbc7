"""How the proxy's internal clients retry after a failure: at growing intervals, with one log line for each new reason.

Many proxies lose the same broker, topic or permission at once. Pauses are random, so that they do not return together.
"""

from random import Random
from typing import Final

FIRST_SECONDS: Final = 1.0
MOST_SECONDS: Final = 30.0


class Retries:
    """The failures of one client since it last worked."""

    def __init__(self, random: Random) -> None:
        self._random = random
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
        """Whether to report this reason, because nothing has failed for it since the client last worked."""
        known = len(self._reasons)
        self._reasons.add(reason)
        return len(self._reasons) > known

    def worked(self) -> None:
        self._failures = 0
        self._reasons.clear()

    def pause_seconds(self) -> float:
        """The pause until the next attempt: it doubles with each failure, up to `MOST_SECONDS`, ±50 %."""
        longest: float = min(MOST_SECONDS, FIRST_SECONDS * 2 ** min(self._failures - 1, 10))
        return longest * self._random.uniform(0.5, 1.5)
