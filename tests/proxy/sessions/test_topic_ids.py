"""Topics that are spoken of by id: learnt from Metadata that passes, or asked for by the proxy itself."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kio.index import load_request_schema

from protocol.apis import METADATA
from protocol.messages import decode
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import LOOPBACK, Peer, Stage, lines_of, readable_bytes, until, without_burst
from tests.proxy.dialogue import MANNERS, alter, begin, debts
from tests.proxy.frames import (
    batch,
    frame,
    metadata,
    metadata_answer,
    noise,
    produce_records,
)

OpenStage = Callable[..., Stage]

IDS = {"rows": uuid.UUID(int=7), "cols": uuid.UUID(int=8)}
BY_NAME_AND_TOTAL = [
    without_burst("topic=rows,bytes_in_rate=1"),
    without_burst("total=true,bytes_in_rate=1"),
    without_burst("resource-group=clients,client-id=etl,messages_in_rate=1"),
]


async def asked_by_the_proxy(stage: Stage) -> tuple[Peer, set[uuid.UUID]]:
    """The proxy's own connection to the broker, and the ids that it asks for."""
    peer = await stage.broker.accept()
    return peer, ids_asked_for(await peer.frame())


def ids_asked_for(frame: bytes) -> set[uuid.UUID]:
    body: Any = decode(load_request_schema(METADATA, 12), frame, frame.index(b"kafka-quota-proxy\x00") + 18)
    assert not body.allow_auto_topic_creation
    assert all(topic.name is None for topic in body.topics)
    return {topic.topic_id for topic in body.topics}


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("manner", MANNERS)
async def test_ids_are_learnt_from_metadata_that_passes(open_stage: OpenStage, manner: str, split: bool) -> None:
    stage = open_stage(quotas=BY_NAME_AND_TOTAL)
    dialogue = await begin(stage, manner)
    await dialogue.say(metadata(1))
    await dialogue.heard()
    node_port = stage.context.nodes.advertise(1, *stage.broker.address)[1]
    answer = metadata_answer(1, {1: stage.broker.address}, named=IDS)
    if split:
        for at in range(len(answer) - 1):
            await dialogue.broker.send(answer[at : at + 1])
            await until(lambda: not readable_bytes(dialogue.upstream))
        answer = answer[-1:]
    await dialogue.answer(answer)
    assert await dialogue.told() == metadata_answer(1, {1: (LOOPBACK, node_port)}, named=IDS)
    sent = produce_records(2, {IDS["cols"]: [batch(1, 100)], IDS["rows"]: [batch(2, 200)]}, version=13)
    await dialogue.say(sent)
    assert await dialogue.heard() == sent
    assert debts(stage) == {
        ("topic:rows", "bytes_in_rate"): 200,
        ("total", "bytes_in_rate"): 300,
        ("resource-group:clients", "messages_in_rate"): 3,
    }


@pytest.mark.parametrize("version", [10, 12])
async def test_learning_ids_changes_no_byte_of_metadata(open_stage: OpenStage, version: int) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    answer = metadata_answer(1, {5: ("real", 9)}, version=version, named=IDS)
    told = []
    for learnt in (0, 2):
        await client.send(metadata(1, version))
        await broker.frame()
        await broker.send(answer)
        told.append(await client.frame())
        assert len(stage.context.topics._partitions) == learnt
        alter(stage, "topic=rows,bytes_in_rate=1")
    assert told[0] == told[1] != answer


@pytest.mark.parametrize("manner", MANNERS)
async def test_an_unknown_id_holds_no_frame_and_is_requested(open_stage: OpenStage, manner: str) -> None:
    stage = open_stage(quotas=BY_NAME_AND_TOTAL)
    dialogue = await begin(stage, manner)
    sent = produce_records(1, {IDS["rows"]: [batch(2, 200)]}, version=13)
    await dialogue.say(sent)
    assert await dialogue.heard() == sent
    counted = {("total", "bytes_in_rate"): 200, ("resource-group:clients", "messages_in_rate"): 2}
    assert debts(stage) == counted, "what needs no topic counts at once"
    asked, ids = await asked_by_the_proxy(stage)
    assert ids == {IDS["rows"]}
    await asked.send(metadata_answer(1, {1: stage.broker.address}, named=IDS))
    await until(lambda: stage.context.topics.name_of(IDS["rows"].bytes) == "rows")
    stage.clock.pass_seconds(1_000)
    await dialogue.say(produce_records(2, {IDS["rows"]: [batch(1, 150)]}, version=13))
    await dialogue.heard()
    assert debts(stage) == {
        ("topic:rows", "bytes_in_rate"): 150,
        ("total", "bytes_in_rate"): 150,
        ("resource-group:clients", "messages_in_rate"): 1,
    }
    assert await asked.rest() == b"", "and the proxy hangs up"


@pytest.mark.parametrize("how", ["it hangs up", "it does not know", "it says nonsense", "it claims too much"])
async def test_an_unanswered_topic_id_is_not_requested_again_at_once(
    open_stage: OpenStage, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage(quotas=BY_NAME_AND_TOTAL)
    client, broker = await stage.pair()
    await client.send(produce_records(1, {IDS["rows"]: [batch(1, 100)]}, version=13))
    await broker.frame()
    asked, ids = await asked_by_the_proxy(stage)
    assert ids == {IDS["rows"]}
    caplog.clear()
    if how == "it does not know":
        await asked.send(metadata_answer(1, {1: stage.broker.address}, named={}))
    elif how == "it says nonsense":
        await asked.send(frame(b"\x00\x00\x00\x01" + noise(50)))
    elif how == "it claims too much":
        await asked.send(b"\x7f\xff\xff\xff")
    if how == "it hangs up":
        asked.close()
    else:
        await asked.closed()
    stage.clock.pass_seconds(1_000)
    await client.send(produce_records(2, {IDS[name]: [batch(1, 100)] for name in IDS}, version=13))
    await broker.frame()
    _, ids = await asked_by_the_proxy(stage)
    assert ids == {IDS["cols"]}
    said = [fields for name, fields in lines_of(caplog.records) if name == "topic_ids_unknown"]
    assert len(said) == (how != "it does not know")
    assert all(fields["detail"] != "no bootstrap server returned topic names: " for fields in said)


async def test_the_zero_id_is_not_requested(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=BY_NAME_AND_TOTAL)
    client, broker = await stage.pair()
    for number, topic in enumerate((uuid.UUID(int=0), IDS["rows"])):
        await client.send(produce_records(number, {topic: [batch(1, 100)]}, version=13))
        await broker.frame()
        stage.clock.pass_seconds(1_000)
    _, ids = await asked_by_the_proxy(stage)
    assert ids == {IDS["rows"]}


async def test_a_limit_on_producer_ids_requests_no_topics(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[parse_spec("user=ANONYMOUS,producer_ids_rate=5")])
    client, broker = await stage.pair()
    await client.send(produce_records(1, {IDS["rows"]: [batch(1, 100)]}, version=13))
    await broker.frame()
    assert stage.context.topics._task is None
