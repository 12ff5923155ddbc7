"""The queue against a slow model. That it is fair and that nobody starves: `tests.proxy.sessions.test_waiting`."""

import tracemalloc
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
