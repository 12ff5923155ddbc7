"""Connections share the time of the event loop (`proxy.sessions.slices`): turns and rounds end after their time."""

from __future__ import annotations

from typing import Any, cast

import pytest

from proxy.sessions.pump_set import SLICE
from proxy.sessions.slices import HEAVY_NS, HEAVY_ROUND_NS, ROUND_NS, SLICE_NS, Slices
from tests.proxy.conversation import Clock, OpenStage, until
from tests.proxy.frames import heartbeat
from tests.proxy.wires import Loop, WorkClock


class Works:
    """Uses so much in each of its turns."""

    def __init__(self, turns: Slices, order: list[Works], used_ns: int) -> None:
        self.is_heavy = False
        self.slices, self.order, self.used_ns = turns, order, used_ns

    def on_slice(self) -> None:
        self.order.append(self)
        self.is_heavy = self.used_ns > HEAVY_NS
        self.slices.used(self, self.used_ns)

    def on_readable(self) -> None:
        if self.slices.may_begin(self):
            self.on_slice()
        else:
            self.slices.wait(self)


def some(used_ns: int, count: int, *more_ns: int) -> tuple[Loop, list[Works], list[Works]]:
    """So many that use `used_ns` in a turn, and one for each of `more_ns`; and the order in which they have turns."""
    loop = Loop(Clock())
    turns = Slices(cast(Any, loop), lambda: 0)
    order: list[Works] = []
    return loop, [Works(turns, order, each) for each in (*[used_ns] * count, *more_ns)], order


def test_light_connections_are_read_until_the_round_is_used_up() -> None:
    count = ROUND_NS // HEAVY_NS + 1
    loop, light, order = some(HEAVY_NS, count + 20)
    for each in light:
        each.on_readable()
    assert order == light[:count], "the one that uses the round up is the last"
    loop.round()
    assert order == light


def test_heavy_connections_share_their_part_of_a_round_in_order() -> None:
    loop, heavy, order = some(SLICE_NS, 10)
    for each in heavy:
        each.is_heavy = True
        each.on_readable()
    most = HEAVY_ROUND_NS // SLICE_NS
    assert order == heavy[:most]
    for number in range(2, 6):
        loop.round()
        assert order == heavy[: number * most]


def test_no_round_is_begun_for_little_work() -> None:
    loop, [light], _ = some(1_000, 1)
    light.on_readable()
    assert not loop.soon


@pytest.mark.parametrize("who", ["the client", "the broker", "the session"])
async def test_a_connection_that_closes_while_it_waits_for_its_turn(open_stage: OpenStage, who: str) -> None:
    client, broker = await (stage := open_stage(work_clock=WorkClock(SLICE_NS))).pair()
    session = stage.session_of(client)
    # Each step passes one of these: their client id changes.
    await client.send(b"".join(heartbeat(number, client_id="ab"[number % 2]) for number in range(900)))
    await until(lambda: session.requests.paused & SLICE)
    if who == "the client":
        client.reset()
        broker.close()
    elif who == "the broker":
        broker.reset()
    else:
        session.close()
    await stage.no_sessions()
    await until(lambda: not stage.shared.pumps.slices._heavy)
