"""One run from its start to its end, and what is wrong with it.

It has two phases. With faults, some clients may wait; then everything is healed, and within a bounded time each client
must have been served again. At its end all clients leave, and nothing may be left of them.
"""

import logging
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from simulation import checks, faults
from simulation.counted import OF_PART, Counted
from simulation.draws import DRAWN, NONE, PAIR, Options
from simulation.notices import Notices
from simulation.pair import Pair
from simulation.process import ProxyProcess
from simulation.shares import Shares
from simulation.world import RELOAD_SECONDS, World

START_SECONDS: Final = 5.0
BOUND_SECONDS: Final = 0.1
OBJECTS_EVERY: Final = 3
"""In one of so many seeds all objects are looked at, which takes 0.1 s."""


def _run(world: World) -> None:
    world.on_response.append(partial(checks.response, world))
    Shares(world)
    Notices(world)
    looks_at_objects = world.seed % OBJECTS_EVERY == 0
    before = checks.live_objects() if looks_at_objects else Counter()
    counted = _with_faults(world)
    _healed(world)
    for each in counted:
        each.judge()
    world.stop_clients()
    checks.at_rest(world)
    if looks_at_objects:
        checks.freed(world, before)
    _end(world)


def _with_faults(world: World) -> list[Counted]:
    """Returns what is judged when all faults are healed."""
    kernel = world.kernel
    kernel.run(START_SECONDS, lambda: all(_is_ready(world, each) for each in world.proxies))
    world.populate()
    pair = Pair(world) if PAIR in world.parts and not world.is_fleet else None
    counted = [OF_PART[part](world) for part in sorted(world.parts) if part in OF_PART]
    kernel.every(BOUND_SECONDS, partial(checks.bounded, world))
    for _, fault in world.faults:
        kernel.after(fault.at, partial(faults.inject, world, fault))
    kernel.run(world.options.seconds)
    checks.used(world)
    if pair is not None:
        pair.judge()
    kernel.run(max([0.0, *(each.ends - world.options.seconds for _, each in world.faults)]) + RELOAD_SECONDS)
    return counted


def _healed(world: World) -> None:
    for number in range(len(world.proxies)):
        world.restart(number)
    if world.disks:
        world.disks.heal()
    if world.stored:
        world.stored.heal()
    checks.explained(world)
    checks.healed(world)


def _end(world: World) -> None:
    for proxy in world.proxies:
        proxy.send_signal(signal.SIGTERM)
    if not world.kernel.run(30, lambda: all(each.exit_code is not None for each in world.proxies)):
        world.fail("a proxy did not exit within 30 s after SIGTERM")
    checks.ended(world)
    for proxy in world.proxies:
        proxy.close()


def _is_ready(world: World, proxy: ProxyProcess) -> bool:
    return any(at == proxy.address and event == "listening" for at, _, event, _ in world.logged)


@contextmanager
def _logs_to(world: World) -> Iterator[None]:
    handler, logger = logging.Handler(), logging.getLogger("proxy")
    handler.emit = world.note_log  # type: ignore[method-assign]
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


def simulate(seed: int, options: Options = DRAWN) -> World:
    """Run the world of a seed. What is wrong with it is in `problems`."""
    with tempfile.TemporaryDirectory() as directory:
        world = World(seed, options, Path(directory))
        with _logs_to(world):
            try:
                _run(world)
            except Exception:  # noqa: BLE001 - of any part of it
                world.fail(traceback.format_exc())
            finally:
                for proxy in world.started:
                    proxy.close()
    return world


def shrunk(world: World) -> Options:
    """Fewer faults with which it still fails: half of them, and the other half, as long as one of both does."""
    options, chosen = world.options, [number for number, _ in world.faults]
    size = max(1, len(chosen) // 2)
    while chosen:
        for start in range(0, len(chosen), size):
            fewer = chosen[:start] + chosen[start + size :]
            text = "+".join(map(str, fewer)) or NONE
            if simulate(world.seed, replace(options, faults=text)).problems:
                chosen = fewer
                break
        else:
            if size == 1:
                break
            size = size // 2
    return replace(options, faults="+".join(map(str, chosen)) or NONE)
