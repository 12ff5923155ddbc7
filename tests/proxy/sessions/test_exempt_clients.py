"""Exempt clients at sockets: they pass while others are held by the same limit, and are not charged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.proxy.conversation import Stage, without_burst
from tests.proxy.dialogue import alter, debts, held
from tests.proxy.frames import batch, produce_records, produced

OpenStage = Callable[..., Stage]

ROWS = [produce_records(number, {"rows": [batch(1, 1_000)]}) for number in range(6)]
FREE = [produce_records(number, {"rows": [batch(1, 1_000)]}, client_id="free") for number in range(6)]


@pytest.mark.parametrize(
    ("spec", "limit"),
    [
        ("total,producer_byte_rate=10000,exempt-client-id=free", "producer_byte_rate"),
        ("total,bytes_in_rate=10000,exempt-client-id=fr*", "bytes_in_rate"),
        ("topic=rows,bytes_in_rate=10000,exempt-client-id=free", "bytes_in_rate"),
    ],
)
async def test_an_exempt_client_passes_those_that_wait(open_stage: OpenStage, spec: str, limit: str) -> None:
    stage = open_stage(quotas=[without_burst(spec)])
    client, broker = await stage.pair()
    await client.send(ROWS[0])
    await broker.frame()
    await client.send(ROWS[1])
    await held(stage)
    [(key, before)] = debts(stage).items()
    assert key[1] == limit
    free, broker_of_free = await stage.pair()
    for number in range(5):  # alone, and several at once
        await free.send(b"".join(FREE[: number + 1]))
        for each in range(number + 1):
            assert await broker_of_free.frame() == FREE[each]
            await broker_of_free.send(produced(each))
            assert await free.frame() == produced(each), "without a notice"
    after = debts(stage)[key]
    assert after == before
    assert stage.paused() == {"quota": 1}
    stage.clock.pass_seconds(after)
    assert await broker.frame() == ROWS[1]


async def test_an_exemption_that_is_configured_frees_a_held_request(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[without_burst("client-id=<default>,producer_byte_rate=1")])
    client, broker = await stage.pair()
    await client.send(ROWS[0])
    await broker.frame()
    await client.send(ROWS[1])
    await held(stage)
    alter(stage, "client-id=etl,producer_byte_rate=unlimited")
    assert await broker.frame() == ROWS[1]
    alter(stage, "client-id=etl,producer_byte_rate=unlimited", away=True)
    await client.send(ROWS[2])
    await broker.frame()
    await client.send(ROWS[3])
    await held(stage)
