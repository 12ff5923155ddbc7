"""What a seed and options leave to chance: the parts of a run, and the list of its faults.

Each seed has a selection of kinds of faults, so that a rare combination is not drowned by the others. `faults` has what
each kind does.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, fields
from random import Random
from typing import Any, Final, NamedTuple

ALL, NONE = "all", "none"
QUOTAS_TOPIC, DISK_GUARD, PAIR = "quotas_topic", "disk_guard", "pair"
GROUP, COUNTS, IDS = "group", "counts", "producer_ids"
PARTS: Final = {QUOTAS_TOPIC: 0.3, DISK_GUARD: 0.15, PAIR: 0.4, GROUP: 0.2, COUNTS: 0.3, IDS: 0.15}
"""What some runs have, and how many of them."""
MOST_KINDS: Final = 6
MOST: Final = 12
DRAIN_SECONDS: Final = 25.0
IDS_WINDOW_SECONDS, IDS_WINDOW_COUNT = 10, 5
LONG_SECONDS: Final = 16.0, 23.0
AWAY: Final = 0.3
SMALL_BUFFERS, SMALL_ENTITIES = 1 << 20, 8

# ---- kinds of faults

BROKERS: Final = {"slow", "freeze"}
BREAKING: Final = {"die", "move", "cut", "idle"}
"""They break connections to brokers."""
MOVING: Final = {"leaders", "die", "move", "cut"}
"""After them other brokers lead partitions."""
PROBED: Final = {"debt", "stuck", "still"}
QUIET: Final = PROBED | {"names", "reload", "lift", "join", "leave"}
"""Beside them a probe waits for its own cause alone."""
RESTARTING: Final = {"kill", "drain"}
"""After them a proxy has to read the cluster's quotas again."""
OF_FLEETS: Final = {"deaf_topic", "lost_topic", "rough_topic", "deaf", "cut_off", "broken_log"}
"""They concern the topic of a fleet."""
LASTING: Final = {"deaf_topic", "rough_topic", "deaf", "cut_off", "pause"}
"""They often last for a lease and longer, where there is a fleet."""
OF_TOPICS: Final = ("lost_topic", "deaf_topic", "kill", "pause")
OF_QUOTAS_TOPIC: Final = {"alter", "write", "broken", "compact", "away"}
"""Of runs with a topic of quotas, beside the others."""
OF_DISKS: Final = {"fill", "blind"}
"""Of runs with a disk guard, beside the others."""
HARMLESS: Final = OF_QUOTAS_TOPIC | QUIET | {"hostile", "leaders"}
"""They make no client wait that is below its limits."""
WITHOUT_EFFECT: Final = PROBED | {"hostile", "names", "join", "broken", "compact", "deaf_topic", "lost_topic"}
"""With them clients may use their limits as without, where there is no fleet."""
KINDS: Final = (
    BROKERS
    | BREAKING
    | MOVING
    | QUIET
    | RESTARTING
    | OF_FLEETS
    | {"hostile", "quota", "delay", "partial", "silent", "pause"}
)
"""Of all runs."""


class Fault(NamedTuple):
    """`at` and `lasts` in seconds; `pick` in 0 to 1 chooses what it happens to."""

    at: float
    kind: str
    lasts: float
    pick: float

    def __str__(self) -> str:
        return f"{self.kind} at {self.at:.1f} s for {self.lasts:g} s"

    @property
    def follows_record(self) -> bool:
        """Whether it begins with the next record of the member, which is in the topic before the member reads it."""
        return self.kind in {"deaf", "cut_off", "pause"} and int(self.pick * 1_000) % 2 == 1

    @property
    def is_of_fleet(self) -> bool:
        return self.kind in OF_FLEETS or self.kind == "pause"

    @property
    def ends(self) -> float:
        """When it is healed, in seconds."""
        return self.at + (DRAIN_SECONDS if self.kind == "drain" else self.lasts) + 0.1

    def chosen(self, count: int) -> int:
        return int(self.pick * count)


@dataclass(frozen=True)
class Options:
    """What a seed leaves open. 0 and "all": drawn.

    seconds   of virtual time with faults
    faults    all, none, or the numbers of those that happen, as in 1+4
    parts     what there may be beside proxies, brokers and clients: all, none, or as in quotas_topic+disk_guard
    """

    seconds: float = 30.0
    proxies: int = 0
    clients: int = 0
    faults: str = ALL
    parts: str = ALL

    @classmethod
    def parse(cls, text: str) -> "Options":
        """KEY=VALUE[,KEY=VALUE...]. Raises ValueError with a sentence."""
        given: dict[str, Any] = {}
        types: dict[str, Any] = {field.name: type(field.default) for field in fields(cls)}
        for item in filter(None, text.split(",")):
            key, _, value = item.partition("=")
            if key not in types:
                raise ValueError(f"unknown option {key!r}: known are {', '.join(types)}")
            try:
                given[key] = types[key](value)
            except ValueError:
                raise ValueError(f"{key} needs a number, not {value!r}") from None
        found = cls(**given)
        if found.faults not in {ALL, NONE} and not re.fullmatch(r"\d+(\+\d+)*", found.faults):
            raise ValueError(f"faults are all, none, or numbers as in 1+4, not {found.faults!r}")
        return found

    def chosen(self, drawn: list[Fault]) -> list[tuple[int, Fault]]:
        """Those that happen, with their numbers."""
        if self.faults == ALL:
            return list(enumerate(drawn))
        wanted = set() if self.faults == NONE else set(map(int, self.faults.split("+")))
        return [(number, fault) for number, fault in enumerate(drawn) if number in wanted]

    def parts_of(self, seed: int) -> set[str]:
        found = parts(seed)
        return found if self.parts == ALL else found & {*self.parts.split("+")}

    def __str__(self) -> str:
        return ",".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


DRAWN: Final = Options()
"""All of it."""


def parts(seed: int) -> set[str]:
    """What the run of this seed has beside proxies, brokers and clients."""
    random = Random(f"{seed} parts")  # noqa: S311 - a seed must give the same run
    return {each for each, odds in PARTS.items() if random.random() < odds}


def bounds(seed: int, kinds: Collection[str]) -> tuple[int, int]:
    """`--max-buffered-bytes` and `--max-metric-entities`: their defaults, or what some runs can reach. Probes have
    metrics of their own.
    """
    random = Random(f"{seed} bounds")  # noqa: S311
    is_small = random.random() < 0.3 and (PROBED | BROKERS).isdisjoint(kinds)
    return (SMALL_BUFFERS, SMALL_ENTITIES) if is_small else (256 << 20, 1_000)


def drawn(seed: int, seconds: float, parts: Collection[str], *, is_fleet: bool) -> list[Fault]:
    """In the order of their times."""
    random = Random(seed)  # noqa: S311
    kinds = KINDS if is_fleet else KINDS - OF_FLEETS
    # Some runs have only faults beside which clients wait for what is known, or a few that fleets notice.
    pool = random.choice([kinds, kinds, kinds & (QUIET | random.choice([BROKERS, set()]))])
    number, most = random.randint(0, MOST_KINDS), MOST
    if is_fleet and random.random() < 0.75:
        pool, number, most = OF_FLEETS | {"pause", "kill"}, random.randint(1, 2), 4
    elif is_fleet and random.random() < 0.5:  # members that hear each other, and learn of quotas at different times
        pool, number, most = {"reload"}, 1, 4
    found = _some(random, random.sample(sorted(pool), number), seconds, most)
    if is_fleet:
        found = [_lengthened(random, each) for each in found]
    if QUOTAS_TOPIC in parts:
        random = Random(f"{seed} {QUOTAS_TOPIC}")  # noqa: S311
        hard = random.sample(OF_TOPICS, random.choice([0, 0, 1, 2]))
        found += _some(random, [*sorted(OF_QUOTAS_TOPIC - {"away"}), "alter", "alter", *hard], seconds, MOST)
        if random.random() < AWAY:
            found += _some(random, ["away"], seconds, 2)
    if DISK_GUARD in parts:
        random = Random(f"{seed} {DISK_GUARD}")  # noqa: S311
        found += [
            Fault(random.uniform(3, seconds), kind, random.uniform(5, 25), random.random())
            for kind in random.choices(sorted(OF_DISKS), k=random.choice([0, 0, 1, 3]))
        ]
    return sorted(found)


def _some(random: Random, kinds: list[str], seconds: float, most: int) -> list[Fault]:
    found = []
    for _ in range(random.randint(min(len(kinds), MOST_KINDS, most), most) if kinds else 0):
        lasts = random.choice([0.2, 1, 3, 8])
        found.append(Fault(random.uniform(3, max(3, seconds - lasts)), random.choice(kinds), lasts, random.random()))
    return found


def _lengthened(random: Random, fault: Fault) -> Fault:
    """Most silences last for longer than a lease."""
    if fault.kind not in LASTING or random.random() < 0.25:
        return fault
    return fault._replace(lasts=round(random.uniform(*LONG_SECONDS), 1))
