"""The off switch and changes of the mode, while frames are held and notices are due."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from proxy.config.config import EnforcementOptions
from proxy.config.quota_sources import CLUSTER, Quotas
from proxy.process.active_config import MOST_REFRESHED
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import OpenStage, Stage, arrives, until, without_burst
from tests.proxy.dialogue import held
from tests.proxy.frames import batch, produce, produce_records

SLOW = without_burst("client-id=etl,producer_byte_rate=10")


def throttled(stage: Stage) -> list[int]:
    return [histogram.count for entity in stage.metrics.entities for histogram in entity.throttles.values()]


async def test_off_releases_at_once_and_on_holds_again(open_stage: OpenStage) -> None:
    client, broker = await (stage := open_stage(quotas=[SLOW])).pair()
    await arrives(client, broker, produce(1, 500))
    await client.send(produce(2, 500))
    await held(stage)
    stage.server.active_config.toggle()
    for number in (2, 3, 4):
        if number > 2:
            await client.send(produce(number, 500))
        assert await broker.frame() == produce(number, 500)
        assert sum(throttled(stage)) == number, "each request once"
    assert (stage.paused(), stage.shared.wakeups._timers) == ({}, {})
    stage.server.active_config.toggle()
    await client.send(produce(5, 500) + produce(6, 500))
    assert await broker.frame() == produce(5, 500), "what passed while it was off is not owed"
    await held(stage)


async def test_entries_without_a_match_warn_once(open_stage: OpenStage, caplog: pytest.LogCaptureFixture) -> None:
    specs = ("client-id=etl", "client-id=elt", "user=<default>", "topic=orders", "user=a", "resource-group=g,user=b")
    entries = [parse_spec(f"{spec},{'bytes_in' if 'topic' in spec else 'producer_byte'}_rate=5MB") for spec in specs]
    #: Nothing shows whether these were matched.
    silent = [parse_spec(spec) for spec in ("client-id=free,request_rate=unlimited", "ip=127.0.0.0/8,connections=9")]
    stage = open_stage(quotas=[*entries, *silent])
    active = stage.server.active_config
    active.warn_of_unmatched(stage.clock())
    stage.clock.pass_seconds(1_000)
    active.warn_of_unmatched(stage.clock())
    client, broker = await stage.pair()
    await arrives(client, broker, produce_records(1, {"clicks": [batch(1, 100)]}))

    def warned(*after_seconds: int) -> list[object]:
        for seconds in after_seconds:
            stage.clock.pass_seconds(seconds)
            active.warn_of_unmatched(stage.clock())
        return [record.__dict__["fields"]["entities"] for record in caplog.records]

    first = "client-id:etl, client-id:elt, topic:orders, user:a, resource-group:g"  # each user's is stronger than etl's
    assert warned(0, 59) == []
    await until(lambda: warned(1))
    assert warned(300) == [first]
    assert caplog.records[0].__dict__["fields"]["seen"] == "etl as ANONYMOUS (0.0 MB)"
    active.replace_quotas(Quotas({"": (*entries[:2], *entries[4:5])}, 1))
    await arrives(client, broker, produce_records(2, {"clicks": [batch(1, 100)]}))
    assert warned(0, 59) == [first]
    await until(lambda: len(warned(1)) > 1)
    assert warned(300) == [first, "client-id:elt, user:a"]


@pytest.mark.parametrize("is_dry", [False, True])
async def test_a_signal_switches_it(open_stage: OpenStage, caplog: pytest.LogCaptureFixture, is_dry: bool) -> None:
    stage = open_stage(quotas=[SLOW], enforcement=EnforcementOptions(dry_run=is_dry))
    active = stage.server.active_config
    caplog.clear()  # the quota is below what clients can keep

    def state() -> tuple[bool, list[tuple[str, str]]]:
        """Whether quotas are enforced, and the log since the last call."""
        logged = [(each.getMessage(), each.__dict__["fields"]["by"]) for each in caplog.records]
        caplog.clear()
        assert stage.metrics.enforcement_enabled == stage.shared.context.actions.enforces
        return stage.metrics.enforcement_enabled, logged

    def switched(is_on: bool, by: str) -> tuple[bool, list[tuple[str, str]]]:
        return is_on, [("enforcement_on" if is_on else "enforcement_off", by)]

    assert state() == (not is_dry, [])
    for is_on in (is_dry, not is_dry, is_dry):
        active.toggle()
        assert state() == switched(is_on, "SIGUSR2")
    await active.apply(stage.config, active.quotas)
    assert state() == switched(not is_dry, "file")
    await active.apply(stage.config, active.quotas)
    assert state() == (not is_dry, []), "no change"
    await active.apply(stage.config, replace(active.quotas, dry_run=not is_dry))
    assert state() == switched(is_dry, "file")


async def test_the_last_of_several_changes_applies_at_the_end(open_stage: OpenStage) -> None:
    """They come while the limits in use are still updated for those before."""
    stage = open_stage(quotas=[parse_spec("client-id=<default>,producer_byte_rate=10")])
    limits = [stage.registry.resolve("u", f"c{number}").produce.limits[0] for number in range(5 * MOST_REFRESHED)]
    active_config = stage.server.active_config
    for rate in (20, 30, 40):
        active_config.replace_quotas(Quotas({"": (parse_spec(f"client-id=<default>,producer_byte_rate={rate}"),)}, 1))
        active_config.toggle()
        await asyncio.sleep(0)
        active_config.toggle()
    assert any(limit.rate < 40 for limit in limits)
    await until(lambda: all(limit.rate == 40 for limit in limits))
    assert not active_config._is_refreshing


def rates(stage: Stage) -> dict[str, tuple[int, str]]:
    """Of the client `etl`: its limits, and their sources."""
    client = stage.registry.resolve("", "etl")
    limits = [limit for limits in (client.produce.limits, client.fetch.limits) for limit in limits]
    return {limit.name: (int(limit.rate), stage.registry.source_of(limit.name, limit.entity)) for limit in limits}


OF_CLUSTER = (parse_spec("client-id=etl,producer_byte_rate=1000,consumer_byte_rate=2000"),)


async def test_the_clusters_quotas_and_those_of_the_file_change_each_by_itself(open_stage: OpenStage) -> None:
    """On an open connection, in any order; the entry of the file is the stronger one."""
    stage = open_stage(quotas=[])
    active = stage.server.active_config
    client, broker = await stage.pair()
    await arrives(client, broker, produce(1, 500))
    assert rates(stage) == {}
    await active.apply_source(CLUSTER, OF_CLUSTER)
    of_cluster = {"producer_byte_rate": (1_000, CLUSTER), "consumer_byte_rate": (2_000, CLUSTER)}
    assert rates(stage) == of_cluster
    await client.send(produce(2, 5_000) + produce(3, 500))
    await broker.frame()
    await held(stage)
    file = Quotas({"file": (parse_spec("client-id=etl,producer_byte_rate=50MB"),)}, 1)
    await active.apply(stage.config, file)
    assert rates(stage) == of_cluster | {"producer_byte_rate": (50_000_000, "file")}
    stage.clock.pass_seconds(1)
    assert await broker.frame() == produce(3, 500), "the connection is the same"
    await active.apply_source(CLUSTER, ())
    assert rates(stage) == {"producer_byte_rate": (50_000_000, "file")}
    await active.apply_source(CLUSTER, OF_CLUSTER)
    await active.apply(stage.config, Quotas({"file": ()}, 0.5))
    assert rates(stage) == {"producer_byte_rate": (500, CLUSTER), "consumer_byte_rate": (1_000, CLUSTER)}


async def test_changes_of_both_end_with_the_latest(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is prepared in a thread, and the latest one would be ready first: none may overtake another."""
    stage = open_stage(quotas=[])
    active = stage.server.active_config
    await active.apply_source(CLUSTER, OF_CLUSTER)
    preparing: list[tuple[asyncio.Future[Quotas], Quotas]] = []

    async def to_thread(prepare: Callable[..., Quotas], *arguments: object) -> Quotas:
        done: asyncio.Future[Quotas] = asyncio.get_running_loop().create_future()
        preparing.append((done, prepare(*arguments)))
        return await done

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    changes = [
        change
        for rate in range(1, 4)
        for change in (
            active.apply(stage.config, Quotas({"file": (parse_spec(f"client-id=etl,producer_byte_rate={rate}"),)}, 1)),
            active.apply_source(CLUSTER, (parse_spec(f"client-id=etl,consumer_byte_rate={rate}"),)),
        )
    ]
    applying = asyncio.gather(*changes)
    while not applying.done():
        await until(lambda: preparing or applying.done())
        for done, quotas in reversed(preparing):
            done.set_result(quotas)
        preparing.clear()
        await asyncio.sleep(0)
    assert rates(stage) == {"producer_byte_rate": (3, "file"), "consumer_byte_rate": (3, CLUSTER)}


async def test_a_name_of_the_cluster_that_never_comes_here_is_no_mistake(open_stage: OpenStage) -> None:
    own = parse_spec("client-id=elt,producer_byte_rate=1")
    stage = open_stage(quotas=[own])
    active = stage.server.active_config
    await active.apply_source(CLUSTER, OF_CLUSTER)
    assert active.unmatched() == ["client-id:elt"]
    assert list(stage.metrics.sources.configured()) == [own.entity]
