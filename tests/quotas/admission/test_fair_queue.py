"""The queue against a slow model, and what its docstring promises: byte-fair, FIFO within a session, nobody starves."""

import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from weakref import ref

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quotas.admission.fair_queue import FairQueue

KB, MB = 1000, 1_000_000


class Frame:
    """One that can be looked for."""


sizes = st.one_of(st.integers(0, 1_000_000), st.sampled_from([1, KB, 16 * KB, MB]))


@dataclass
class SlowQueue:
    """Self-clocked fair queueing as the paper has it, with lists, and a finish kept for ever for everyone."""

    virtual_time: int = 0
    arrivals: int = 0
    finish: dict[str, int] = field(default_factory=dict)
    waiting: list[tuple[int, int, str, int]] = field(default_factory=list)  # finish, arrival, waiter, size

    def push(self, waiter: str, size: int, *, is_first: bool = False) -> None:
        self.arrivals += 1
        finish = max(self.virtual_time, self.finish.get(waiter, 0)) + (0 if is_first else max(1, size))
        self.waiting.append((finish, self.arrivals, waiter, size))

    def pop(self) -> str:
        self.waiting.sort()
        self.virtual_time, _, waiter, _ = self.waiting.pop(0)
        self.finish[waiter] = self.virtual_time
        return waiter

    def discard(self, waiter: str) -> None:
        self.waiting = [frame for frame in self.waiting if frame[2] != waiter]

    def names(self) -> list[str]:
        return [frame[2] for frame in self.waiting]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*["push"] * 6, *["pop"] * 4, "put back", "discard", "discard", "take all"]),
            st.sampled_from("abcde"),
            sizes,
        ),
        max_size=200,
    )
)
@example([("push", "a", 3), ("push", "a", 5), ("push", "b", 1), ("take all", "a", 0), ("push", "b", 2)])
def test_agrees_with_the_slow_model(actions: list[tuple[str, str, int]]) -> None:
    queue: FairQueue[str] = FairQueue()
    model = SlowQueue()
    for action, waiter, size in actions:
        if action == "push" and waiter in model.names():
            with pytest.raises(ValueError, match="queued once"):
                queue.push(waiter, size)
        elif action == "push":
            queue.push(waiter, size)
            model.push(waiter, size)
        elif action == "discard":
            queue.discard(waiter)
            model.discard(waiter)
        elif action == "put back" and model.waiting:
            refused = queue.pop()
            assert refused == model.pop()
            for each in (queue, model):
                each.push(refused, size, is_first=True)
        elif action == "take all":
            assert queue.take_all() == [model.pop() for _ in model.names()]
        elif model.waiting:
            assert queue.pop() == model.pop()
        else:
            with pytest.raises(IndexError, match="the queue is empty"):
                queue.pop()
        assert sorted(queue._frames) == sorted(model.names())
        assert queue.waiting == len(model.waiting)
        assert queue.queued == sum(size for *_, size in model.waiting)


@given(
    st.lists(st.lists(sizes.filter(bool), min_size=1, max_size=5), min_size=2, max_size=6),
    st.integers(1, 300),
)
def test_sessions_that_always_want_more_get_the_same_bytes(frames: list[list[int]], rounds: int) -> None:
    """Over any interval two of them differ by at most one largest frame of each (Golestani 1994)."""
    queue: FairQueue[int] = FairQueue()
    served = [0] * len(frames)
    shown = [0] * len(frames)
    history = [tuple(served)]

    def show_next(session: int) -> None:
        queue.push(session, frames[session][shown[session] % len(frames[session])])

    for session in range(len(frames)):
        show_next(session)
    for _ in range(rounds):
        session = queue.pop()
        served[session] += frames[session][shown[session] % len(frames[session])]
        shown[session] += 1
        show_next(session)  # at once: it had left the queue in between
        history.append(tuple(served))
    for one in range(len(frames)):
        for other in range(one):
            lead = [now[one] - now[other] for now in history]
            assert max(lead) - min(lead) <= max(frames[one]) + max(frames[other])


@given(st.lists(st.tuples(st.integers(0, 9), sizes), max_size=150), sizes, st.integers(0, 60))
def test_nobody_waits_for_ever(others: list[tuple[int, int]], own_size: int, after: int) -> None:
    """While a frame waits, every other session is served at most its bytes and one frame of that session's own."""
    queue: FairQueue[int] = FairQueue()
    largest = dict(sorted(others))
    arrivals = iter(others)
    waiting: dict[int, list[int]] = {}

    def arrive() -> None:
        for session, size in [frame for frame in [next(arrivals, None)] if frame is not None]:
            waiting.setdefault(session, []).append(size)
            if len(waiting[session]) == 1:
                queue.push(session, size)

    def serve() -> tuple[int, int]:
        """The session that is served, and the bytes of its frame. Its next one is queued at once."""
        session = queue.pop()
        size = waiting[session].pop(0)
        if waiting[session]:
            queue.push(session, waiting[session][0])
        return session, size

    for round_number in range(after):
        arrive()
        if queue.waiting and round_number % 3 == 0:
            serve()
    waiting[-1] = [own_size]
    queue.push(-1, own_size)
    passed_by: Counter[int] = Counter()
    while (served := serve())[0] != -1:
        passed_by[served[0]] += served[1]
        arrive()
        arrive()
    assert all(total <= max(1, own_size) + largest[session] for session, total in passed_by.items())


def test_sessions_that_die_while_nobody_is_served_leave_nothing_behind() -> None:
    queue: FairQueue[int] = FairQueue()
    for session in range(-10, 0):
        queue.push(session, KB)
    tracemalloc.start()
    for session in range(20_000):
        queue.push(session, KB)
        queue.discard(session)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 50_000
    assert [queue.pop() for _ in range(10)] == list(range(-10, 0))


def test_nothing_is_kept_of_frames_that_are_gone() -> None:
    """Each refers to its connection, which may have closed while it waited."""
    queue: FairQueue[Frame] = FairQueue()
    frames = [Frame() for _ in range(3)]
    for size, frame in enumerate(frames, 1):
        queue.push(frame, size)
    queue.discard(frames[1])
    queue.discard(frames[2])
    assert queue.pop() is frames[0]
    gone = [ref(frame) for frame in frames]
    frames.clear()
    del frame
    assert [each() for each in gone] == [None] * 3
