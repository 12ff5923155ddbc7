"""Samples that are not written yet: the latest of each series and hour, bounded in number."""

from typing import Final

from proxy.usage.series import Series

MS_PER_HOUR: Final = 3_600_000


class Samples:
    """A sample replaces an earlier one of its series and hour (UTC). So while records cannot be written, memory grows
    by one sample for each series and hour, about 600 bytes each, up to `max_samples`; then the oldest is lost.

    Samples are bytes, without their number, because the garbage collector does not visit bytes.
    """

    def __init__(self, max_samples: int) -> None:
        self._max_samples = max_samples
        self._by_hour: dict[int, dict[Series, bytes]] = {}  # hours in order

    def __len__(self) -> int:
        return sum(map(len, self._by_hour.values()))

    def put(self, series: Series, time_ms: int, sample: bytes) -> int:
        """Add a sample of that time. Returns how many samples were lost."""
        self._by_hour.setdefault(time_ms // MS_PER_HOUR, {})[series] = sample
        return 0 if len(self) <= self._max_samples else len(self.take(1))

    def take(self, most: int) -> list[bytes]:
        """Remove at most `most` samples of the oldest hours. Samples of one series are in order."""
        taken: list[bytes] = []
        while self._by_hour and len(taken) < most:
            hour, of_hour = next(iter(self._by_hour.items()))
            series, sample = of_hour.popitem()
            series.is_taken = True
            taken.append(sample)
            if not of_hour:
                del self._by_hour[hour]
        return taken

    def drop_all(self) -> int:
        """Remove all. Returns how many there were."""
        count = len(self)
        self._by_hour.clear()
        return count
