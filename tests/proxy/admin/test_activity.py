"""The rows of /clients, /limits and /brokers, of a proxy with real connections."""

import asyncio
import json
from time import thread_time
from typing import Any

import pytest

from proxy.admin.activity import MOST_SHOWN, Activity
from proxy.admin.answer_page.served import AnswerPage
from proxy.observability.client_times import STATES
from tests.protocol.fetch_responses import fetch_response
from tests.protocol.kafka_messages import record_batch
from tests.proxy.conversation import (
    NS_PER_SECOND,
    OpenStage,
    Stage,
    arrives,
    exchange,
    nobody_accepts,
    until,
    without_burst,
)
from tests.proxy.frames import fetch, fetched, frame, produce, produced, request

SPEC = "client-id=etl,producer_byte_rate=1000"


def activity_of(stage: Stage) -> Activity:
    server = stage.server
    return Activity(server.shared, server.sessions, server.gate, server._ticks.history, server.active_config.unmatched)


def tick(stage: Stage, times: int) -> None:
    for _ in range(times):
        stage.server._ticks.history.tick(stage.clock())


async def rows_of(activity: Activity, path: str) -> list[dict[str, Any]]:
    return list(json.loads((await activity.respond(path, "application/json")).body))


async def test_a_client_its_limit_and_its_broker(open_stage: OpenStage) -> None:
    client, broker = await (stage := open_stage(quotas=[without_burst(SPEC)])).pair()
    await arrives(client, broker, produce(1, 500))
    stage.clock.pass_seconds(0.2)
    await broker.send(produced(1))
    await client.frame()
    stage.clock.pass_seconds(2)
    stage.sweep()
    activity = activity_of(stage)
    (row,) = await rows_of(activity, "/clients")
    assert (row["client_id"], row["user"], row["connections"]) == ("etl", "ANONYMOUS", 1)
    assert row["produce_bytes_per_second"] == pytest.approx(500 / 2.2, rel=0.3)
    assert set(row["states"]) <= set(STATES)
    assert sum(row["states"].values()) == pytest.approx(1, abs=0.01)
    assert row["states"]["broker"] == pytest.approx(0.2 / 2.2, abs=0.01)
    assert row["limits"] == [["producer_byte_rate", "client-id:etl"]]
    (limit,) = await rows_of(activity, "/limits")
    assert (limit["limit"], limit["entity"], limit["limit_value"]) == ("producer_byte_rate", "client-id:etl", 1000)
    assert limit["clients"] == [{"client_id": "etl", "user": "ANONYMOUS"}]
    assert limit["source"] == "--quota"
    (at,) = await rows_of(activity, "/brokers")
    assert (at["connections"], at["in_flight"], at["failing"]) == (1, 0, None)
    (finding,) = await rows_of(activity, "/explain")
    assert set(finding) == {"client_id", "user", "verdict", "states", "limits", "brokers", "sentences", "headline"}
    assert finding["brokers"] == [at]


async def test_a_held_client_is_at_its_limit(open_stage: OpenStage) -> None:
    client, broker = await (stage := open_stage(quotas=[without_burst(SPEC)])).pair()
    await client.send(produce(1, 30_000) + produce(2, 100))
    await broker.frame()
    await until(lambda: any(session.throttle_status for session in stage.server.sessions))
    for _ in range(12):
        stage.clock.pass_seconds(1)
        stage.sweep()
        tick(stage, 10)
    activity = activity_of(stage)
    (finding,) = await rows_of(activity, "/explain")
    assert finding["verdict"] == "limit"
    assert finding["states"]["limit"] > 0.99
    (limit,) = await rows_of(activity, "/limits")
    assert (limit["queued_connections"], limit["waiting_ratio"]) == (1, 1.0)
    assert limit["queued"] > 100
    page = (await activity.respond("/explain", "text/plain")).body.decode()
    assert page.startswith("etl: a limit of this proxy is holding it back\n")
    assert "producer_byte_rate" in (await activity.respond("/limits", "text/plain")).body.decode()


async def test_a_request_that_the_broker_does_not_answer(open_stage: OpenStage) -> None:
    """Neither its time to answer nor the line of it is a zero."""
    client, broker = await (stage := open_stage()).pair()
    await arrives(client, broker, produce(1, 500))
    for _ in range(11):  # longer than a figure of the line takes, whenever the last one was
        stage.sweep()
        stage.clock.pass_seconds(1)
    tick(stage, 30)
    activity = activity_of(stage)
    (at,) = await rows_of(activity, "/brokers")
    assert (at["oldest_request_seconds"], at["in_flight"], set(at["line"])) == (11, 1, {None})
    answer = (await AnswerPage(activity).respond("/answer", "text/plain")).body.decode()
    assert answer == f"No: broker {at['address']} has not answered for 11 s; 1 client waits\n"
    page = json.loads((await AnswerPage(activity).respond("/answer", "*/*")).body)
    assert [each["text"] for each in page["answers"]] == [answer[4:-1]]
    assert page["brokers"][0]["cells"] == ["no answer for 11 s", "unknown", "unknown", "1"]
    assert set(page["brokers"][0]["chart"]["points"]) == {None}
    assert (page["clients"][0]["cells"][0], page["limits"]) == ("silent broker", [])


async def test_a_fetch_that_outlasts_its_wait_is_the_brokers(open_stage: OpenStage) -> None:
    """A consumer without a group sends nothing else: at a frozen broker it does not wait for new records."""
    client, broker = await (stage := open_stage()).pair()
    await arrives(client, broker, fetch(1))
    verdicts = []
    for second in range(40):
        stage.sweep()
        tick(stage, 10)
        if second in {5, 39}:
            [finding] = await rows_of(activity_of(stage), "/explain")
            verdicts.append(finding["verdict"])
        stage.clock.pass_seconds(1)
    assert verdicts == ["data", "broker"]
    assert any("has not answered a request for 39 s" in each for each in finding["sentences"])


async def test_connections_that_wait_for_a_broker_are_told(open_stage: OpenStage) -> None:
    with nobody_accepts() as address:
        stage = open_stage(bootstrap_servers=(address,))
        await stage.client()
        await until(lambda: stage.server.sessions)
        activity = activity_of(stage)
        assert await rows_of(activity, "/explain") == []
        stage.clock.pass_seconds(8)
        [finding] = await rows_of(activity, "/explain")
    assert finding["verdict"] == "broker"
    assert finding["sentences"] == ["1 connection is waiting for a broker, the oldest for 8 s: no broker answers"]


async def test_the_time_of_a_broker(open_stage: OpenStage) -> None:
    client, broker = await (stage := open_stage()).pair()
    await exchange(client, broker, fetch(0), fetched(0))
    for number in range(1, 4):
        stage.sweep()
        await arrives(client, broker, produce(number, 500))
        stage.clock.pass_seconds(0.4)
        await arrives(broker, client, produced(number))
    (at,) = await rows_of(activity_of(stage), "/brokers")
    assert (at["produce"]["count"], at["produce"]["mean_seconds"]) == (3, pytest.approx(0.4))
    assert at["others"]["count"] == 0  # a fetch is no time of the broker


async def test_a_view_is_collected_once_a_second_whoever_asks(open_stage: OpenStage) -> None:
    stage = open_stage()
    activity = activity_of(stage)
    first, second = await asyncio.gather(activity.view(), activity.view())
    assert first is second is await activity.view()
    stage.clock.pass_seconds(1)
    assert await activity.view() is not first


async def test_a_loop_that_never_rests_is_the_answer(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """For 97 of 100 seconds the thread of the loop has the CPU."""
    client, broker = await (stage := open_stage()).pair()
    await arrives(client, broker, produce(1, 500))
    begun_ns, begun = stage.clock(), thread_time()
    monkeypatch.setattr("proxy.admin.history.thread_time", lambda: begun + (stage.clock() - begun_ns) / 1e9 * 0.97)
    for _ in range(10):
        await exchange(broker, client, produced(1), produce(1, 500))
        stage.clock.pass_seconds(10)
        tick(stage, 10)
    await arrives(broker, client, produced(1))
    answer = (await AnswerPage(activity_of(stage)).respond("/answer", "text/plain")).body.decode()
    assert answer.startswith("Yes: this proxy is the bottleneck: its event loop is busy 97% of the time.")


async def test_very_many_clients_leave_the_loop_its_turns(open_stage: OpenStage) -> None:
    stage = open_stage()
    entities = stage.server.metrics.entities
    entities.max_entities = 100_000
    for number in range(20_000):
        entities.of("ANONYMOUS", f"client-{number}").produce_bytes = number
    stage.clock.now_ns += NS_PER_SECOND
    for entity in entities:
        entity.times.spent_ns[0] = 1
    reading = asyncio.ensure_future(rows_of(activity_of(stage), "/clients"))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    rows = reading.result()
    assert (len(rows), rows[0]["client_id"]) == (MOST_SHOWN, "client-19999")
    assert turns > 20_000 / 100


async def test_what_a_consumer_does_in_its_group_and_how_far_it_is_behind(open_stage: OpenStage) -> None:
    client, broker = await (stage := open_stage()).pair()
    for generation in range(1, 6):
        joins = request(11, 5, 111, b"\0\4team" + bytes(8) + b"\0\0")
        syncs = request(14, 3, 114, b"\0\4team" + generation.to_bytes(4))
        for each in (joins, syncs):
            await exchange(client, broker, each, frame(each[8:12] + bytes(30)))
    await arrives(client, broker, fetch(9))
    response = fetch_response(12, [[record_batch(10, bytes(200))]])
    await broker.send(frame((9).to_bytes(4) + response[4:]))
    await client.frame()
    stage.clock.pass_seconds(1)
    stage.sweep()
    (row,) = await rows_of(activity_of(stage), "/clients")
    (group,) = row["groups"]
    assert (group["group"], group["rebalances_60s"], group["joined_60s"]) == ("team", 4, {"etl from 127.0.0.1": 5})
    assert (row["lag_records"], row["programs"]) == (4_711 - 10, 1)


async def test_two_producers_with_one_name_at_one_broker_are_two_programs(open_stage: OpenStage) -> None:
    stage = open_stage()
    for _ in range(2):
        client, broker = await stage.pair()
        await arrives(client, broker, produce(1, 500))
    (row,) = await rows_of(activity_of(stage), "/clients")
    assert (row["connections"], row["programs"]) == (2, 2)
