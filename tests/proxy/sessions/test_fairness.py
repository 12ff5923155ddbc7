"""Connections that wait for one limit share it by bytes: real queues and timers, on a clock and a loop of the test."""

from dataclasses import replace
from fractions import Fraction
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.sessions.wakeups import LONGEST_PASS_NS, Wakeups
from quotas.admission.limit import SPARE_NS, Limit
from quotas.limit_options import LimitOptions
from quotas.parsing.parse import parse_spec
from tests.proxy.frames import batch, produce, produce_records
from tests.proxy.streams.pair import Pair, World

pytestmark = pytest.mark.claim(
    "enforcement", "clients that share one limit get equal parts, also with large beside small requests"
)

RATE = 4_000_000
TOTAL = 800_000


def of_records(correlation: int, size: int) -> bytes:
    return produce_records(correlation, {"rows": [batch(1, size)]})


@settings(max_examples=30)
@given(
    sizes=st.lists(st.sampled_from([1_000, 2_000, 40_000, 200_000, 400_000]), min_size=2, max_size=4),
    of_topic=st.booleans(),
    burst_seconds=st.sampled_from([Fraction(0), Fraction(1, 100), Fraction(1)]),
    late_ns=st.lists(st.sampled_from([0, 500_000, 5_000_000]), min_size=1, max_size=5),
)
@example(sizes=[1_000, 2_000], of_topic=False, burst_seconds=Fraction(1, 100), late_ns=[500_000, 500_000, 5_000_000])
@example(sizes=[1_000, 1_000], of_topic=False, burst_seconds=Fraction(1, 100), late_ns=[5_000_000])
def test_shares_are_of_bytes(sizes: list[int], of_topic: bool, burst_seconds: Fraction, late_ns: list[int]) -> None:
    """Each always has its next frame, of a size of its own. While all want to send, none gets ahead by more than its
    largest turn and that of another. Served by frames, the large ones would be ahead by nearly all that was sent.
    """
    scope, frame_of = (
        ("topic=rows,bytes_in_rate", of_records) if of_topic else ("client-id=etl,producer_byte_rate", produce)
    )
    world = World(
        [replace(parse_spec(f"{scope}={RATE}"), options=LimitOptions(burst_seconds=burst_seconds))], late_ns=late_ns
    )
    debtor = Pair(world)
    debtor.client_sends(frame_of(0, int(RATE * burst_seconds) + 100_000))
    pairs = [Pair(world) for _ in sizes]
    for pair, size in zip(pairs, sizes, strict=True):
        pair.client_sends(*(frame_of(number, size) for number in range(-(-TOTAL // size))))
    # The largest turn and that of another, the heads of frames, and what is left when a queue ends.
    most_apart = sum(sorted(sizes)[-2:]) + 2_500 + (RATE * SPARE_NS // 10**9 if burst_seconds else 0)
    # A limit on topics counts record bytes.
    shares = [len(batch(1, size)) / len(of_records(0, size)) if of_topic else 1 for size in sizes]
    got = [0]
    while world.loop.next():
        got = [round(len(pair.to_broker) * share) for pair, share in zip(pairs, shares, strict=True)]
        if max(got) >= TOTAL * 0.85:
            break
        assert max(got) - min(got) <= most_apart, (sizes, got)
    assert max(got) >= TOTAL * 0.85


def crowd(number: int, size: int = 6) -> tuple[World, list[Pair]]:
    """So many wait, each with a frame of this size; a fifth of the time of a pass goes by with each of them."""
    world = World([parse_spec("client-id=etl,producer_byte_rate=1MB")])

    def ticking() -> int:
        world.clock.now_ns += LONGEST_PASS_NS // 5
        return world.clock.now_ns

    world.shared.wakeups = Wakeups(cast("Any", world.loop), ticking)
    Pair(world).client_sends(produce(0, 1_400_000))
    pairs = [Pair(world) for _ in range(number)]
    for pair in pairs:
        pair.client_sends(produce(1, size))
    world.clock.pass_seconds(60)
    return world, pairs


@pytest.mark.pure
def test_one_pass_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose turn it is are many, and still the loop sees to others in between."""
    monkeypatch.setattr(Limit, "has_room_for_all", lambda *_: False)
    world, pairs = crowd(7)
    passed = 0
    while world.loop.next():
        before, passed = passed, sum(bool(pair.to_broker) for pair in pairs)
        assert passed - before <= 5
        assert all(pair.to_broker for pair in pairs[:passed]), "in their order"
    assert passed == 7


def test_a_queue_too_long_for_one_pass_ends_where_there_is_room_for_all() -> None:
    """Else clients that never stop sending would join its end before the next pass, and queue for each other."""
    world, pairs = crowd(7)
    world.loop.next()
    [limit] = world.registry.limits_in_use()
    assert not limit.waiters.waiting
    while world.loop.next():
        pass
    assert all(pair.to_broker for pair in pairs)
