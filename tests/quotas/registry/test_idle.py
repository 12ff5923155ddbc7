"""What was idle for an hour is found, and only what is due is looked at."""

from hypothesis import given
from hypothesis import strategies as st

from quotas.registry.idle import IDLE_NS, Idle

SECOND = 1_000_000_000
MINUTE = 60 * SECOND


def test_a_clock_that_goes_back_loses_nothing() -> None:
    idle: Idle[str] = Idle()
    idle.watch("new")
    assert list(idle.due(10 * IDLE_NS)) == []
    assert list(idle.due(0)) == []
    assert list(idle.due(11 * IDLE_NS + MINUTE)) == ["new"]


@given(st.lists(st.tuples(st.integers(0, 5 * 3600 * SECOND), st.integers(0, 99))), st.integers(1, 30))
def test_each_thing_is_looked_at_once_about_an_hour_after_its_last_use(
    uses: list[tuple[int, int]], minutes_between_looks: int
) -> None:
    """With a look every few minutes: never before the hour is over, at most one look late, and one look an hour."""
    last_used = {thing: max(at_ns for at_ns, each in uses if each == thing) for _, thing in uses}
    first_used = {thing: min(at_ns for at_ns, each in uses if each == thing) for _, thing in uses}
    idle: Idle[int] = Idle()
    watched: set[int] = set()
    forgotten: dict[int, int] = {}
    looks = dict.fromkeys(last_used, 0)
    step_ns = minutes_between_looks * MINUTE
    for now_ns in range(0, 9 * IDLE_NS, step_ns):
        for thing in [thing for thing, at_ns in first_used.items() if at_ns <= now_ns and thing not in watched]:
            watched.add(thing)
            idle.watch(thing)
        for thing in idle.due(now_ns):
            looks[thing] += 1
            used_ns = max(at_ns for at_ns, each in uses if each == thing and at_ns <= now_ns)
            if used_ns + IDLE_NS > now_ns:
                idle.check_at(thing, used_ns + IDLE_NS)
            else:
                forgotten[thing] = now_ns
                watched.discard(thing)
                first_used[thing] = min(
                    (at_ns for at_ns, each in uses if each == thing and at_ns > now_ns), default=1 << 63
                )
    assert set(forgotten) == set(last_used)
    for thing, now_ns in forgotten.items():
        assert last_used[thing] + IDLE_NS <= now_ns <= last_used[thing] + IDLE_NS + 2 * step_ns + MINUTE
        assert looks[thing] <= 10
