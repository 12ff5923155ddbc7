"""Whole conversations of sessions that wait: conservation, evenness, nobody for ever; over one limit and over several.

`tests.quotas.serving` serves them on a virtual clock as the proxy does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import repeat

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quotas.admission.limit import Limit
from quotas.admission.limit_set import limit_set
from quotas.algorithms.token_bucket import TokenBucket
from quotas.entity import Entity
from tests.quotas.serving import SECOND, Serving, Session

MB = 1_000_000
MS = 1_000_000
ETL = Entity(client_id="etl")


@dataclass(frozen=True)
class Client:
    """A session: the names of its limits, one letter each, the size of its frames and the time between two."""

    limits: str
    size: int
    pause_ns: int = 0


@dataclass(frozen=True)
class World:
    """`rates` are (units per second, burst_ns) by letter."""

    rates: Mapping[str, tuple[int, int]]
    clients: tuple[Client, ...]
    tick_ns: int = 1

    def limits(self) -> dict[str, Limit]:
        return {name: Limit(name, ETL, TokenBucket(*terms)) for name, terms in self.rates.items()}

    def sessions(self, limits: Mapping[str, Limit]) -> list[Session]:
        return [
            Session(
                f"{number}:{client.limits}",
                limit_set(tuple(limits[name] for name in client.limits)),
                repeat(client.size),
                client.pause_ns,
            )
            for number, client in enumerate(self.clients)
        ]


terms = st.tuples(
    st.one_of(st.sampled_from([10, 100, 1000]), st.integers(1, 1000)),
    st.one_of(st.sampled_from([0, SECOND // 10, SECOND, 5 * SECOND]), st.integers(0, 2 * SECOND)),
)
sizes = st.one_of(st.sampled_from([1, 10, 100]), st.integers(0, 300))


@st.composite
def worlds(draw: st.DrawFn, pauses: st.SearchStrategy[int]) -> World:
    rates = draw(st.dictionaries(st.sampled_from("ABCD"), terms, min_size=1))
    names = st.sets(st.sampled_from(sorted(rates)), min_size=1).map(lambda chosen: "".join(sorted(chosen)))
    clients = draw(st.lists(st.builds(Client, names, sizes, pauses), min_size=2, max_size=12))
    return World(rates, tuple(clients), draw(st.sampled_from([1, MS])))


never = st.just(0)
sometimes = st.sampled_from([0, 0, SECOND // 10, 5 * SECOND])


def most_beyond_the_rate(limit: Limit, serving: Serving) -> int:
    """The most that passed through a limit in any interval, less rate * T; in grains of a unit * a nanosecond."""
    rate = limit.rate
    assert isinstance(rate, int)
    most = beyond = last_ns = 0
    for frame in serving.passed:
        if limit in frame.limits:
            beyond = max(0, beyond - rate * (frame.at_ns - last_ns)) + frame.size * SECOND
            most, last_ns = max(most, beyond), frame.at_ns
    return most


def check_conservation(limits: Mapping[str, Limit], serving: Serving) -> None:
    """The law of `Ticket`: rate * T + one frame + the larger of burst and frame; the latter with the fraction of a unit
    that no reservation covers.
    """
    for limit in limits.values():
        rate = limit.rate
        assert isinstance(rate, int)
        frame = max((frame.size for frame in serving.passed if limit in frame.limits), default=0) * SECOND
        burst = rate * limit.algorithm.burst_ns
        assert most_beyond_the_rate(limit, serving) <= frame + max(burst, frame + burst % SECOND)


# The burst is a fraction of a unit, and reservations are whole units: so the bucket's fraction passes as well.
A_BURST_BELOW_ONE_UNIT = World(
    {"A": (51, 2), "B": (51, 2)},
    (Client("A", 1), Client("A", 1, SECOND // 10), Client("B", 10), Client("AB", 10)),
)


@given(worlds(sometimes))
@example(A_BURST_BELOW_ONE_UNIT)
def test_conservation_with_any_number_of_crossing_limits(world: World) -> None:
    limits = world.limits()
    serving = Serving(world.tick_ns)
    serving.join(world.sessions(limits))
    serving.run(1 << 62, frames=150)
    check_conservation(limits, serving)


@given(
    worlds(sometimes),
    st.lists(st.tuples(st.integers(0, 60 * SECOND), st.integers(0, 11)), max_size=12),
    st.lists(st.integers(0, 60 * SECOND), max_size=3),
)
def test_conservation_while_sessions_die_come_and_look_again(
    world: World, deaths: list[tuple[int, int]], looks: list[int]
) -> None:
    """And when all is over nothing is left reserved: every bucket fills up again."""
    limits = world.limits()
    serving = Serving(world.tick_ns)
    sessions = world.sessions(limits)
    serving.join(sessions[::2])
    serving.join(sessions[1::2], at_ns=SECOND)
    for at_ns, number in deaths:
        serving.at(at_ns, partial(serving.die, sessions[number % len(sessions)]))
    for at_ns in looks:
        serving.at(at_ns, serving.limits_changed)
    serving.run(1 << 62, frames=150)
    check_conservation(limits, serving)
    for session in sessions:
        serving.die(session)
    for limit in limits.values():
        assert (limit.waiters.waiting, limit.reserved, limit.waiters.held) == (0, 0, 0)
        burst_ns = limit.algorithm.burst_ns
        later_ns = serving.now_ns + limit.debt_ns(serving.now_ns) + burst_ns
        assert limit.headroom(later_ns) == limit.rate * burst_ns // SECOND


def test_two_frames_larger_than_the_burst_may_pass_at_once_and_no_third() -> None:
    """Why the law counts such a frame in place of the burst: one of them reserves, alone, and passes with the next."""
    fast, slow = Limit("fast", ETL, TokenBucket(100, 0)), Limit("slow", ETL, TokenBucket(1, 0))
    serving = Serving()
    both, only_fast = limit_set((fast, slow)), limit_set((fast,))
    slow.algorithm.record(60, 0)
    waits_twice = Session("waits twice", both, iter([100]))
    serving.join([waits_twice])
    serving.run(1)
    serving.held[waits_twice].ticket.at_limit = fast
    assert not both.admit(100, 0, serving.held[waits_twice].ticket).admitted  # it reserves of `fast`
    serving.join([Session(f"late {number}", only_fast, iter([100])) for number in range(3)], at_ns=60 * SECOND - 1)
    serving.run(61 * SECOND)
    assert [frame.at_ns for frame in serving.passed] == [60 * SECOND - 1, 60 * SECOND]
    assert most_beyond_the_rate(fast, serving) == 200 * SECOND - 100


# ---- nobody waits for ever


# Frames of no bytes, and of one beside a burst of 0: the latter would take the place of the former.
EMPTY_FRAMES = World(
    {"A": (10, 0), "B": (10, 0)},
    (Client("A", 1), Client("AB", 1), Client("B", 1), Client("AB", 0), Client("AB", 1)),
)


@given(worlds(never))
@example(EMPTY_FRAMES)
def test_the_frame_that_was_held_first_passes_after_one_turn_at_each_of_its_limits(world: World) -> None:
    """So the frames that were held before a frame are all that can keep it from passing, however many come later."""
    limits = world.limits()
    sessions = world.sessions(limits)
    serving = Serving(world.tick_ns)
    serving.join(sessions)
    serving.run(1 << 62, frames=150)
    for session in sessions:
        assert max(session.holds_as_first.values(), default=0) <= len(session.limits.limits), session


A_RING = World(
    {"A": (100, 0), "B": (100, 0), "C": (100, 0)},
    tuple(Client(limits, 10) for limits in ("AB", "BC", "AC", "A", "B", "C")),
)
A_PAIR = World(
    {"A": (12, 0), "B": (10, 0)},
    (
        *(Client("B", 72), Client("A", 89), Client("B", 100)),
        *(Client("AB", size) for size in (100, 100, 1, 100, 1, 240, 10, 92, 100)),
    ),
)
# Buckets of which one frame reserves at a time, and frames that need three: each might hold what the next one needs.
A_KNOT = World(
    {"A": (594, SECOND), "B": (100, 0), "C": (100, 0), "D": (100, 0)},
    (
        *(Client("ABCD", 10), Client("ACD", 10), Client("ABCD", 1), Client("AC", 10), Client("ABC", 100)),
        *(Client("BD", 246), Client("B", 10), Client("AD", 10), Client("ABCD", 10), Client("ABCD", 100)),
    ),
)


@pytest.mark.parametrize("world", [A_RING, A_PAIR, A_KNOT])
def test_everybody_gets_through_under_constant_pressure(world: World) -> None:
    serving = Serving()
    sessions = world.sessions(world.limits())
    serving.join(sessions)
    serving.run(1 << 62, frames=1500)
    passed = {session.name: session.passed for session in sessions}
    assert min(passed.values()) >= 5, passed
    assert max(max(session.holds.values()) for session in sessions) <= 100


# ---- one limit


def serve(frames: Mapping[str, int], rate: int, burst_ns: int, end_ns: int, pauses_ns: Mapping[str, int]) -> Serving:
    limits = limit_set((Limit("producer_byte_rate", ETL, TokenBucket(rate, burst_ns)),))
    serving = Serving()
    serving.join(Session(name, limits, repeat(size), pauses_ns.get(name, 0)) for name, size in frames.items())
    serving.run(end_ns)
    return serving


def test_every_second_is_at_the_rate_for_every_client() -> None:
    frames = {"large": MB, "small": 1000, "middle": 16_384}
    passed = serve(frames, 5 * MB, SECOND, 20 * SECOND, {}).passed
    for second in range(1, 20):
        total = sum(frame.size for frame in passed if frame.at_ns // SECOND == second)
        assert abs(total - 5 * MB) <= MB, second
    steady = [frame for frame in passed if frame.at_ns >= SECOND]
    assert abs(sum(frame.size for frame in steady) - 19 * 5 * MB) <= MB
    for name in frames:
        share = sum(frame.size for frame in steady if frame.session.name == name)
        assert abs(share - 19 * 5 * MB / 3) <= 2 * MB, name


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(20_000, MB), min_size=1),
    st.integers(100_000, 10 * MB),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, SECOND // 10)),
)
def test_nothing_of_the_rate_is_lost_while_somebody_wants_it(
    frames: dict[str, int], rate: int, pauses_ns: dict[str, int]
) -> None:
    """The other side of conservation: with one session that always wants more, at least rate * T passes."""
    always = {**frames, "always": max(frames.values())}
    end_ns = 40 * max(always.values()) * SECOND // rate + SECOND // 10
    passed = serve(always, rate, SECOND // 10, end_ns, pauses_ns).passed
    assert sum(frame.size for frame in passed) * SECOND >= rate * passed[-1].at_ns
