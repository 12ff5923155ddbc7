"""What usage records cost: the turns of the loop and the CPU of one reading, and the memory of records that wait.

    .venv/bin/python -m bench.usage_records

CPU is that of the thread. All clients count something between two readings, which is the worst case. Most of the first
reading is the garbage collector, which visits new objects.
"""

import time
import tracemalloc
from collections.abc import Callable, Iterator
from statistics import median

from proxy.config.config import Config, ObservabilityOptions, UsageOptions
from proxy.observability.entities import Entities
from proxy.ticks import settle_garbage_collection
from proxy.usage.collector import SNAPSHOT_MS, Collector
from proxy.usage.emitter import RECORDS_AT_ONCE
from proxy.usage.records import Origin

CLIENTS = (1_000, 100_000)
START_MS = 1_767_614_400_000
INTERVAL_MS = 10_000
NS_PER_MS = 1_000_000


class Proxy:
    """The counters of a proxy with so many clients, and what reads them."""

    def __init__(self, clients: int) -> None:
        options = UsageOptions(max_series=clients, labels=(("team", "search"),))
        observed = ObservabilityOptions(max_metric_entities=clients)
        self.entities = Entities(Config(bootstrap_servers=(), observability=observed), time.monotonic_ns)
        self.now_ms = START_MS
        origin = Origin("sidecar", "incarnation", "127.0.0.1:19092")
        self.collector = Collector(origin, options, self.entities, lambda _: True, START_MS)
        self.clients = [self.entities.of("ANONYMOUS", f"client-{number}") for number in range(clients)]

    def count(self) -> None:
        for each in self.clients:
            each.produce_bytes += 2**33
            each.produce_requests += 1

    def read(self, after_ms: int = INTERVAL_MS) -> list[float]:
        """CPU of each turn, in ms."""
        self.now_ms += after_ms
        return turns_of(self.collector.collect(self.now_ms))

    def write(self) -> list[float]:
        return turns_of(iter(lambda: self.collector.take(RECORDS_AT_ONCE), []))


def turns_of(steps: Iterator[object]) -> list[float]:
    """CPU of each step, in ms."""
    turns = []
    while True:
        before_ns = time.thread_time_ns()
        ended = next(steps, steps) is steps
        turns.append((time.thread_time_ns() - before_ns) / NS_PER_MS)
        if ended:
            return turns


def bytes_per_sample(clients: int) -> float:
    proxy = Proxy(clients)
    proxy.count()
    proxy.read()
    proxy.write()
    proxy.count()
    tracemalloc.start()
    proxy.read()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / clients


def main() -> None:
    """Print a table."""
    print(f"{'clients':>9}  {'':22}  {'CPU, ms':>8}  {'longest turn':>12}  {'median':>6}")
    for clients in CLIENTS:
        proxy = Proxy(clients)
        settle_garbage_collection()
        proxy.count()
        measured: list[tuple[str, Callable[[], list[float]]]] = [
            ("first reading", proxy.read),
            ("write", proxy.write),
            ("nothing new", proxy.read),
            ("all clients changed", lambda proxy=proxy: proxy.count() or proxy.read()),  # type: ignore[misc]
            ("write", proxy.write),
            ("snapshot", lambda proxy=proxy: proxy.read(SNAPSHOT_MS)),  # type: ignore[misc]
        ]
        for name, action in measured:
            turns = action()
            print(f"{clients:>9,}  {name:22}  {sum(turns):>8.0f}  {max(turns):>9.1f} ms  {median(turns):>6.2f}")
    print(f"bytes of memory for each sample that waits: {bytes_per_sample(CLIENTS[0]):.0f}")


if __name__ == "__main__":
    main()
