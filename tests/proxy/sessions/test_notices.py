"""What the client is told: the larger of the broker's throttle time and the proxy's, in every version that has one."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from proxy.config.config import EnforcementOptions
from tests.proxy.conversation import Stage, without_burst
from tests.proxy.frames import (
    fetch,
    fetched,
    fetched_with_endpoints,
    produce,
    produce_throttle_ms,
    produced,
    request,
    share_fetch,
    share_fetched,
)

OpenStage = Callable[..., Stage]
#: Each byte is a millisecond of debt.
QUOTA = without_burst("client-id=etl,producer_byte_rate=1000,consumer_byte_rate=1000")


@pytest.mark.parametrize("version", range(14))
async def test_the_notice_of_a_produce_response(open_stage: OpenStage, version: int) -> None:
    stage = open_stage(quotas=[QUOTA], enforcement=EnforcementOptions(throttle_mode="notify"))
    sent = produce(1, 2_000, version)
    debt_ms = len(sent) - 4
    for broker_ms, passed_ms in ((0, 0), (0, 500), (debt_ms - 1, 0), (debt_ms + 1, 0), (99_999, 0), (7, 60_000)):
        client, broker = await stage.pair()
        await client.send(sent)
        assert await broker.frame() == sent
        stage.clock.pass_seconds(passed_ms / 1_000)
        answer = produced(1, version, broker_ms)
        await broker.send(answer)
        received = await client.frame()
        if version == 0:
            assert received == answer
        else:
            expected = max(broker_ms, debt_ms - passed_ms)
            assert produce_throttle_ms(received, version) == expected
            assert received == produced(1, version, expected)
        stage.clock.pass_seconds(1_000)


async def test_a_notice_is_rounded_up_to_a_whole_millisecond(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await stage.pair()
    await client.send(produce(1, 2_000))
    debt_ms = len(await broker.frame()) - 4
    stage.clock.now_ns += 1
    await broker.send(produced(1))
    assert produce_throttle_ms(await client.frame(), 9) == debt_ms


async def test_a_notice_is_capped(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA], enforcement=EnforcementOptions(max_throttle_ms=700))
    client, broker = await stage.pair()
    await client.send(produce(1, 20_000))
    await broker.frame()
    await broker.send(produced(1))
    assert produce_throttle_ms(await client.frame(), 9) == 700
    await client.send(fetch(2))
    await broker.frame()
    await broker.send(fetched(2, throttle_ms=900))
    assert (await client.frame())[9:13] == struct.pack(">i", 900), "what the broker says itself is not capped"


async def test_a_response_split_in_two_gets_its_notice(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    answer = produced(1, 7)
    for split in range(1, len(answer)):
        client, broker = await stage.pair()
        await client.send(produce(1, 2_000, 7))
        debt_ms = len(await broker.frame()) - 4
        await broker.send(answer[:split])
        await broker.send(answer[split:])
        assert produce_throttle_ms(await client.frame(), 7) == debt_ms
        stage.clock.pass_seconds(1_000)


@pytest.mark.parametrize("version", range(19))
async def test_the_notice_of_a_fetch_response(open_stage: OpenStage, version: int) -> None:
    stage = open_stage(quotas=[QUOTA], enforcement=EnforcementOptions(throttle_mode="notify"))
    field = 9 if version >= 12 else 8
    for broker_ms in (0, 1_999, 2_001):
        client, broker = await stage.pair()
        await client.send(fetch(1, version))
        await broker.frame()
        if version >= 16:
            answer = bytearray(fetched_with_endpoints(1, version, partitions=1, record_bytes=1_800))
            struct.pack_into(">i", answer, field, broker_ms)
        else:
            answer = bytearray(fetched(1, version, size=2_000 - 8 - 4 * (version >= 1) - (version >= 12)))
            if version >= 1:
                struct.pack_into(">i", answer, field, broker_ms)
            assert len(answer) == 2_000
        await broker.send(bytes(answer))
        received = await client.frame()
        if version == 0:
            assert received == answer
        else:
            (told,) = struct.unpack_from(">i", received, field)
            assert told == max(broker_ms, len(answer)), "each byte of the response costs a millisecond"
            assert len(received) == len(answer)
            if version < 16:
                assert received[field + 4 :] == answer[field + 4 :]
        stage.clock.pass_seconds(1_000)


@pytest.mark.parametrize("version", [1, 2])
async def test_the_notice_of_a_share_fetch_response(open_stage: OpenStage, version: int) -> None:
    """Flexible from its first version on: the header's tag buffer stands before the throttle time."""
    stage = open_stage(quotas=[QUOTA])
    client, broker = await stage.pair()
    await client.send(share_fetch(1, version))
    await broker.frame()
    answer = share_fetched(1, version, record_bytes=900)
    await broker.send(answer)
    received = await client.frame()
    assert received[:9] == answer[:9]
    assert struct.unpack_from(">i", received, 9) == (len(answer),)
    assert received[13:600] == answer[13:600]


async def test_responses_of_other_apis_have_no_throttle_time(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await stage.pair()
    await client.send(produce(1, 2_000) + request(12, 4, 2))
    await broker.frame()
    await broker.frame()
    answer = struct.pack(">iib", 11, 2, 0) + bytes(6)
    await broker.send(produced(1) + answer)
    await client.frame()
    assert await client.frame() == answer


async def test_a_notice_ends(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await stage.pair()
    await client.send(produce(1, 2_000) + fetch(2, 7))
    await broker.frame()
    await broker.frame()
    session = stage.session_of(client)
    assert session.identity.notice.until_ns > stage.clock()
    stage.clock.pass_seconds(3)
    await broker.send(produced(1))
    assert await client.frame() == produced(1)
    assert session.identity.notice.until_ns == 0
