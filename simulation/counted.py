"""Clients that want more connections, requests or producer ids than limits allow, and what they may have.

    Counts   one address has `connections`, another one `connection_creation_rate`: each visitor sends one request;
             and a client id has `request_rate`
    Ids      `producer_ids_rate` of the one user that all clients are: a producer has a new id for each request

Connections are judged by those of the proxies to brokers, which exist while a client is served. A process that starts
again knows nothing of what passed before.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final

from simulation import draws
from simulation.client import Place
from simulation.hostile import Once
from simulation.kernel import SECOND
from simulation.limits import (
    CALLER,
    CONNECTIONS_A_SECOND,
    HOSTS,
    HURRIED,
    IDS_A_WINDOW,
    MOST_CONNECTIONS,
    REQUESTS_A_SECOND,
    VISITOR,
)
from simulation.producer import Pending, Producer, Shape
from simulation.taps import Bound, Line, Open
from simulation.world import World

HEAL_SECONDS: Final = 30.0
VISIT_SECONDS: Final = 0.15
MOST_STAY_SECONDS: Final = 2.0
RESETS: Final = 0.3
SIZE: Final = 500
SAMPLES: Final = 11
"""`--quota-window-num`; each is of a second."""
FIRST: Final = 1 << 21
"""Before it are the numbers of other clients."""
TOPIC: Final = "audit"
FRESH: Final = "fresh"
WINDOW_NS: Final = int(0.98 * draws.IDS_WINDOW_SECONDS * SECOND)
"""By the slowest clock of a fleet."""
FALSE_POSITIVES: Final = 2
USED: Final = 0.6
MOST_WAIT_SECONDS: Final = 1.5


class Visit(Once):
    """Stays for a while after its response. `has_answer` is called with it."""

    def __init__(self, world: World, name: str, has_answer: Callable[[], object]) -> None:
        self._has_answer = has_answer
        super().__init__(world.kernel, world.network, HOSTS[name], name, world.proxies[0].listens_at, SIZE)

    def _answered(self, values: Any) -> None:
        if values is not None:
            self._has_answer()
            random = self.kernel.random
            leave = partial(self.close, "left", resets=random.random() < RESETS)
            self.kernel.after(random.uniform(0, MOST_STAY_SECONDS), leave)


class Fresh(Producer):
    """Asks for a new producer id after each response. One request at a time, so that each has an id of its own."""

    def by_leader(self, places: Iterable[Place]) -> Iterator[tuple[int, list[Place]]]:
        is_waiting = any(each.in_flight for each in self.links.values())
        return islice(super().by_leader(places), 0 if is_waiting else 1)

    def _answered(self, chosen: list[Pending], values: Any) -> None:
        super()._answered(chosen, values)
        if values is not None and not self.is_stopped:
            self._restart_sequences()

    def _again(self, failed: list[Pending]) -> None:
        """They are given up: sending them with another id might write them twice."""
        for each in failed:
            self._lose(each)
        if not self.is_stopped:
            self.retry()


def _add(world: World, kind: type[Producer], host: str, name: str, shape: Shape) -> Producer:
    at = [world.proxies[0].listens_at]
    first = (FIRST + len(world.clients)) << 32
    world.clients.append(made := kind(world.kernel, world.network, host, name, at, [TOPIC], shape=shape, first=first))
    return made


def _is_alone(world: World) -> bool:
    """Whether these limits alone hold clients, and one proxy has all of them."""
    return not world.has_shared_waits and world.kinds <= draws.WITHOUT_EFFECT


class Counts:
    """Visits and calls of one run, at its first proxy. `answered`: visits by name that had a response."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.answered = dict.fromkeys(HOSTS, 0)
        self._visits: list[Visit] = []
        self._open = Open()
        rates = {HURRIED: CONNECTIONS_A_SECOND, CALLER: REQUESTS_A_SECOND}
        self._bounds = {name: Bound(world.limits.clock, rate) for name, rate in rates.items()}
        self._ticks = [world.kernel.every(VISIT_SECONDS, partial(self._visit, name)) for name in HOSTS]
        _add(world, Producer, "10.0.5.5", CALLER, Shape(5 * SIZE * REQUESTS_A_SECOND, SIZE, 1, request_bytes=SIZE))
        world.on_passing.append(self._passes)

    def _visit(self, name: str) -> None:
        self._visits = [each for each in self._visits if not each.is_closed]
        self._visits.append(Visit(self._world, name, partial(self._has_answer, name)))

    def _has_answer(self, name: str) -> None:
        self.answered[name] += 1

    def _passes(self, line: Line) -> None:
        if not line.is_request:
            return
        if line.client_id == VISITOR:
            self._open.begun(line)
        elif (bound := self._bounds.get(line.client_id)) is not None:
            bound.lines.begun(line)
            bound.add(1)

    def judge(self) -> None:
        """After the last fault: all are served again, and nothing was exceeded."""
        world, before = self._world, dict(self.answered)
        if not world.kernel.run(HEAL_SECONDS, lambda: all(self.answered[name] > before[name] for name in HOSTS)):
            late = [name for name in HOSTS if self.answered[name] == before[name]]
            world.fail(f"no visit of {', '.join(late)} was answered within {HEAL_SECONDS:g} s after the last fault")
        for tick in self._ticks:
            tick.cancel()
        for visit in self._visits:
            visit.close("stopped")
        _judge(world, "connections of an address at a time", self._open.most, MOST_CONNECTIONS)
        is_alone = _is_alone(world)
        for name, seconds in {HURRIED: SAMPLES, CALLER: 1}.items():
            bound = self._bounds[name]
            if is_alone and bound.total < USED * bound.rate * world.options.seconds:
                world.fail(
                    f"{bound.total} requests of {name} passed in {world.options.seconds:g} s; {bound.rate}/s may"
                )
            # Each connection may have passed this limit, and wait at another one.
            most = len(world.started) * seconds * bound.rate + 1 + bound.lines.most
            _judge(world, f"requests of {name} above its rate", bound.worst, most)


class Ids:
    """A producer with many ids, and one that keeps its own. Others share their limit, so the first may have less; a
    filter takes a few ids for known.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._recent_ns: deque[int] = deque()
        self._most = 0
        shape = Shape(SIZE, SIZE, 1, in_flight=1, request_bytes=SIZE, is_idempotent=True)
        self._steady = _add(world, Producer, "10.0.5.6", "steady", shape)
        _add(world, Fresh, "10.0.5.7", FRESH, replace(shape, rate=10 * SIZE))
        world.on_passing.append(self._passes)

    def _passes(self, line: Line) -> None:
        if line.is_request and line.client_id == FRESH:
            now_ns, recent_ns = self._world.kernel.now_ns, self._recent_ns
            recent_ns.append(now_ns)
            while recent_ns[0] <= now_ns - WINDOW_NS:
                recent_ns.popleft()
            self._most = max(self._most, len(recent_ns))

    def judge(self) -> None:
        share = IDS_A_WINDOW // draws.IDS_WINDOW_COUNT
        most = len(self._world.started) * (IDS_A_WINDOW + share + 1) + FALSE_POSITIVES
        _judge(self._world, "producer ids in a window", self._most, most)
        if _is_alone(self._world):
            longest = max(wait_ns for _, wait_ns in self._steady.waits_ns) / SECOND
            _judge(self._world, "s waits a producer whose id is known", longest, MOST_WAIT_SECONDS)


Counted = Counts | Ids
OF_PART: Final[dict[str, type[Counted]]] = {draws.COUNTS: Counts, draws.IDS: Ids}


def _judge(world: World, what: str, found: float, most: float) -> None:
    world.checked["limits on counts"] += 1
    if found > most:
        world.fail(f"{found:g} {what}, {most:g} are allowed")
