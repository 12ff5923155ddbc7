"""A job that starts in a fleet, in virtual time: its member is at the floor, and claims its share at the first request.

What matters is what clients are told, since Java producers send nothing until that is over.
"""

from __future__ import annotations

import pytest

from proxy.enforcement.throttle_actions import notified_ns
from proxy.fleet.shared_limits import SharedLimit
from tests.proxy.fleet.members import QUOTA, Members, Proxy, a_fleet

pytestmark = pytest.mark.claim(
    "fleet",
    "a client that starts is told of the wait at the share that is being claimed; what counts is what it was told",
)

STEP_SECONDS = 0.005
FRAME = 16_384
"""A batch of Java's default size."""
FLOOR = QUOTA * 0.02 / 10


class JavaProducer:
    """Sends frame after frame through the proxy, but nothing while it was told to wait.

    most_told_ns   the longest wait that a response contained
    passed         its bytes
    """

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.most_told_ns = self.passed = 0
        self._not_before_ns = 0
        self._is_held = False

    def step(self) -> None:
        limit, now_ns = self.proxy.limit, self.proxy.clock()
        while now_ns >= self._not_before_ns:
            if limit.debt_ns(now_ns):
                if not self._is_held:
                    self._is_held = True
                    limit.enqueue(self, FRAME)
                return
            if self._is_held:
                self._is_held = False
                limit.waiters.discard(self)
            debt_ns = limit.charge(FRAME, now_ns)
            self.passed += FRAME
            told = notified_ns(limit, debt_ns)
            self.most_told_ns = max(self.most_told_ns, told)
            self._not_before_ns = now_ns + told


def pass_seconds(world: Members, producers: list[JavaProducer], seconds: float) -> None:
    for _ in range(round(seconds / STEP_SECONDS)):
        world.run(STEP_SECONDS)
        for producer in producers:
            producer.step()
        assert sum(proxy.rate for proxy in world.proxies) <= QUOTA + 1


@pytest.mark.parametrize(("others", "first_second"), [(0, 0.75), (3, 0.4)])
def test_a_producer_that_starts_is_not_told_to_wait_for_the_floor(others: int, first_second: float) -> None:
    """Its first claim is for one of as many as there are members, in case all of them start."""
    with a_fleet() as world:
        proxies = [world.join() for _ in range(1 + others)]
        world.pass_seconds(60)
        assert [proxy.rate for proxy in proxies] == [FLOOR] * len(proxies)
        producer = JavaProducer(proxies[0])
        pass_seconds(world, [producer], 1)
        assert producer.passed > first_second * QUOTA
        assert producer.most_told_ns < 40_000_000, "a frame is 16 ms of the quota, and 8 s of the floor"
        pass_seconds(world, [producer], 4)
        assert producer.passed > 0.9 * 5 * QUOTA


def test_ten_that_start_at_once_share_from_the_first_second_on() -> None:
    with a_fleet() as world:
        producers = [JavaProducer(world.join()) for _ in range(10)]
        world.pass_seconds(60)
        pass_seconds(world, producers, 2)
        assert sum(each.passed for each in producers) > 0.8 * 2 * QUOTA
        assert min(each.passed for each in producers) > 0.7 * 2 * QUOTA / 10


def test_waits_are_those_of_the_share_that_is_claimed() -> None:
    with a_fleet() as world:
        one, two = [world.join() for _ in range(2)]
        two.wants = True
        world.pass_seconds(60)
        limit, now_ns = one.limit, world.clock()
        shared = limit.whole
        assert isinstance(shared, SharedLimit)
        assert limit.rate == FLOOR
        assert float(shared.share) == pytest.approx(QUOTA / 2, rel=0.02), "two members want all of it"
        debt_ns = limit.charge(100_000, now_ns)
        assert limit.debt_ns(now_ns) > 40e9, "at the floor"
        assert debt_ns / 1e9 == pytest.approx(0.2, rel=0.03)
        assert limit.wait_ns(now_ns) == debt_ns
        limit.enqueue(self := object(), 50_000)
        assert limit.wait_ns(now_ns) / 1e9 == pytest.approx(0.3, rel=0.03)
        limit.waiters.discard(self)


def test_without_the_topic_no_share_is_to_be_expected() -> None:
    with a_fleet() as world:
        one = world.join(shares_fallback=False, settles=False)
        limit, now_ns = one.limit, world.clock()
        limit.charge(100_000, now_ns)
        assert limit.wait_ns(now_ns) == limit.debt_ns(now_ns) > 40e9


def test_a_member_at_rest_claims_its_share_with_the_first_frame_that_leaves_debt() -> None:
    """A client that is told to wait has no request in a queue."""
    with a_fleet() as world:
        one = world.join()
        world.pass_seconds(10)
        one.limit.charge(FRAME, world.clock())
        world.until(lambda: one.rate > 0.9 * QUOTA, 0.15)
