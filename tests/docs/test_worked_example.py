"""The times of "A request of 10 MB at 5 MB/s, step by step" in docs/how-it-works.md are those of the real classes."""

from itertools import pairwise

import pytest

from quotas.admission.limit import Limit
from quotas.parsing.parse import parse_spec
from tests.docs.pages import ROOT, rows
from tests.proxy.frames import produce, produce_throttle_ms, produced
from tests.proxy.streams.pair import Pair, World

pytestmark = pytest.mark.claim("limits", "a request of 10 MB at 5 MB/s, with its times")

PAGE = (ROOT / "docs/how-it-works.md").read_text(encoding="utf-8")
_, SECTION = PAGE.split("\n## A request of 10 MB at 5 MB/s, step by step\n")
SECTION = SECTION.split("\n## ")[0]
#: As one line: the page is wrapped.
TEXT = " ".join(SECTION.split())
ROWS = [row for row in rows(SECTION) if row[0].endswith(" ms")]
QUOTA = "client-id=etl,producer_byte_rate=5MB"
READ = 500_000
READ_EVERY_MS = 5
STEP_NS = 1_000_000


def request(number: int, size: int) -> bytes:
    """A Produce request that counts `size` bytes."""
    return produce(number, 2 * size + 4 - len(produce(number, size)))


class Example:
    """Two connections of one client: what happens on them up to a time."""

    def __init__(self) -> None:
        self.world = World([parse_spec(QUOTA)])
        self.java, self.other = Pair(self.world), Pair(self.world)
        self.start_ns = self.world.clock()
        a = request(1, 10_000_000)
        #: A arrives in equal reads; the first has the length field too.
        self.left = [a[: READ + 4], *(a[at : at + READ] for at in range(READ + 4, len(a), READ))]

    @property
    def limit(self) -> Limit:
        (limit,) = self.world.registry.limits_in_use()
        return limit

    def at(self, ms: int) -> None:
        """Let time pass until then."""
        self.world.loop.pass_seconds((self.start_ns + ms * STEP_NS - self.world.clock()) / 1e9)

    def read(self) -> None:
        """One more read of A."""
        self.java.client_sends(self.left.pop(0))

    def until(self, ms: int) -> None:
        """All that happens up to then."""
        now_ms = (self.world.clock() - self.start_ns) // STEP_NS
        for at_ms in range(now_ms + 1, ms + 1):
            self.at(at_ms)
            if self.left and not at_ms % READ_EVERY_MS:
                self.read()
            if at_ms == 70:
                self.other.client_sends(request(2, 100_000))
            elif at_ms == 110:
                self.java.broker_sends(produced(1))

    @property
    def figures(self) -> list[str]:
        """What was charged, and the bucket, as the page has them."""
        limits = list(self.world.registry.limits_in_use())
        if not limits:
            return ["0.0 MB", "5.000 MB"]  # made by the first request, full
        bucket, now_ns = limits[0].algorithm, self.world.clock()
        level = bucket.headroom(now_ns) - bucket.debt_ns(now_ns) * bucket.rate // 10**9
        return [f"{bucket.passed / 1e6:.1f} MB", f"{level / 1e6:.3f} MB".replace("-", "\N{MINUS SIGN}")]


def test_each_row_has_what_is_charged_and_what_is_left_then() -> None:
    example = Example()
    for time, _, *figures in ROWS:
        example.until(int(time.removesuffix(" ms")))
        assert [time, *figures] == [time, *example.figures]


def test_the_rows_say_who_passes_and_who_waits() -> None:
    assert [row[0] for row in ROWS] == [f"{ms} ms" for ms in (0, 5, 50, 55, 70, 100, 110, 1005, 1025)]
    example = Example()
    java, other = example.java, example.other
    example.until(50)
    assert len(java.to_broker) == 5_000_004
    example.until(55)
    assert not java.is_held
    assert example.limit.debt_ns(example.world.clock())
    example.until(70)
    assert other.is_held
    assert not java.is_held
    assert example.limit.expected_time_of(example.limit.waiters.queued) == 20 * STEP_NS
    example.until(100)
    assert len(java.to_broker) == 10_000_004
    assert example.limit.debt_ns(example.world.clock()) == 905 * STEP_NS
    example.until(110)
    (response,) = java.received()
    assert f"throttle_time_ms={produce_throttle_ms(response, 9)}" in TEXT
    assert produce_throttle_ms(response, 9) == 905 + 20 - 10
    example.until(1004)
    assert other.is_held
    example.until(1005)
    assert other.sent()
    assert example.limit.debt_ns(example.world.clock()) == 20 * STEP_NS
    example.until(1025)
    java.client_sends(request(3, 10_000_000))
    assert not java.is_held


def test_a_client_that_ignores_the_throttle_time_is_held_for_the_same_time() -> None:
    assert "its next request would come at 110 ms and be held until 1025 ms" in TEXT
    example = Example()
    example.until(110)
    example.java.client_sends(request(3, 10_000_000))
    example.until(1024)
    assert example.java.is_held
    assert len(example.java.sent()) == 1
    example.until(1025)
    assert len(example.java.sent()) == 2


def test_in_the_long_run_the_rate_passes() -> None:
    assert "10 MB pass every two seconds" in TEXT
    pair = Pair(world := World([parse_spec(QUOTA)]))
    began_ns = []
    for number in range(1, 6):
        pair.client_sends(request(number, 10_000_000))
        while pair.is_held:
            world.loop.next()
        began_ns.append(world.clock())
    assert [after - before for before, after in pairwise(began_ns[1:])] == [pytest.approx(2e9, rel=0.001)] * 3


def test_what_is_announced_and_does_not_arrive_takes_nothing_from_others() -> None:
    assert "If A had stopped after 2 MB" in TEXT
    example = Example()
    for read in range(1, 5):
        example.at(READ_EVERY_MS * read)
        example.read()
    assert example.limit.algorithm.passed == 2_000_000
    example.other.client_sends(request(2, 100_000))
    assert example.other.sent()
    assert not example.other.is_held
