"""The off switch and changes of the mode, while frames are held and notices are due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from proxy.config.config import EnforcementOptions
from proxy.config.quotas_file import Quotas
from proxy.in_force import MOST_REFRESHED, Caller
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import Stage, until, without_burst
from tests.proxy.dialogue import debts, held
from tests.proxy.frames import batch, fetch, fetched, produce, produce_records, produce_throttle_ms, produced

OpenStage = Callable[..., Stage]

ME = Caller(1000, 42)
SLOW = without_burst("client-id=etl,producer_byte_rate=10")


def throttled(stage: Stage) -> list[int]:
    return [histogram.count for entity in stage.metrics.entities for histogram in entity.throttles.values()]


async def test_off_releases_at_once_and_on_holds_again(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[SLOW])
    client, broker = await stage.pair()
    await client.send(produce(1, 500))
    await broker.frame()
    await client.send(produce(2, 500))
    await held(stage)
    stage.server.in_force.switch_off(60, ME)
    for number in (2, 3, 4):
        if number > 2:
            await client.send(produce(number, 500))
        assert await broker.frame() == produce(number, 500)
    assert (stage.paused(), stage.shared.wakeups._timers) == ({}, {})
    stage.server.in_force.switch_on(ME)
    await client.send(produce(5, 500) + produce(6, 500))
    assert await broker.frame() == produce(5, 500), "what passed while it was off is not owed"
    await held(stage)


async def test_off_writes_no_notice_that_was_due_before(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[SLOW])
    client, broker = await stage.pair()
    await client.send(produce(1, 500))
    await broker.frame()
    stage.server.in_force.switch_off(60, ME)
    await broker.send(produced(1))
    assert produce_throttle_ms(await client.frame(), 9) == 0


async def test_off_ends_the_delay_of_a_response_with_the_next_sweep(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[SLOW], enforcement=EnforcementOptions(throttle_mode="delay"))
    client, broker = await stage.pair()
    await client.send(produce(1, 500))
    await broker.frame()
    await broker.send(produced(1))
    await until(lambda: stage.paused() == {"delay": 1})
    stage.server.in_force.switch_off(60, ME)
    assert await client.frame() == produced(1)
    assert (stage.paused(), stage.waiting()) == ({}, [])


async def test_throttles_shows_no_notice_while_off(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[SLOW])
    client, broker = await stage.pair()
    await client.send(produce(1, 500))
    await broker.frame()
    assert len(stage.waiting()) == 1
    stage.server.in_force.switch_off(60, ME)
    await until(lambda: not stage.waiting())


async def test_off_ends_by_itself(open_stage: OpenStage, caplog: pytest.LogCaptureFixture) -> None:
    stage = open_stage(quotas=[SLOW])
    in_force = stage.server.in_force
    in_force.switch_off(5, ME)
    in_force.switch_off(60, Caller(0, 7))
    stage.clock.pass_seconds(59.9)
    in_force.tick(stage.clock())
    assert "(by uid 0, pid 7)" in in_force.status
    assert (in_force.mode, stage.metrics.enforcement_enabled) == ("dry-run", False)
    stage.clock.pass_seconds(0.1)
    await until(lambda: stage.metrics.enforcement_enabled)  # the ticks of the proxy
    assert in_force.status == "enforcement is on, throttle mode auto"
    assert caplog.records[-1].__dict__["fields"]["reason"] == "time is over"


async def test_a_dry_run_that_is_configured_outlasts_the_switch(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[SLOW])
    in_force = stage.server.in_force
    in_force.switch_off(60, ME)
    dry = replace(stage.config, enforcement=EnforcementOptions(dry_run=True))
    in_force.take_over(dry, in_force.quotas)
    in_force.switch_on(ME)
    assert in_force.status == "enforcement is off: dry_run is configured"
    in_force.take_over(stage.config, in_force.quotas)
    assert stage.metrics.enforcement_enabled


async def test_a_mode_that_is_configured_anew_applies_to_open_connections(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[SLOW], enforcement=EnforcementOptions(dry_run=True))
    client, broker = await stage.pair()
    for number in (1, 2):
        await client.send(produce(number, 500))
        assert await broker.frame() == produce(number, 500)
    notify = replace(stage.config, enforcement=EnforcementOptions(throttle_mode="notify"))
    stage.server.in_force.take_over(notify, stage.server.in_force.quotas)
    await client.send(produce(3, 500) + produce(4, 500))
    assert await broker.frame() == produce(3, 500), "a dry run leaves no debt"
    await held(stage)
    assert stage.server.in_force.status == "enforcement is on, throttle mode notify"


@pytest.mark.parametrize("spec", ["total,{}_rate=1000", "topic=rows,{}_rate=1000"])
async def test_debts_of_a_dry_run_are_not_served_by_others(open_stage: OpenStage, spec: str) -> None:
    name = "producer_byte" if "total" in spec else "bytes_in"
    stage = open_stage(quotas=[without_burst(spec.format(name))])
    noisy, noisy_broker = await stage.pair()
    stage.server.in_force.switch_off(60, ME)
    for number in range(3):
        await noisy.send(produce_records(number, {"rows": [batch(1, 30_000)]}))
        await noisy_broker.frame()
    assert [each > 80 for each in debts(stage).values()] == [True]
    stage.server.in_force.switch_on(ME)
    quiet, broker = await stage.pair()
    sent = produce_records(1, {"rows": [batch(1, 100)]}, client_id="quiet")
    await quiet.send(sent)
    assert await broker.frame() == sent
    assert [each < 1 for each in debts(stage).values()] == [True]


async def test_a_held_request_is_counted_once(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[SLOW])
    client, broker = await stage.pair()
    await client.send(produce(1, 500))
    await broker.frame()
    await client.send(produce(2, 500))
    await held(stage)
    stage.server.in_force.switch_off(60, ME)
    assert await broker.frame() == produce(2, 500)
    assert sum(throttled(stage)) == 2, "a notice, and a hold"


async def test_fetches_are_not_lowered_while_off(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[without_burst("client-id=etl,consumer_byte_rate=10")])
    client, broker = await stage.pair()
    stage.server.in_force.switch_off(60, ME)
    for number in (1, 2):
        await client.send(fetch(number))
        assert await broker.frame() == fetch(number)
        await broker.send(fetched(number))
        assert await client.frame() == fetched(number)


@pytest.mark.parametrize("is_whole", [False, True])
async def test_off_charges_a_held_request_once(open_stage: OpenStage, is_whole: bool) -> None:
    """Also if it is released before all of its bytes have arrived."""
    stage = open_stage(quotas=[without_burst("client-id=etl,producer_byte_rate=10000")])
    client, broker = await stage.pair()
    await client.send(produce(1, 500))
    first = await broker.frame()
    sent = produce(2, 100_000)
    await client.send(sent if is_whole else sent[:50_000])
    await held(stage)
    stage.server.in_force.switch_off(60, ME)
    await client.send(b"" if is_whole else sent[50_000:])
    assert await broker.frame() == sent
    assert list(debts(stage).values()) == [(len(first) + len(sent) - 8) / 10_000]


async def test_the_last_of_several_changes_is_in_force_at_the_end(open_stage: OpenStage) -> None:
    """They come while the limits in use are still updated for those before."""
    stage = open_stage(quotas=[parse_spec("client-id=<default>,producer_byte_rate=10")])
    limits = [stage.registry.resolve("u", f"c{number}").produce.limits[0] for number in range(5 * MOST_REFRESHED)]
    in_force = stage.server.in_force
    for rate in (20, 30, 40):
        in_force.take_over_quotas(Quotas((parse_spec(f"client-id=<default>,producer_byte_rate={rate}"),), 1))
        in_force.switch_off(60, ME)
        await asyncio.sleep(0)
        in_force.switch_on(ME)
    assert any(limit.rate < 40 for limit in limits)
    await until(lambda: all(limit.rate == 40 for limit in limits))
    assert not in_force._is_refreshing


async def test_many_limits_are_changed_in_steps_and_no_client_sees_an_old_one(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[parse_spec("client-id=<default>,producer_byte_rate=10")])
    limits = [stage.registry.resolve("u", f"c{number}").produce.limits[0] for number in range(5 * MOST_REFRESHED)]
    quotas = Quotas((parse_spec("client-id=<default>,producer_byte_rate=20"),), 1)
    stage.server.in_force.take_over_quotas(quotas)
    assert sum(limit.rate == 20 for limit in limits) <= 2 * MOST_REFRESHED, "the others in later rounds of the loop"
    assert stage.registry.resolve("u", f"c{len(limits) - 1}").produce.limits[0].rate == 20
    await until(lambda: all(limit.rate == 20 for limit in limits))
