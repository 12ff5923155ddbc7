"""Held frames of `Pair`s: what holds them, and what time and changed limits release."""

from collections.abc import Iterable

from quotas.entry import QuotaEntry
from tests.proxy.streams.pair import Pair, World

#: How the bytes of a conversation are delivered: as the test sends them, byte by byte, and in uneven pieces.
CUTS: tuple[list[int], ...] = ([], [1], [7, 300])


def holder(pair: Pair) -> tuple[str, str] | None:
    """Entity and name of the limit that holds a frame of this connection."""
    frame = pair.held
    return None if frame is None or frame.limit is None else (str(frame.limit.entity), frame.limit.name)


def wait(world: World, seconds: float = 0.0) -> None:
    """Time passes, then all frames that are due have their turns."""
    world.clock.now_ns += round(seconds * 1e9)
    for limit in world.queues:
        world.shared.wakeups._pass(limit)
    world.loop.run()


def decide_again(world: World) -> None:
    """Decide all held frames again, as after a change of limits."""
    world.shared.wakeups.limits_changed()
    world.loop.run()


def replace_quotas(world: World, entries: Iterable[QuotaEntry], share: float = 1) -> None:
    """These limits apply from now on, and no others."""
    world.registry.replace(entries, world.clock(), share=share)
    world.loop.run()
