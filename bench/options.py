"""How this run of the benchmarks was asked for."""

from collections.abc import Callable
from dataclasses import dataclass

from bench.processes import Cores


@dataclass(frozen=True, kw_only=True)
class Options:
    """`rounds` of 0 means the benchmark's own number. `scenario` is a part of the names of the scenarios to run."""

    quick: bool
    rounds: int
    scenario: str
    peers: tuple[str, ...]
    cores: Cores
    progress: Callable[[str], None]
