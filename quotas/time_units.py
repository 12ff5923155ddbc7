"""Nanoseconds, the unit of every time in this project: how many there are in those that people write."""

from typing import Final

NS_PER_SECOND: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
