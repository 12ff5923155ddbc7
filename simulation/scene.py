"""What the parts of a run know of each other."""

from collections import Counter
from pathlib import Path
from typing import Any, Final

from simulation import draws
from simulation.broker import Broker
from simulation.client import Client
from simulation.cluster import Cluster
from simulation.draws import Options
from simulation.kernel import Kernel
from simulation.limits import Limits
from simulation.link import Link
from simulation.network import Network
from simulation.process import ProxyProcess
from simulation.taps import Bound, Line, Requests

ADMIN_PORT: Final = 9308
TOPICS: Final = {"events": 4, "audit": 2}


class Scene:
    """Everything of one run that others look at. `World` fills it.

    problems  sentences about what is wrong, in the order in which it was seen
    checked   how many of each thing were held against the rules
    size      how many proxies there are; two and more are a fleet
    faults    those that happen, with their numbers
    logged    the process, the level, the event and the fields of each line of a log
    flow      what has passed of all Produce requests
    lines     by proxy: requests of its clients and responses of brokers, which may wait in it
    requests  of proxies to brokers
    probes    clients that wait for one known thing
    started   all processes, also those that have ended
    """

    limits: Limits
    flow: Bound
    cluster: Cluster
    brokers: list[Broker]
    proxies: list[ProxyProcess]

    def __init__(self, seed: int, options: Options, directory: Path) -> None:
        self.seed, self.options, self.directory = seed, options, directory
        self.kernel = Kernel(seed)
        self.network = Network(self.kernel)
        self.size = options.proxies or self.kernel.random.choice([1, 1, 2, 3])
        self.is_fleet = self.size > 1
        self.parts = options.parts_of(seed)
        self.faults = options.chosen(draws.drawn(seed, options.seconds, self.parts, is_fleet=self.is_fleet))
        self.kinds = {fault.kind for _, fault in self.faults}
        self.max_buffered_bytes, self.max_entities = draws.bounds(seed, self.kinds)
        self.problems: list[str] = []
        self.checked: Counter[str] = Counter()
        self.logged: list[tuple[str, int, str, dict[str, Any]]] = []
        self.clients: list[Client] = []
        self.probes: list[Client] = []
        self.links: list[Link] = []
        self.lines: dict[str, list[Line]] = {}
        self.requests: list[Requests] = []
        self.started: list[ProxyProcess] = []

    def fail(self, sentence: str) -> None:
        if len(self.problems) < 20:
            self.problems.append(f"{self.kernel.seconds:.3f} s: {sentence}")
