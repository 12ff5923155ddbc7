"""Producers that the disk guard slows or stops: what one connection receives, and when.

A batch has 101 bytes. The guard holds a request for half of its client's timeout, which it reads in the request.
"""

import struct

import pytest

from protocol.apis import PRODUCE
from protocol.produce_refusals import KAFKA_STORAGE_ERROR
from proxy.config.config import EnforcementOptions
from quotas.adaptive.producer_guard import HOLD_NS, ProducerGuard
from quotas.exemption import Exemption
from quotas.limit_kinds import DISK_GUARD
from quotas.parsing.parse import parse_spec
from tests.protocol.kafka_messages import idempotent, produce_body
from tests.proxy.frames import heartbeat, request
from tests.proxy.streams.pair import Pair, World, frames_of
from tests.proxy.streams.test_refusals import CUTS, errors_of

MESSAGE = "disk guard 85%..95%: broker 3 at 95.2 % in /data"
TIMEOUT_MS = 4_000
HALF_SECONDS = TIMEOUT_MS / 2000
END_TXN = 26


def guarded(world: World, rate: int = 0, *, exempt: tuple[Exemption, ...] = (), spare: int = 0) -> ProducerGuard:
    """The guard is active from now on. Without renewal, since nothing renews it here."""
    guard = ProducerGuard(exempt)
    guard.message = MESSAGE
    world.registry.guard_producers(guard)
    guard.stopped(spare, world.clock())
    world.registry.set_rate(guard.limit, *guard.terms(rate, world.clock()), world.clock())
    if not rate:
        guard.stay_stopped(world.clock())
    return guard


def batch(
    correlation: int, version: int = 9, acks: int = -1, sequence: int = 0, timeout_ms: int = TIMEOUT_MS, name: str = ""
) -> bytes:
    """A request for one partition with this timeout, and perhaps a transactional id."""
    body = produce_body(version, [("t", [idempotent(sequence)])], name or None, acks)
    usual, wanted = struct.pack(">hi", acks, 30_000), struct.pack(">hi", acks, timeout_ms)
    return request(PRODUCE, version, correlation, body.replace(usual, wanted, 1))


def refusal_times(pair: Pair, world: World, seconds: float) -> list[float]:
    """When each refusal arrived, in tenths of seconds from now, rounded down."""
    found, began_ns, seen = [], world.clock(), len(pair.received())
    while world.clock() < began_ns + seconds * 1e9:
        world.loop.pass_seconds(0.05)
        for frame in pair.received()[seen:]:
            [(_, _, error, message)], _ = errors_of(frame)
            assert (error, message) == (KAFKA_STORAGE_ERROR, MESSAGE)
            found.append((world.clock() - began_ns) // 10**8 / 10)
        seen = len(pair.received())
    return found


@pytest.mark.claim("operate", "wait for half of their request timeout, at most 15 s")
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("version", [4, 7, 8, 9, 12])
def test_a_request_is_held_then_refused_with_the_disk_in_the_message(version: int, cuts: tuple[int, ...]) -> None:
    world = World()
    guard = guarded(world)
    pair = Pair(world, cuts=cuts)
    pair.client_sends(batch(1, version))
    half = HOLD_NS / 1e9 if cuts == (1,) else HALF_SECONDS  # the timeout arrives when its head has been decided
    world.loop.pass_seconds(half - 0.05)
    assert (pair.sent(), pair.received(), pair.is_held) == ([], [], True)
    world.loop.pass_seconds(0.1)
    [answer] = pair.received()
    errors, throttle_ms = errors_of(answer, version)
    assert errors == [("t", 0, KAFKA_STORAGE_ERROR, MESSAGE if version >= 8 else None)]
    assert (throttle_ms > 0) == (version >= 6), "clients that wait for it wait before they try again"
    assert (pair.sent(), guard.refused, pair.is_held) == ([], 1, False)


@pytest.mark.parametrize(("version", "acks"), [(0, 1), (2, 1), (3, -1), (9, 0)])
def test_old_versions_and_acks_0_are_delayed_only(version: int, acks: int) -> None:
    world = World()
    guarded(world)
    pair = Pair(world)
    sent = batch(1, version, acks)
    pair.client_sends(sent)
    world.loop.pass_seconds(45)
    assert (pair.sent(), pair.received(), pair.is_held) == ([], [], True)
    world.registry.guard_producers(None)
    world.loop.run()
    assert pair.sent() == [sent]


def test_requests_behind_a_refused_one_are_refused_at_once_and_in_order() -> None:
    """All were sent at the same time, so the timeouts of all are running."""
    world = World()
    guard = guarded(world)
    pair = Pair(world)
    pair.client_sends(*[batch(number, sequence=4 * number) for number in range(5)])
    assert refusal_times(pair, world, 2 * HALF_SECONDS) == [HALF_SECONDS] * 5
    assert [int.from_bytes(frame[4:8], "big") for frame in pair.received()] == list(range(5))
    # Sent again, it is held again.
    pair.client_sends(batch(9))
    assert refusal_times(pair, world, 2 * HALF_SECONDS) == [HALF_SECONDS]
    assert guard.refused == 6


def test_the_hold_is_bounded_for_any_timeout() -> None:
    world = World()
    guarded(world)
    pair = Pair(world)
    pair.client_sends(batch(1, timeout_ms=2**31 - 1))
    assert refusal_times(pair, world, 20) == [HOLD_NS / 1e9]
    pair.client_sends(batch(2, timeout_ms=-5))
    assert refusal_times(pair, world, 1) == [0]


def test_batches_that_follow_a_refused_one_wait_for_it_after_the_guard_has_opened() -> None:
    world = World()
    guarded(world)
    pair = Pair(world)
    pair.client_sends(batch(1))
    world.loop.pass_seconds(HALF_SECONDS + 1)
    world.registry.guard_producers(None)
    pair.to_client.clear()
    later, first = batch(2, sequence=4), batch(3)
    pair.client_sends(later)
    assert (pair.sent(), errors_of(pair.received()[0])[0][0][2]) == ([], KAFKA_STORAGE_ERROR)
    pair.client_sends(first, later)
    assert pair.sent() == [first, later]


def test_nothing_but_produce_waits_and_it_passes_at_the_rate_of_the_guard() -> None:
    world = World()
    guarded(world, rate=1000)
    pair, other = Pair(world), Pair(world)
    pair.client_sends(*[batch(number, timeout_ms=60_000) for number in range(10)])
    other.client_sends(heartbeat(1))
    assert other.sent() == [heartbeat(1)]
    sent_bytes = [0]
    for _ in range(4):
        world.loop.pass_seconds(0.25)
        sent_bytes.append(len(pair.to_broker) - sum(sent_bytes))
    assert all(100 <= each <= 500 for each in sent_bytes[1:]), sent_bytes
    assert world.throttled()["etl", DISK_GUARD, "pause"] >= 1 or world.throttled()


def test_exempt_producers_pass() -> None:
    world = World()
    guarded(world, exempt=(Exemption((), ("etl*",)),))
    pair = Pair(world)
    pair.client_sends(batch(1))
    assert pair.sent() == [batch(1)]


def test_what_is_refused_was_charged_to_no_limit_of_its_client() -> None:
    world = World([parse_spec("client-id=etl,producer_byte_rate=1000")])
    guarded(world)
    pair = Pair(world)
    pair.client_sends(batch(1))
    world.loop.pass_seconds(HALF_SECONDS + 1)
    assert world.passed()["client-id:etl", "producer_byte_rate"] == 0
    world.registry.guard_producers(None)
    pair.client_sends(batch(2))
    assert world.passed()["client-id:etl", "producer_byte_rate"] == len(batch(2)) - 4


def test_a_request_that_has_begun_to_pass_ends_after_the_same_time() -> None:
    pair = Pair(world := World())
    whole = batch(1)
    pair.client_sends(whole[:100])
    guarded(world)
    pair.client_sends(whole[100:])
    assert len(pair.to_broker) == 100
    world.loop.pass_seconds(HOLD_NS / 1e9 + 1)
    assert frames_of(pair.to_broker) == [whole]


def test_a_dry_run_refuses_nothing() -> None:
    world = World(enforcement=EnforcementOptions(dry_run=True))
    guard = guarded(world)
    pair = Pair(world)
    pair.client_sends(batch(1), batch(2))
    assert (pair.sent(), guard.refused) == ([batch(1), batch(2)], 0)


# ---- transactions
@pytest.mark.claim("operate", "transactions without an EndTxn since then may write for 60 s more")
@pytest.mark.parametrize("version", [4, 9])
def test_an_open_transaction_may_go_on_until_it_ends(version: int) -> None:
    world = World()
    guarded(world, spare=1000)
    pair = Pair(world)
    more = batch(1, version, name="tx")
    pair.client_sends(more)
    assert pair.sent() == [more]
    end = request(END_TXN, 3, 2, b"\x03tx" + struct.pack(">qhb", 7, 2, 1) + b"\x00")
    pair.client_sends(end)
    assert pair.sent() == [more, end]
    pair.client_sends(batch(3, version, name="tx"))
    assert pair.is_held, "another transaction"
    other = Pair(world)
    other.client_sends(batch(1, version, name="other"))
    assert not other.is_held


@pytest.mark.parametrize(("spare", "seconds"), [(100, 0), (1000, 61)])
def test_open_transactions_are_bounded_in_bytes_and_time(spare: int, seconds: float) -> None:
    world = World()
    guard = guarded(world, spare=spare)
    world.loop.pass_seconds(seconds)
    guard.stay_stopped(world.clock())
    pair = Pair(world)
    pair.client_sends(batch(1, name="tx"))
    assert pair.is_held
