"""The topic of a fleet, above aiokafka: one log in memory that all members append to and read."""

import asyncio
from asyncio import Future
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from proxy.fleet.log import Appended
from proxy.internal_clients.failures import LogChanged, LogFailed
from simulation.kernel import MS, SECOND, Kernel, nothing

PRODUCE_SECONDS: Final = 4.0
"""After this a record that was not acknowledged has failed, though it may still arrive."""
POLL_SECONDS: Final = 1.0
MOST_LATE_SECONDS: Final = 12.0
OLD_NS: Final = 200 * SECOND
VOID: Final = b""


class FleetTopic:
    """`delay`: the seconds that a record takes to be in it.

    records              with the time of each by the broker's clock, in ms
    lost, doubled, late  how likely it is that a record does not arrive, arrives twice, or takes `MOST_LATE_SECONDS`
    is_deaf              it takes records and delivers none
    on_append            called with each record that arrives
    on_use               called when a member has received or sent something, and may use more or less of its limits
    """

    def __init__(self, kernel: Kernel, delay: Callable[[], float] | None = None) -> None:
        self.kernel = kernel
        self.delay = delay or self._usual_delay
        self.records: list[tuple[bytes, int]] = []
        self.age = 0
        self.lag = 0.0
        self.lost = self.doubled = self.late = 0.0
        self.is_deaf = False
        self.on_append: Callable[[bytes], object] = nothing
        self.on_use: Callable[[], object] = nothing
        #: Of the members that wait for a record.
        self.waiting: list[Callable[[], object]] = []

    def _usual_delay(self) -> float:
        """Up to 150 ms, and at times 3 s more."""
        random = self.kernel.random
        return random.uniform(0.005, 0.15) + (random.uniform(0, 3) if random.random() < 0.05 else 0)

    def grow_old(self) -> None:
        """It has an old record: members that have read the rest have missed nothing, and join at once."""
        self.records.append((VOID, (self.kernel.wall_ns() - OLD_NS) // MS))

    def recreate(self, lag: float = 0.0) -> None:
        """It is deleted, and created again. Each member notices within `lag` seconds."""
        self.records.clear()
        self.age += 1
        self.lag = lag

    def append(self, record: bytes) -> Appended:
        self.records.append((record, self.kernel.wall_ns() // MS))
        self.on_append(record)
        waiting, self.waiting = self.waiting, []
        for wake in waiting:
            wake()
        return Appended(len(self.records) - 1, self.records[-1][1])

    def post(self, record: bytes, done: Callable[[Appended], object] = nothing) -> None:
        """Later records may overtake it. `done` is called with its place, if it arrives."""
        random = self.kernel.random
        for _ in range(2 if random.random() < self.doubled else 1):
            if random.random() >= self.lost:
                seconds = self.delay() + (random.uniform(0, MOST_LATE_SECONDS) if random.random() < self.late else 0)
                self.kernel.after(seconds, lambda: done(self.append(record)))

    def position_at(self, time_ms: int) -> int:
        """Of the first record appended at this time or later."""
        return bisect_left(self.records, time_ms, key=lambda each: each[1])


class SimLog:
    """A `Log` of one member. `fetch`: the least and the most seconds that a record takes to be read.

    error    what all calls raise, if it is set
    is_deaf  no record reaches it; `is_mute`: none of its own reaches the topic
    is_blind it does not see that the topic has become shorter
    on_sent  called when a record of its own is on its way
    """

    def __init__(self, topic: FleetTopic, fetch: tuple[float, float] = (0.02, 0.1)) -> None:
        self.topic, self.fetch = topic, fetch
        self.position = 0
        self.error: Exception | None = None
        self.is_deaf = self.is_mute = self.is_blind = False
        self.on_sent: Callable[[], object] = nothing
        self._age = self._noticed_age = 0
        self._notices_ns = 0

    async def open(self) -> None:
        await self._pass(self.topic.delay())
        self._age = self.topic.age

    async def append(self, record: bytes) -> Appended:
        self._check()
        self.topic.on_use()
        done, resolve = self._future()
        if not self.is_mute:
            self.topic.post(record, resolve)
            self.on_sent()
        self.topic.kernel.after(PRODUCE_SECONDS, partial(resolve, None))
        place: Appended | None = await done
        self._check()
        if place is None:
            raise LogFailed("timeout", "no acknowledgement")
        return place

    async def seek(self, time_ms: int) -> bool:
        await self._pass(self.topic.delay())
        self.position = self.topic.position_at(time_ms)
        return self.position > 0

    async def read(self) -> Sequence[bytes]:
        """What is there when the response arrives, though this process may be stopped then and read it later."""
        self._check()
        topic, kernel = self.topic, self.topic.kernel
        done, resolve = self._future()

        def arrive() -> None:
            if not done.done():
                kernel.after(kernel.random.uniform(*self.fetch), lambda: resolve(len(topic.records)))

        if self.position == len(topic.records) and not self._has_changed():
            topic.waiting.append(arrive)
            kernel.after(POLL_SECONDS, partial(resolve, self.position))
        else:
            arrive()
        end = await done
        self._check()
        if self.is_deaf or topic.is_deaf:
            await self._pass(POLL_SECONDS)
            return []
        if self._has_changed():
            return await self._notice()
        found = [record for record, _ in topic.records[self.position : end]]
        self.position += len(found)
        topic.on_use()
        return found

    async def close(self) -> None:
        pass

    # ---- inside

    def _has_changed(self) -> bool:
        return not self.is_blind and (self._age != self.topic.age or self.position > len(self.topic.records))

    async def _notice(self) -> Sequence[bytes]:
        """That the topic is another one: when its brokers do."""
        kernel = self.topic.kernel
        if self._noticed_age != self.topic.age:
            self._noticed_age = self.topic.age
            self._notices_ns = kernel.now_ns + int(kernel.random.uniform(0, self.topic.lag) * SECOND)
        if kernel.now_ns >= self._notices_ns:
            raise LogChanged("out_of_range", "the topic was created again")
        await self._pass(min(POLL_SECONDS, (self._notices_ns - kernel.now_ns) / SECOND))
        return []

    def _check(self) -> None:
        if self.error is not None:
            raise self.error
        loop: Any = asyncio.get_running_loop()
        if loop.is_dead:
            raise LogFailed("network", "the process was killed")

    async def _pass(self, seconds: float) -> None:
        self._check()
        done, resolve = self._future()
        self.topic.kernel.after(seconds, partial(resolve, None))
        await done
        self._check()

    def _future(self) -> tuple["Future[Any]", Callable[[Any], object]]:
        """One that the network resolves, whether this process runs or not."""
        loop: Any = asyncio.get_running_loop()
        future: Future[Any] = loop.create_future()

        def resolve(value: Any) -> None:
            if not future.done():
                future.set_result(value)
                loop.wake()

        return future, resolve
