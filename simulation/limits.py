"""The limits of a run: what the sources say, what may be in force of that, and what has passed of each limit.

A name is that of a bucket, as in the quotas file: `client-id="etl"`, `topic="audit"` or `total=true`.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from random import Random
from typing import Final

from quotas.limit_kinds import (
    CONNECTION_CREATION_RATE,
    CONNECTIONS,
    PRODUCER_BYTE_RATE,
    PRODUCER_IDS_RATE,
    REQUEST_RATE,
)
from simulation import draws
from simulation.kernel import Kernel
from simulation.taps import NO_LIMIT, Bound, Line, Open

Table = Mapping[str, Mapping[str, float]]
"""The limits of one source, by entity as in the quotas file."""
TOTAL: Final = "total=true"
OF_GROUP: Final = 'resource-group="jobs"'
MEMBERS: Final = ("etl", "backfill")
DEBTOR: Final = "debtor"
"""The name of a client that always has one limit (`probe`)."""
LIMIT_OF_DEBTOR: Final = 10_000
VISITOR, HURRIED, CALLER = "visitor", "hurried", "caller"
"""The names of clients with limits that count no bytes (`counted`), and where the first two of them are."""
HOSTS: Final = {VISITOR: "10.0.5.3", HURRIED: "10.0.5.4"}
MOST_CONNECTIONS, CONNECTIONS_A_SECOND, REQUESTS_A_SECOND, IDS_A_WINDOW = 3, 2, 5, 20
READ_SECONDS: Final = 5.0
"""By then the cluster's quotas have been read."""


def of_client(name: str) -> str:
    return f'client-id="{name}"'


def shared_by(client_id: str) -> tuple[str, ...]:
    """The limits that hold producers of this name and of others."""
    return (OF_GROUP, TOTAL) if client_id in MEMBERS else (TOTAL,)


def is_shared(name: str) -> bool:
    """Whether clients of several names share the limits of this one."""
    return not name.startswith("client-id")


DEFAULT: Final = of_client("<default>")
OF_ALL_USERS: Final = 'user="ANONYMOUS"'
FIXED: Final[dict[str, Table]] = {
    "": {of_client(DEBTOR): {PRODUCER_BYTE_RATE: LIMIT_OF_DEBTOR}},
    draws.COUNTS: {
        f'ip="{HOSTS[VISITOR]}"': {CONNECTIONS: MOST_CONNECTIONS},
        f'ip="{HOSTS[HURRIED]}"': {CONNECTION_CREATION_RATE: CONNECTIONS_A_SECOND},
        of_client(CALLER): {REQUEST_RATE: REQUESTS_A_SECOND},
    },
    draws.IDS: {OF_ALL_USERS: {PRODUCER_IDS_RATE: IDS_A_WINDOW}},
}
"""What each file has, whatever else changes, by part of the run."""


class Limits:
    """`file`, `topic`: what they say now. `clock`: by which passing is judged, the fastest one of a proxy.

    bounds    what has passed, by name and limit
    entities  all that had limits at any time
    """

    def __init__(self, kernel: Kernel, clock: Callable[[], int], cluster: Table, parts: Collection[str]) -> None:
        self._kernel, self.clock = kernel, clock
        self._fixed = {name: limits for part in ("", *sorted(parts)) for name, limits in FIXED.get(part, {}).items()}
        self.cluster = {of_client(name): limits for name, limits in cluster.items()}
        #: What may be in force at a proxy, the newest last.
        self.files: list[Table] = [_drawn(kernel.random, has_group=draws.GROUP in parts)]
        self.topics: list[Table] = [{}]
        self.bounds: dict[tuple[str, str], Bound] = {}
        self._lines: dict[tuple[str, str], Open] = {}
        #: What `possible` has returned since the last change.
        self._possible: dict[tuple[str, str], list[float]] = {}
        self.entities = {*self.file, *self.cluster}

    @property
    def file(self) -> Table:
        return self.files[-1]

    @property
    def topic(self) -> Table:
        return self.topics[-1]

    def may_limit(self, client_id: str) -> bool:
        """Whether any limit may hold this client at some time."""
        others = {each for each in self.entities if not is_shared(each)} - {of_client(client_id), DEFAULT}
        return client_id in {DEBTOR, *HOSTS, CALLER} or OF_ALL_USERS in self._fixed or not self.entities <= others

    @property
    def has_shared(self) -> bool:
        """Whether clients may wait for others."""
        return any(map(is_shared, self.file))

    def write(self, path: Path) -> None:
        """The quotas file."""
        lines: list[str] = []
        for entity, limits in {**self._fixed, **self.file}.items():
            if entity == OF_GROUP:
                lines += [
                    "[[resource-group]]",
                    entity.replace("resource-group", "name"),
                    f"client-id = {list(MEMBERS)}",
                ]
            else:
                lines += ["[[quota]]", *(item.replace("=", " = ") for item in entity.split(","))]
            lines += [f"{name} = {int(rate)}" for name, rate in limits.items()]
        path.write_text("\n".join(lines) + "\n")

    # ---- what applies

    def rate(self, name: str, limit: str) -> float:
        """By the newest of all sources."""
        return self.possible(name, limit)[-1]

    def possible(self, name: str, limit: str) -> list[float]:
        """By all that may be in force, the newest last."""
        found = self._possible.get((name, limit))
        if found is None:
            found = [self.applies(name, limit, file, topic) for file in self.files for topic in self.topics]
            self._possible[name, limit] = found
        return found

    def applies(self, name: str, limit: str, file: Table, topic: Table) -> float:
        """The entry of the name itself is stronger than the default; of one entity the file is stronger than the topic,
        and that than the cluster. What the file has for a client at either level is the most that the topic allows.
        """
        if name in self._fixed:
            return self._fixed[name].get(limit, NO_LIMIT)
        for entity in (name,) if is_shared(name) else (name, DEFAULT):
            of_file, of_topic, of_cluster = (each.get(entity, {}).get(limit) for each in (file, topic, self.cluster))
            if of_file is not None:
                return min(of_file, NO_LIMIT if of_topic is None or is_shared(name) else of_topic)
            if of_topic is not None:
                return min(of_topic, NO_LIMIT if is_shared(name) else file.get(DEFAULT, {}).get(limit, NO_LIMIT))
            if of_cluster is not None:
                return of_cluster
        return NO_LIMIT

    # ---- what passes

    def count(self, name: str, limit: str, size: int, line: Line | None) -> None:
        rate = self.rate(name, limit)
        if rate == NO_LIMIT:
            return
        found = self.bounds.get((name, limit))
        if found is None:
            found = self.bounds[name, limit] = Bound(self.clock, rate, self._open(name, limit))
            self._allow(name, limit)
        is_read = name not in self.cluster or self._kernel.seconds > READ_SECONDS
        is_limited = is_read and NO_LIMIT not in self.possible(name, limit)  # or any amount may pass at once
        found.add(size if is_limited else 0, line)

    def begun(self, name: str, limit: str, line: Line) -> None:
        """A frame with data may wait for it, if not now then as soon as there is such a limit."""
        self._open(name, limit).begun(line)

    def _open(self, name: str, limit: str) -> Open:
        return self._lines.setdefault((name, limit), Open())

    # ---- changes

    def change(self, states: list[Table], new: Table) -> None:
        """`states`: `files` or `topics`, of which a newer one may be in force from now on."""
        states.append(new)
        self.entities.update(new)
        self._allow_all()

    def may_be(self, states: list[Table], other: Table) -> None:
        """This one may be in force as well, and is not the newest."""
        states.insert(0, other)
        self._allow_all()

    def settle(self, states: list[Table]) -> None:
        """Only the newest one is in force."""
        del states[:-1]
        self._possible.clear()
        for (name, limit), bound in self.bounds.items():
            bound.set_rate(max(self.possible(name, limit)))
            self._allow(name, limit)

    def _allow_all(self) -> None:
        self._possible.clear()
        for name, limit in self.bounds:
            self._allow(name, limit)

    def _allow(self, name: str, limit: str) -> None:
        for rate in self.possible(name, limit):
            self.bounds[name, limit].allow(rate)


def _drawn(random: Random, *, has_group: bool) -> Table:
    quotas = {of_client("etl"): {"producer_byte_rate": float(random.choice([50_000, 200_000, 1_000_000]))}}
    if random.random() < 0.5:
        quotas[of_client("reader")] = {"consumer_byte_rate": float(random.choice([100_000, 500_000]))}
    if random.random() < 0.4:
        quotas[TOTAL] = {"producer_byte_rate": float(random.choice([300_000, 1_500_000]))}
    if random.random() < 0.3:
        quotas[DEFAULT] = {"producer_byte_rate": float(random.choice([100_000, 400_000]))}
    if random.random() < 0.3:
        quotas['topic="audit"'] = {"bytes_in_rate": float(random.choice([50_000, 200_000]))}
    if has_group:
        quotas[OF_GROUP] = {"producer_byte_rate": float(random.choice([100_000, 800_000]))}
    return quotas
