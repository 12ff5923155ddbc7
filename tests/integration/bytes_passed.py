"""Whether a limit holds a client, by what passes in a few seconds. How even the seconds are, `make bench` measures."""

from collections.abc import Sequence

SECONDS = 3
#: A busy machine shows a test what passed this much later, or its first part later than the rest.
LATE_SECONDS = 1.0


def check_held(passed: float, seconds: float, limit: float, *, burst_seconds: float = 1.0, extra: float = 0) -> None:
    """Check what passed in `seconds` in which the client always wanted more. limit: of the same unit, per second.

    At most: the burst, the rate, and `extra`: one request of each connection. At least: half of the rate.
    """
    assert passed <= limit * (burst_seconds + seconds + LATE_SECONDS) + extra
    assert passed > limit * seconds / 2


def check_frames(
    frames: Sequence[tuple[int, int]], limit: float, *, burst_seconds: float = 1.0, connections: int = 1
) -> None:
    """The same for what a tap saw of one client. frames: (monotonic ns, bytes), in order."""
    sizes = [size for _, size in frames]
    check_held(sum(sizes), span(frames) / 1e9, limit, burst_seconds=burst_seconds, extra=connections * max(sizes))


def span(frames: Sequence[tuple[int, int]]) -> int:
    """Nanoseconds from the first frame to the last."""
    return frames[-1][0] - frames[0][0] if frames else 0
