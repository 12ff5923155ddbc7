"""Topic ids that no Metadata response contained: the proxy requests their names over a connection of its own."""

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from kio.index import load_request_schema

from protocol.apis import METADATA
from protocol.messages import decode
from proxy.brokers.topics import PAUSE_SECONDS
from tests.proxy.conversation import OpenStage, Peer, Stage, lines_of
from tests.proxy.frames import batch, frame, metadata_answer, noise, produce_records
from tests.proxy.streams.test_topic_ids import BY_NAME_AND_TOTAL, IDS


async def asked_by_the_proxy(stage: Stage) -> tuple[Peer, set[uuid.UUID]]:
    """The proxy's own connection to the broker, and the ids that it asks for."""
    peer = await stage.broker.accept()
    frame = await peer.frame()
    body: Any = decode(load_request_schema(METADATA, 12), frame, frame.index(b"kafka-quota-proxy\x00") + 18)
    assert not body.allow_auto_topic_creation
    assert all(topic.name is None for topic in body.topics)
    return peer, {topic.topic_id for topic in body.topics}


HANGS_UP, DOES_NOT_KNOW = b"", metadata_answer(1, {}, named={})


@pytest.mark.parametrize(
    "answer",
    [HANGS_UP, DOES_NOT_KNOW, frame(b"\x00\x00\x00\x01" + noise(50)), b"\x7f\xff\xff\xff"],
    ids=["it hangs up", "it does not know", "it says nonsense", "it claims too much"],
)
async def test_unanswered_topic_ids_are_requested_again_together(
    open_stage: OpenStage, answer: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, may_ask = asyncio.Event(), asyncio.Event()

    async def pause(seconds: float) -> None:
        assert PAUSE_SECONDS * 0.5 <= seconds <= PAUSE_SECONDS * 1.5, "after a failure it is random"
        paused.set()
        await may_ask.wait()

    client, _ = await (stage := open_stage(quotas=BY_NAME_AND_TOTAL)).pair()
    await client.send(produce_records(1, {IDS["rows"]: [batch(1, 100)]}, version=13))
    await client.frame()  # it is refused
    asked, ids = await asked_by_the_proxy(stage)
    assert ids == {IDS["rows"]}
    caplog.clear()
    monkeypatch.setattr("proxy.brokers.topics.asyncio", SimpleNamespace(sleep=pause))
    await asked.send(answer)
    if answer == HANGS_UP:
        asked.close()
    else:
        await asked.closed()
    await paused.wait()
    for number, name in enumerate(IDS):
        await client.send(produce_records(2 + number, {IDS[name]: [batch(1, 100)]}, version=13))
        await client.frame()
    may_ask.set()
    _, ids = await asked_by_the_proxy(stage)
    assert ids == {IDS["rows"], IDS["cols"]}, "one request for all of them"
    said = [fields for name, fields in lines_of(caplog.records) if name == "topic_ids_unknown"]
    assert len(said) == (answer != DOES_NOT_KNOW)
    assert all(fields["detail"] != "no bootstrap server returned topic names: " for fields in said)
