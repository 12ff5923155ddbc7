"""What a limit needs, from what passes and who waits: no client that has enough looks as if it had not."""

from __future__ import annotations

from random import Random
from statistics import mean

from proxy.fleet.use import Use
from quotas.admission.limit import Limit
from quotas.algorithms.leased_bucket import LeasedBucket
from quotas.entity import Entity
from quotas.fleet.policy import Demand
from tests.proxy.conversation import NS_PER_SECOND


class Scene:
    """A limit of 100 kB/s with a bucket of 10 kB, of which frames pass as a test says."""

    def __init__(self, rate: int = 100_000) -> None:
        self.now_ns = 1_000 * NS_PER_SECOND
        self.limit = Limit("producer_byte_rate", Entity(client_id="etl"), LeasedBucket(rate, 100_000_000))
        self.use = Use(self.limit)
        self.use.grant(1_000 * rate, self.now_ns)
        self.use.begin(self.now_ns)

    def run(self, seconds: float, frame: int, every_seconds: float, *, waits: bool = False) -> list[Demand]:
        """One frame each time. waits: not before the debt of the one before is paid; of many that are ready."""
        found, due_ns = list[Demand](), self.now_ns
        for step in range(1, round(seconds * 1_000) + 1):
            self.now_ns += NS_PER_SECOND // 1_000
            if self.now_ns >= due_ns and not (waits and self.limit.debt_ns(self.now_ns)):
                self.limit.algorithm.record(frame, self.now_ns)
                due_ns += int(every_seconds * NS_PER_SECOND)
            if step % 50 == 0:
                assert not self.use.is_idle(self.now_ns)
                found.append(self.use.demand(self.now_ns, is_at_floor=False))
        return found


def test_frames_that_are_larger_than_the_bucket_are_no_want() -> None:
    demands = Scene().run(10, frame=40_000, every_seconds=0.8)
    assert not any(demand.is_limited for demand in demands), "half of what it might use, with a debt most of the time"


def test_clients_that_wait_without_a_queue_are_seen_by_what_passes() -> None:
    demands = Scene().run(5, frame=2_000, every_seconds=0.005, waits=True)
    assert all(demand.is_limited for demand in demands[8:])
    assert all(demand.peak >= 90_000_000 for demand in demands[8:])


def test_a_queue_that_lasts_is_a_want() -> None:
    scene = Scene()

    def is_limited_after(seconds: float) -> bool:
        scene.now_ns += int(seconds * NS_PER_SECOND)
        return scene.use.demand(scene.now_ns, is_at_floor=False).is_limited

    for _ in range(3):
        scene.limit.enqueue("frame", 1_000)
        assert not is_limited_after(0.1)
        scene.limit.waiters.pop()
        assert not is_limited_after(0.05)
    scene.limit.enqueue("frame", 1_000)
    assert [is_limited_after(0.05) for _ in range(4)] == [False, False, True, True]


def test_uneven_batches_claim_little_more_than_they_use() -> None:
    """Of ten batches a second, each is up to 100 ms late: what a client that lingers sends."""
    scene, random, demands = Scene(), Random(1), list[Demand]()
    for _ in range(600):
        late = random.randrange(100)
        demands += scene.run(late / 1_000, frame=0, every_seconds=1)
        scene.limit.algorithm.record(4_000, scene.now_ns)
        demands += scene.run((100 - late) / 1_000, frame=0, every_seconds=1)
    assert mean(demand.peak for demand in demands[20:]) < 1.08 * 40_000_000


def test_at_the_floor_each_debt_is_a_want() -> None:
    scene = Scene()
    assert not scene.use.demand(scene.now_ns, is_at_floor=True).is_limited
    scene.limit.algorithm.record(20_000, scene.now_ns)
    assert scene.use.demand(scene.now_ns, is_at_floor=True).is_limited
    assert not scene.use.demand(scene.now_ns, is_at_floor=False).is_limited


def test_what_has_just_been_lent_counts_as_used_until_a_slot_has_shown_it() -> None:
    scene = Scene()
    scene.use.grant(300_000_000, scene.now_ns)
    first, *_, last = scene.run(0.6, frame=1_000, every_seconds=0.05)
    assert first.peak == 300_000_000 * 100 // 105
    assert last.peak < 30_000_000


def test_what_passed_is_compared_with_what_might_when_it_did() -> None:
    """A rate that has just been raised does not make a client look as if it had enough."""
    scene = Scene()
    assert scene.run(1, frame=2_000, every_seconds=0.005, waits=True)[-1].is_limited
    scene.limit.algorithm.set_rate(1_000_000, 100_000_000, scene.now_ns)
    scene.use.grant(1_000_000_000, scene.now_ns)
    assert all(demand.is_limited for demand in scene.run(1, frame=2_000, every_seconds=0.001, waits=True)[1:])


def test_idle_after_two_seconds() -> None:
    scene = Scene()
    scene.run(1, frame=100, every_seconds=0.05)
    assert not scene.use.is_idle(scene.now_ns + NS_PER_SECOND)
    assert scene.use.is_idle(scene.now_ns + 3 * NS_PER_SECOND)


def test_a_few_frames_a_second_hold_little_more_than_they_use() -> None:
    demands = Scene(rate=1_000_000).run(10, frame=20_000, every_seconds=0.09)
    used = 1_000 * 20_000 / 0.09
    assert all(0.85 * used < demand.peak < 1.2 * used for demand in demands[20:])


def test_who_stops_gives_all_of_it_back_after_an_empty_slot() -> None:
    scene = Scene()
    assert scene.run(2, frame=2_000, every_seconds=0.05)[-1].peak >= 40_000_000
    found = scene.run(0.6, frame=0, every_seconds=10)
    assert next(number for number, demand in enumerate(found) if not demand.peak) <= 9, "0.4 s, and a tick"


def test_who_waits_keeps_it_though_nothing_passes() -> None:
    scene = Scene()
    scene.run(2, frame=2_000, every_seconds=0.05)
    scene.limit.enqueue("frame", 1_000)
    assert scene.run(0.4, frame=0, every_seconds=10)[-1].peak > 0
