"""A fetch reserves what it may bring (`proxy.streams.fetch_ledger`); its response or its end reconciles that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from kio.index import load_payload_module
from kio.static.constants import EntityType

from protocol.apis import SHARE_FETCH
from protocol.messages import decode
from proxy.config.config import EnforcementOptions
from proxy.streams.fetch_ledger import LARGEST_BATCH, ledger_of
from tests.proxy.conversation import Peer, Stage, until, without_burst
from tests.proxy.dialogue import MANNERS, alter, begin, debts, held
from tests.proxy.frames import (
    correlation_of,
    fetch,
    fetched,
    heartbeat,
    heartbeat_answer,
    metadata,
    share_fetch,
    share_fetched,
)

OpenStage = Callable[..., Stage]

#: A millisecond for each kilobyte, and a second for each byte.
FAST = without_burst("client-id=etl,consumer_byte_rate=1MB")
SLOW = without_burst("client-id=etl,consumer_byte_rate=1")
OWED = ("client-id:etl", "consumer_byte_rate")


async def fetches(client: Peer, broker: Peer, number: int, size: int) -> int:
    """One that is answered with `size` bytes. Returns those of the whole frame."""
    await client.send(fetch(number))
    assert correlation_of(await broker.frame()) == number
    answer = fetched(number, size=size)
    await broker.send(answer)
    assert len(await client.frame()) == len(answer)
    return len(answer)


@pytest.mark.parametrize("manner", MANNERS[:2])
async def test_the_first_reserves_the_largest_batch(open_stage: OpenStage, manner: str) -> None:
    stage = open_stage(quotas=[SLOW])
    dialogue = await begin(stage, manner)
    await dialogue.say(fetch(1))
    await dialogue.heard()
    assert debts(stage) == {OWED: LARGEST_BATCH}
    answer = fetched(1, size=700)
    await dialogue.answer(answer)
    await dialogue.told()
    assert debts(stage) == {OWED: len(answer)}


@pytest.mark.parametrize("then", [50, 700, 5_000])
async def test_the_next_fetch_is_charged_in_advance_and_settled(open_stage: OpenStage, then: int) -> None:
    stage = open_stage(quotas=[SLOW])
    client, broker = await stage.pair()
    first = await fetches(client, broker, 1, 700)
    stage.clock.pass_seconds(first)
    await client.send(fetch(2))
    await broker.frame()
    assert debts(stage) == {OWED: first}
    answer = fetched(2, size=then)
    await broker.send(answer)
    await client.frame()
    assert debts(stage) == {OWED: len(answer)}


async def test_an_empty_long_poll_is_charged_the_size_of_its_response(open_stage: OpenStage) -> None:
    """However often: each empty answer is what the next one is expected to bring."""
    stage = open_stage(quotas=[FAST])
    client, broker = await stage.pair()
    await fetches(client, broker, 1, 90_000)
    for number in range(2, 8):
        stage.clock.pass_seconds(0.1)
        empty = await fetches(client, broker, number, 20)
        assert debts(stage) == {OWED: empty / 1_000_000}


async def test_each_empty_response_lets_the_next_fetch_reserve_less(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[SLOW])
    client, broker = await stage.pair()
    for number in range(3):
        await client.send(fetch(number))
        await broker.frame()
        assert debts(stage) == {OWED: LARGEST_BATCH // 4**number}
        await broker.send(fetched(number, size=20))
        await client.frame()
        stage.clock.pass_seconds(100)


async def test_of_new_connections_of_one_client_one_fetch_passes(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[SLOW])
    pairs = [await stage.pair() for _ in range(5)]
    for number, (client, _) in enumerate(pairs):
        await client.send(fetch(number))
    await held(stage, 4)
    assert debts(stage) == {OWED: LARGEST_BATCH}
    assert correlation_of(await pairs[0][1].frame()) == 0


async def test_a_hundred_new_connections_overdraw_by_one_batch(open_stage: OpenStage) -> None:
    rate = 100_000_000
    stage = open_stage(quotas=[without_burst(f"client-id=etl,consumer_byte_rate={rate}")])
    pairs = [await stage.pair() for _ in range(100)]
    began_ns = stage.clock()
    brought = 0

    async def serve(number: int, client: Peer, broker: Peer) -> None:
        nonlocal brought
        await client.send(fetch(number))
        await broker.frame()
        answer = fetched(number, size=200_000)
        brought += len(answer)
        assert brought <= rate * (stage.clock() - began_ns) / 1_000_000_000 + LARGEST_BATCH
        await asyncio.gather(broker.send(answer), client.frame())

    async def pass_time() -> None:
        while True:
            stage.clock.pass_seconds(0.001)
            await asyncio.sleep(0.001)

    passing = asyncio.ensure_future(pass_time())
    async with asyncio.TaskGroup() as group:
        for number, pair in enumerate(pairs):
            group.create_task(serve(number, *pair))
    passing.cancel()


def asked_of_share_fetch(sent: bytes) -> tuple[int, int]:
    """`min_bytes` and `max_bytes` of a request made by `share_fetch`."""
    schema = load_payload_module(SHARE_FETCH, 1, EntityType.request).ShareFetchRequest
    request = decode(schema, sent, 18)
    return request.min_bytes, request.max_bytes


async def test_a_share_fetch_is_lowered_and_reserved(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[FAST])
    client, broker = await stage.pair()
    await client.send(share_fetch(1))
    assert asked_of_share_fetch(await broker.frame()) == (1, 10_000), "what the client earns in 10 ms"
    assert debts(stage) == {OWED: LARGEST_BATCH / 1_000_000}
    answer = share_fetched(1, record_bytes=5_000)
    await broker.send(answer)
    assert len(await client.frame()) == len(answer)
    assert debts(stage) == {OWED: len(answer) / 1_000_000}
    await client.send(share_fetch(2))
    await held(stage)


async def test_a_connection_has_a_share_until_it_ends_or_changes_its_client_id(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[without_burst("client-id=<default>,consumer_byte_rate=1GB")])
    etl, web = (ledger_of(stage.registry.resolve("ANONYMOUS", name)) for name in ("etl", "web"))
    pairs = [await stage.pair() for _ in range(3)]

    def counts() -> tuple[int, int, int, int]:
        now_ns = stage.clock()
        return etl.ready(now_ns), etl.open, web.ready(now_ns), web.open

    for number, (client, broker) in enumerate(pairs):
        stage.clock.pass_seconds(0.1)
        await fetches(client, broker, number, 700)
    assert counts() == (3, 0, 0, 0)
    stage.clock.pass_seconds(0.1)
    await pairs[0][0].send(fetch(10))
    await pairs[0][1].frame()
    assert counts() == (2, 1, 0, 0)
    for client, broker in pairs[:2]:
        stage.clock.pass_seconds(0.1)
        await client.send(fetch(20, client_id="web"))
        await broker.frame()
    assert counts() == (1, 1, 0, 2), "one fetch is open in both"
    await pairs[0][1].send(fetched(10) + fetched(20))
    for _ in range(2):
        await pairs[0][0].frame()
    assert counts() == (1, 0, 1, 1)
    for client, broker in pairs:
        client.reset()
        broker.close()
    await stage.no_sessions()
    assert counts() == (0, 0, 0, 0)


async def test_waiting_fetches_do_not_all_pass_at_once(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[FAST])
    pairs = [await stage.pair() for _ in range(5)]
    size = 0
    for number, (client, broker) in enumerate(pairs):
        stage.clock.pass_seconds(1)
        size = await fetches(client, broker, number, 10_000)
    for number, (client, _) in enumerate(pairs, 10):
        await client.send(fetch(number))
    await held(stage, 5)
    for waiting in (4, 3, 2, 1, 0):
        assert debts(stage) == {OWED: size / 1_000_000}
        stage.clock.pass_seconds(size / 1_000_000)
        await held(stage, waiting)
    for number, (_, broker) in enumerate(pairs, 10):
        assert correlation_of(await broker.frame()) == number


@pytest.mark.parametrize("end", ["the client goes", "the broker goes", "a frame that is none", "the proxy closes it"])
async def test_a_reservation_is_refunded_when_the_session_ends(open_stage: OpenStage, end: str) -> None:
    stage = open_stage(quotas=[SLOW])
    client, broker = await stage.pair()
    size = await fetches(client, broker, 1, 700)
    stage.clock.pass_seconds(size)
    await client.send(fetch(2) + fetch(3))
    await broker.frame()
    await held(stage)
    assert debts(stage) == {OWED: size}
    if end == "the client goes":
        client.reset()
        broker.close()
    elif end == "the broker goes":
        broker.reset()
    elif end == "a frame that is none":
        await broker.send(heartbeat_answer(99))
    else:
        stage.session_of(client).close()
    await stage.no_sessions()
    assert debts(stage) == {}


@pytest.mark.parametrize("how", ["little comes", "the session ends"])
async def test_a_refund_releases_other_clients(open_stage: OpenStage, how: str) -> None:
    """They were held by a reservation of many seconds."""
    stage = open_stage(quotas=[without_burst("client-id=etl,consumer_byte_rate=1000")])
    first, broker_of_first = await stage.pair()
    second, broker_of_second = await stage.pair()
    size = await fetches(first, broker_of_first, 1, 90_000)
    stage.clock.pass_seconds(size / 1_000)
    await first.send(fetch(2))
    await broker_of_first.frame()
    await second.send(fetch(1))
    await held(stage)
    if how == "little comes":
        answer = fetched(2, size=10)
        await broker_of_first.send(answer)
        await first.frame()
        await held(stage)
        stage.clock.pass_seconds(len(answer) / 1_000)
    else:
        broker_of_first.close()
        await first.closed()
    assert correlation_of(await broker_of_second.frame()) == 1


async def test_a_reservation_stays_with_the_limits_that_were_charged(open_stage: OpenStage) -> None:
    """The client goes under another name meanwhile: its new limit must not be given what the old one was charged."""
    stage = open_stage(quotas=[without_burst("client-id=<default>,consumer_byte_rate=1")])
    client, broker = await stage.pair()
    size = await fetches(client, broker, 1, 700)
    stage.clock.pass_seconds(size)
    await client.send(fetch(2) + fetch(3, client_id="web"))
    await broker.frame()
    await broker.frame()
    assert debts(stage) == {OWED: size, ("client-id:web", "consumer_byte_rate"): LARGEST_BATCH}
    answer = fetched(2, size=20)
    await broker.send(answer)
    await client.frame()
    assert debts(stage) == {("client-id:web", "consumer_byte_rate"): LARGEST_BATCH + len(answer)}


async def test_limits_that_come_and_go_while_fetches_are_open(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[SLOW])
    client, broker = await stage.pair()
    size = await fetches(client, broker, 1, 700)
    stage.clock.pass_seconds(size)
    await client.send(fetch(2))
    await broker.frame()
    alter(stage, "client-id=etl,consumer_byte_rate=1", away=True)
    await client.send(heartbeat(3))
    await broker.frame()
    alter(stage, "total=true,consumer_byte_rate=1GB")
    await client.send(metadata(4))
    await broker.frame()
    [total] = stage.registry.limits_in_use()
    before = total.algorithm.headroom(stage.clock())
    answer = fetched(2, size=100)
    await broker.send(answer)
    await client.frame()
    await until(lambda: total.algorithm.headroom(stage.clock()) == before - len(answer))


async def test_a_dry_run_reserves_and_holds_nothing(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[SLOW], enforcement=EnforcementOptions(dry_run=True))
    client, broker = await stage.pair()
    for number in range(4):
        await client.send(fetch(number))
        assert await broker.frame() == fetch(number)
        await broker.send(fetched(number))
        assert await client.frame() == fetched(number)
    assert stage.paused() == {}
