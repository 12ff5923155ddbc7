"""Frames that wait for limits: what passes in any time, that none starves, fairness, evenness, and that nothing of a
rate is lost. Over any limits that cross, with the real requests, queues and timers; `senders` stands for the bytes.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quotas.admission.limit import Limit
from quotas.algorithms.leased_bucket import LeasedBucket
from quotas.entity import TOTAL, AnyEntity, Entity, EntityKind, Named
from quotas.limit_kinds import PRODUCER_BYTE_RATE, REQUEST_RATE
from quotas.time_units import NS_PER_MS
from tests.proxy.sessions.senders import Scene, Sender
from tests.quotas.algorithms.slow_lease import SECOND

#: Its requests are of the base class of all, without a response.
pytestmark = [
    pytest.mark.pure,
    pytest.mark.claim(
        "enforcement", "clients that share one limit get equal parts, also with large beside small requests"
    ),
]

MB = 1_000_000
ETL = Entity(client_id="etl")
#: Each in a place of its own among the limits of a frame, but for the first two: one counts frames, one bytes.
LIMITS: Mapping[str, tuple[str, AnyEntity]] = {
    "R": (REQUEST_RATE, ETL),
    "C": (PRODUCER_BYTE_RATE, ETL),
    "G": (PRODUCER_BYTE_RATE, Named(EntityKind.RESOURCE_GROUP, "jobs")),
    "T": (PRODUCER_BYTE_RATE, Named(EntityKind.TOPIC, "rows")),
    "A": (PRODUCER_BYTE_RATE, TOTAL),
}


def limit_of(name: str, rate: int, burst_ns: int) -> Limit:
    kind, entity = LIMITS[name]
    return Limit(kind, entity, LeasedBucket(rate, burst_ns))


@dataclass(frozen=True)
class Client:
    """A connection: its limits, one letter each, the sizes of its frames in turn, and the time between two."""

    limits: str
    sizes: tuple[int, ...]
    pause_ns: int = 0


@dataclass(frozen=True)
class Case:
    """`rates`: units per second and burst in ns, by letter."""

    rates: Mapping[str, tuple[int, int]]
    clients: tuple[Client, ...]
    read_size: int = 30
    late_ns: tuple[int, ...] = (0,)
    work_ns: int = 0

    def build(self, frames: int = 100) -> tuple[Scene, list[Sender]]:
        limits = {name: limit_of(name, *terms) for name, terms in self.rates.items()}
        scene = Scene(limits.values(), late_ns=self.late_ns, work_ns=self.work_ns, frames=frames)
        senders = [
            Sender(
                scene,
                tuple(limits[name] for name in client.limits),
                cycle(client.sizes),
                read_size=self.read_size,
                pause_ns=client.pause_ns,
            )
            for client in self.clients
        ]
        return scene, senders


terms = st.tuples(
    st.sampled_from([10, 100, 1_000]) | st.integers(1, 1_000),
    st.sampled_from([0, SECOND // 10, SECOND]) | st.integers(0, 2 * SECOND),
)
#: From one byte to several bursts, in up to ten reads.
sizes = st.lists(st.sampled_from([1, 10, 100]) | st.integers(1, 300), min_size=1, max_size=3).map(tuple)
lateness = st.sampled_from([(0,), (NS_PER_MS,), (0, 3 * NS_PER_MS, NS_PER_MS // 2)])


@st.composite
def cases(draw: st.DrawFn, pauses: st.SearchStrategy[int], works: st.SearchStrategy[int]) -> Case:
    rates = draw(st.dictionaries(st.sampled_from("RCGTA"), terms, min_size=1, max_size=4))
    names = st.sets(st.sampled_from(sorted(rates)), min_size=1).map(lambda chosen: "".join(sorted(chosen)))
    clients = draw(st.lists(st.builds(Client, names, sizes, pauses), min_size=2, max_size=10))
    return Case(rates, tuple(clients), draw(st.sampled_from([7, 30, 1_000])), draw(lateness), draw(works))


never = st.just(0)
sometimes = st.sampled_from([0, 0, SECOND // 10, 5 * SECOND])


# ---- what is charged in any time

# Each bucket holds less than a byte, so all that is charged at once is one frame.
A_BURST_BELOW_ONE_BYTE = Case(
    {"C": (51, 2), "G": (51, 2)},
    (Client("C", (1,)), Client("C", (1,), SECOND // 10), Client("G", (10,)), Client("CG", (10,))),
)
Lease = tuple[str, int, int, int, int]
times_ms = st.integers(0, 60_000)
leases = st.tuples(
    st.sampled_from("RCGTA"), st.integers(1, 1_000), st.sampled_from([0, SECOND]), times_ms, st.integers(1, 1_000)
)


@pytest.mark.claim("enforcement", "with any burst: bytes ≤ burst + rate x t + one request, or one response")
@pytest.mark.claim("limits", "the bound of token-bucket")
@given(
    case=cases(sometimes, st.sampled_from([0, 0, NS_PER_MS // 2])),
    deaths=st.lists(st.tuples(times_ms, st.integers(0, 9)), max_size=6),
    changes=st.lists(times_ms, max_size=3),
    granted=st.lists(st.tuples(times_ms, leases), max_size=6),
)
@example(A_BURST_BELOW_ONE_BYTE, [], [], [])
def test_in_any_time_a_limit_charges_its_burst_its_rate_and_one_frame(
    case: Case, deaths: list[tuple[int, int]], changes: list[int], granted: list[tuple[int, Lease]]
) -> None:
    """Whoever comes, waits, and hangs up; while all are decided again, and rates are granted: then the integral of the
    rate, to the grain.
    """
    scene, senders = case.build()
    limits = {name: limit for limit in scene.ledgers for name, of in LIMITS.items() if of == (limit.name, limit.entity)}
    for at_ms, index in deaths:
        scene.loop.call_later(at_ms / 1_000, senders[index % len(senders)].die)
    for at_ms in changes:
        scene.loop.call_later(at_ms / 1_000, scene.wakeups.limits_changed)
    for at_ms, (name, rate, burst_ns, lease_ms, floor) in granted:
        if name in limits:
            scene.loop.call_later(at_ms / 1_000, scene.grant, limits[name], rate, burst_ns, lease_ms * NS_PER_MS, floor)
    scene.run()
    for limit, ledger in scene.ledgers.items():
        assert ledger.charged == limit.algorithm.passed
        assert ledger.over <= 0


# ---- no frame starves
A_RING = Case(
    {"C": (100, 0), "T": (100, 0), "A": (100, 0)},
    tuple(Client(limits, (10,)) for limits in ("CT", "TA", "CA", "C", "T", "A")),
)
A_PAIR = Case(
    {"C": (12, 0), "A": (10, 0)},
    (
        *(Client("A", (72,)), Client("C", (89,)), Client("A", (100,))),
        *(Client("CA", (size,)) for size in (100, 100, 1, 100, 1, 240, 10, 92, 100)),
    ),
)
A_KNOT = Case(
    {"R": (59, SECOND), "C": (594, SECOND), "G": (100, 0), "T": (100, 0), "A": (100, 0)},
    (
        *(
            Client("CGTA", (10,)),
            Client("CTA", (10,)),
            Client("RCGTA", (1,)),
            Client("CT", (10,)),
            Client("CGT", (100,)),
        ),
        *(
            Client("GA", (246,)),
            Client("RG", (10,)),
            Client("CA", (10,)),
            Client("CGTA", (10, 100)),
            Client("RA", (100,)),
        ),
    ),
)


@given(cases(never, st.sampled_from([0, 0, NS_PER_MS // 2])))
@example(A_RING)
@example(A_PAIR)
@example(A_KNOT)
def test_while_a_frame_waits_another_connection_passes_as_many_bytes_and_one_frame(case: Case) -> None:
    """So it waits for a bounded time, whoever comes: it queues at each of its limits once, and where it has had its
    turn its later reads go first, so that another connection passes one frame at most.
    """
    scene, senders = case.build()
    scene.run()
    assert sum(sender.passed for sender in senders) == 100
    largest = {sender: max(client.sizes) for sender, client in zip(senders, case.clients, strict=True)}
    queued: Counter[tuple[int, Limit]] = Counter()
    for wait in scene.waits:
        queued[wait.number, wait.limit] += not wait.again
        for other, charged in wait.charged.items():
            one_frame = 1 if wait.limit.name == REQUEST_RATE else largest[other]
            assert charged <= one_frame + (0 if wait.again else wait.size), wait
    assert max(queued.values(), default=0) <= 1


# ---- one limit
@given(
    terms,
    st.lists(sizes, min_size=2, max_size=5),
    st.sampled_from([7, 30, 1_000]),
    lateness,
    st.sampled_from([0, 0, NS_PER_MS // 2]),
)
def test_connections_of_one_limit_differ_by_one_frame_of_each(
    rate_and_burst: tuple[int, int],
    frames: list[tuple[int, ...]],
    read_size: int,
    late_ns: tuple[int, ...],
    work_ns: int,
) -> None:
    """In bytes, over any time in which both always want to send; from the time on at which all have waited. And by one
    more where timers are late: meanwhile the limit earns, and the frame that had its turn goes on without a new one.
    """
    clients = tuple(Client("A", each) for each in frames)
    scene, senders = Case({"A": rate_and_burst}, clients, read_size, late_ns, work_ns).build(frames=150)
    while len({wait.sender for wait in scene.waits}) < len(senders) and scene.loop.next():
        pass
    begin = len(scene.charges)
    while scene.frames and scene.loop.next():
        pass
    largest = {sender: max(each) for sender, each in zip(senders, frames, strict=True)}
    passed: Counter[Sender] = Counter()
    ahead: Counter[tuple[Sender, Sender]] = Counter()  # by how much the one was ahead of the other, at most
    for _, one, _, units in scene.charges[begin:]:
        passed[one] += units
        for other in senders:
            if other is not one:
                ahead[one, other] = max(ahead[one, other], passed[one] - passed[other])
                more = max(largest[one], largest[other]) if any(late_ns) else 0
                assert ahead[one, other] + ahead[other, one] <= largest[one] + largest[other] + more


# ---- nothing of the rate is lost
@given(cases(sometimes, never), st.lists(st.tuples(times_ms, st.integers(0, 9)), max_size=4))
def test_a_limit_that_is_waited_for_earns_no_credit(case: Case, deaths: list[tuple[int, int]]) -> None:
    """But for the time by which a timer is late, and its whole milliseconds: then the next frame passes."""
    scene, senders = case.build()
    for at_ms, index in deaths:
        scene.loop.call_later(at_ms / 1_000, senders[index % len(senders)].die)
    longest_ns = NS_PER_MS + max(case.late_ns)
    while scene.loop.next():
        now_ns = scene.clock()
        for limit in {wait.limit for wait in scene.held.values()}:
            assert limit.algorithm.headroom(now_ns) <= limit.algorithm.rate * longest_ns // SECOND


@given(
    st.lists(st.integers(20_000, MB), min_size=1, max_size=6),
    st.integers(100_000, 10 * MB),
    st.lists(st.integers(0, SECOND // 10), max_size=3),
)
def test_none_of_the_rate_is_lost_while_it_is_wanted(frames: list[int], rate: int, pauses_ns: list[int]) -> None:
    """The other side of the bound: with one connection that always wants more, at least rate * T is charged."""
    pauses_ns += [0] * len(frames)
    clients = [Client("A", (size,), pause_ns) for size, pause_ns in zip(frames, pauses_ns, strict=False)]
    case = Case({"A": (rate, SECOND // 10)}, (*clients, Client("A", (max(frames),))), read_size=131_072)
    scene, _ = case.build()
    begin_ns = scene.clock()
    (ledger,) = scene.ledgers.values()
    while scene.frames and scene.loop.next():
        assert ledger.charged * SECOND >= rate * (scene.charges[-1][0] - begin_ns)


# ---- rates that change while frames wait
@pytest.mark.parametrize(
    ("rate", "lease_s", "floor", "passes_at_ms"),
    [
        pytest.param(100, 1_000, 1, 10_000, id="as before"),
        pytest.param(1_000, 1_000, 1, 1_900, id="raised"),
        pytest.param(50, 1_000, 1, 19_000, id="lowered"),
        pytest.param(1_000, 0.5, 100, 5_500, id="raised for a while"),
        pytest.param(1, 1, 899, 3_000, id="lowered for a while"),
    ],
)
def test_debt_is_paid_at_the_rate_of_now(rate: int, lease_s: float, floor: int, passes_at_ms: int) -> None:
    """Another rate is granted a second after the first frame of 1,000 bytes at 100 a second: 900 bytes are left."""
    limit = limit_of("A", 100, 0)
    scene = Scene([limit])
    begin_ns = scene.clock()
    Sender(scene, (limit,), iter([1_000, 1]))
    scene.loop.call_later(1, scene.grant, limit, rate, 0, round(lease_s * SECOND), floor)
    while len(scene.charges) < 2:
        assert len(scene.loop.pending) <= 2, "one timer, and the change"
        scene.loop.next()
    assert scene.charges[1][0] - begin_ns == passes_at_ms * NS_PER_MS
