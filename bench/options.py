"""How this run of the benchmarks was asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.peers import PeerStarter
from bench.processes import Cores


@dataclass(frozen=True, kw_only=True)
class Options:
    """`rounds` of 0 means the benchmark's own number. `scenario` is a part of the names of the scenarios to run.

    peers         what starts each peer, by name, in the order of the columns
    picture       where the enforcement benchmark draws bytes in each second; None: nowhere
    broker_port   of the null broker that peers of `--contender` are in front of; 0: the kernel chooses
    """

    quick: bool
    rounds: int
    scenario: str
    peers: Mapping[str, PeerStarter]
    cores: Cores
    progress: Callable[[str], None]
    broker_port: int = 0
    picture: Path | None = None
