"""The topic of a fleet, above aiokafka: one log in memory that all members append to and read."""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

from proxy.fleet.log import Appended
from proxy.internal_clients.failures import LogChanged
from simulation.kernel import MS, Kernel, nothing


class FleetTopic:
    """`delay`, `fetch`: the seconds that a record takes to be in it, and to be read. `is_deaf`: it takes records and
    delivers none.

    records   with the time of each by the broker's clock, in ms
    """

    def __init__(
        self, kernel: Kernel, delay: Callable[[], float] | None = None, fetch: tuple[float, float] = (0.02, 0.1)
    ) -> None:
        self.kernel = kernel
        self.fetch = fetch
        self.delay = delay or self.usual_delay
        self.records: list[tuple[bytes, int]] = []
        self.age = 0
        self.is_deaf = False
        self.on_append: Callable[[bytes], object] = nothing

    def usual_delay(self) -> float:
        """Up to 150 ms, and at times 3 s more."""
        random = self.kernel.random
        return random.uniform(0.005, 0.15) + (random.uniform(0, 3) if random.random() < 0.05 else 0)

    def recreate(self) -> None:
        self.records.clear()
        self.age += 1

    def append(self, record: bytes) -> Appended:
        self.records.append((record, self.kernel.wall_ns() // MS))
        self.on_append(record)
        return Appended(len(self.records) - 1, self.records[-1][1])

    def post(self, record: bytes, lost: float = 0, doubled: float = 0) -> None:
        """Nobody waits for it: later records may overtake it, and it may be lost, or doubled, at these odds."""
        random = self.kernel.random
        for _ in range(2 if random.random() < doubled else 1):
            if random.random() >= lost:
                self.kernel.after(self.delay(), partial(self.append, record))

    def position_at(self, time_ms: int) -> int:
        """Of the first record appended at this time or later."""
        return bisect_left(self.records, time_ms, key=lambda each: each[1])


class SimLog:
    """A `Log` of one member. `is_blind`: it does not see that the topic has become shorter."""

    def __init__(self, topic: FleetTopic) -> None:
        self.topic = topic
        self.position = 0
        self.is_blind = False
        self._age = 0

    async def open(self) -> None:
        await self._pass(self.topic.delay())
        self._age = self.topic.age

    async def append(self, record: bytes) -> Appended:
        await self._pass(self.topic.delay())
        return self.topic.append(record)

    async def seek(self, time_ms: int) -> bool:
        await self._pass(self.topic.delay())
        self.position = self.topic.position_at(time_ms)
        return self.position > 0

    async def read(self) -> Sequence[bytes]:
        await self._pass(self.topic.kernel.random.uniform(*self.topic.fetch))
        if self.topic.is_deaf:
            await asyncio.sleep(1)
            return []
        if not self.is_blind and (self._age != self.topic.age or self.position > len(self.topic.records)):
            raise LogChanged("out_of_range", "the topic was created again")
        found = [record for record, _ in self.topic.records[self.position :]]
        self.position += len(found)
        if not found:
            await asyncio.sleep(10 * self.topic.fetch[0])
        return found

    async def close(self) -> None:
        pass

    async def _pass(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
