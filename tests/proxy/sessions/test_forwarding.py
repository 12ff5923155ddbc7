"""Bytes go through unchanged, wherever the stream is cut, except where the proxy has a reason to change them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_response_schema

from protocol.api_versions import unsupported_version_answer
from protocol.apis import FETCH, METADATA, SHARE_FETCH
from protocol.messages import decode
from proxy.config.config import SecurityOptions
from proxy.streams.memory import READ_SIZE
from tests.proxy import frames
from tests.proxy.conversation import LOOPBACK, Stage, cut, send_in_pieces, until
from tests.proxy.frames import fetch, heartbeat, heartbeat_answer, produce, produced, request

MAX_IN_FLIGHT = SecurityOptions().max_pending_requests

OpenStage = Callable[..., Stage]


def parsed(api: int, version: int, received: bytes) -> Any:
    """A response as kio reads it."""
    return decode(load_response_schema(api, version), received, 9)


CONVERSATION = [
    (produce(1, 300), produced(1)),
    (heartbeat(2), heartbeat_answer(2)),
    (produce(3, 10, version=7, client_id="other"), produced(3, 7)),
    (produce(4, 50, acks=0), b""),
    (fetch(5), frames.fetched(5)),
    (produce(6, 0, version=2, client_id=None), produced(6, 2)),
    (fetch(7, version=1), frames.fetched(7, 1)),
    (request(22, 4, 8, b"\x00" * 9, client_id=""), heartbeat_answer(8, 500)),
]
REQUESTS = b"".join(sent for sent, _ in CONVERSATION)
ANSWERS = b"".join(answer for _, answer in CONVERSATION)


@pytest.mark.parametrize("step", [1_000_000, 1, 2, 3, 7, 64])
async def test_a_pipelined_conversation_passes_unchanged_however_it_is_cut(open_stage: OpenStage, step: int) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    session = stage.session_of(client)
    for _ in range(2):
        await send_in_pieces(client, session.client, cut(REQUESTS, [step] * len(REQUESTS)))
        assert await broker.read(len(REQUESTS)) == REQUESTS
        assert len(session.connection.in_flight) == 7
        await send_in_pieces(broker, session.upstream, cut(ANSWERS, [step] * len(ANSWERS)))
        assert await client.read(len(ANSWERS)) == ANSWERS
    assert not session.connection.in_flight
    client.end()
    broker.close()
    assert await client.rest() == b""


@given(
    st.lists(st.integers(1, 60), max_size=40),
    st.lists(st.integers(1, 60), max_size=40),
    st.lists(st.integers(0, len(CONVERSATION) - 1), min_size=1, max_size=12),
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_mix_of_requests_in_any_pieces(
    open_stage: OpenStage, request_cuts: list[int], answer_cuts: list[int], picked: list[int]
) -> None:
    requests = b"".join(CONVERSATION[index][0] for index in picked)
    answers = b"".join(CONVERSATION[index][1] for index in picked)
    async with open_stage() as stage:
        client, broker = await stage.pair()
        session = stage.session_of(client)
        await send_in_pieces(client, session.client, cut(requests, request_cuts))
        assert await broker.read(len(requests)) == requests
        await send_in_pieces(broker, session.upstream, cut(answers, answer_cuts))
        assert await client.read(len(answers)) == answers
        assert not session.connection.in_flight


async def test_what_is_counted_follows_the_client_id_of_each_request(open_stage: OpenStage) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    sent = [produce(1, 10), produce(2, 20, client_id="b"), produce(3, 30), heartbeat(4), produce(5, 40, client_id=None)]
    await client.send(b"".join(sent))
    await broker.read(sum(map(len, sent)))
    counted = {entity.client_id: entity.produce_bytes for entity in stage.metrics.entities}
    assert counted == {"etl": len(sent[0]) + len(sent[2]) - 8, "b": len(sent[1]) - 4, "": len(sent[4]) - 4}
    cells = {key: cell.value for key, cell in stage.metrics.requests.items()}
    assert cells == {("Produce", "9"): 4, ("Heartbeat", "4"): 1}


@pytest.mark.parametrize("size", [READ_SIZE - 40, READ_SIZE, 3 * READ_SIZE + 17])
async def test_a_request_larger_than_the_buffer(open_stage: OpenStage, size: int) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    sent = produce(1, size) + heartbeat(2) + produce(3, size, acks=0) + produce(4, 5)
    received, _ = await asyncio.gather(broker.read(len(sent)), client.send(sent))
    assert received == sent


@pytest.mark.parametrize("version", [4, 12])
async def test_a_response_larger_than_the_buffer(open_stage: OpenStage, version: int) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    await client.send(fetch(1, version) + heartbeat(2))
    await broker.frame()
    await broker.frame()
    answers = frames.fetched(1, version, size=5 * READ_SIZE + 3) + heartbeat_answer(2, 2 * READ_SIZE)
    received, _ = await asyncio.gather(client.read(len(answers)), broker.send(answers))
    assert received == answers
    entity = stage.metrics.entities.of("ANONYMOUS", "etl")
    assert entity.fetch_bytes == len(answers) - len(heartbeat_answer(2, 2 * READ_SIZE))


@pytest.mark.parametrize("version", [9, 10, 12, 13])
async def test_a_produce_response_split_at_any_byte(open_stage: OpenStage, version: int) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    session = stage.session_of(client)
    answer = produced(1, version)
    for split in range(1, len(answer)):
        await client.send(produce(1, 5, version))
        await broker.frame()
        await send_in_pieces(broker, session.upstream, cut(answer, [split]))
        assert await client.read(len(answer)) == answer


@pytest.mark.parametrize("version", [10, 13])
async def test_node_endpoints_of_a_produce_response_never_pass(open_stage: OpenStage, version: int) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    session = stage.session_of(client)
    answer = produced(1, version, endpoints=True)
    assert frames.REAL_HOST.encode() in answer
    for split in range(1, len(answer)):
        await client.send(produce(1, 5, version))
        await broker.frame()
        await send_in_pieces(broker, session.upstream, cut(answer, [split]))
        received = await client.read(len(answer))
        assert frames.REAL_HOST.encode() not in received
        assert received[:4] == answer[:4]


async def test_a_produce_response_larger_than_the_buffer_is_held_whole(open_stage: OpenStage) -> None:
    """Twenty thousand partitions: longer than the shared buffer, and its end may name brokers."""
    stage = open_stage()
    client, broker = await stage.pair()
    await client.send(produce(1, 5, 13) + heartbeat(2))
    await broker.frame()
    await broker.frame()
    answer = frames.produced_widely(1, 13, READ_SIZE)
    more = heartbeat_answer(2)
    received, _ = await asyncio.gather(client.read(len(answer + more)), broker.send(answer + more))
    assert received == answer + more
    assert stage.memory.buffered_bytes == 0


async def test_a_metadata_response_split_at_any_byte(open_stage: OpenStage) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    session = stage.session_of(client)
    brokers = {1: ("kafka-1.a-rather-long-name.example.com", 9092), 2: (frames.REAL_HOST, 9093)}
    answer = frames.metadata_answer(77, brokers)
    for split in range(1, len(answer)):
        await client.send(frames.metadata(77))
        await broker.frame()
        await send_in_pieces(broker, session.upstream, cut(answer, [split]))
        received = await client.frame()
        assert b"example.com" not in received
        assert frames.REAL_HOST.encode() not in received
        body = parsed(METADATA, 12, received)
        assert [(found.node_id, found.host) for found in body.brokers] == [(1, LOOPBACK), (2, LOOPBACK)]
        assert len({found.port for found in body.brokers} - {0, 9092, 9093}) == 2
        assert [topic.name for topic in body.topics] == ["topic-0", "topic-1", "topic-2"]
    assert len(received) != len(answer)
    await client.send(heartbeat(9))
    await broker.send(heartbeat_answer(9))
    assert await client.frame() == heartbeat_answer(9), "the stream is still in step"


async def test_apis_held_whole_are_rewritten_wherever_they_are_cut(open_stage: OpenStage) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    session = stage.session_of(client)
    answer = frames.coordinator_answer(5, 1, "kafka-1.example.com", 9092)
    for split in range(1, len(answer)):
        await client.send(request(10, 4, 5, b"\x00\x02\x02g\x00"))
        await broker.frame()
        await send_in_pieces(broker, session.upstream, cut(answer, [split]))
        received = await client.frame()
        assert b"example.com" not in received
        assert LOOPBACK.encode() in received


@pytest.mark.parametrize("step", [1, 5, 1_000_000])
async def test_an_unknown_version_of_api_versions_is_answered_in_its_turn(open_stage: OpenStage, step: int) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    session = stage.session_of(client)
    sent = heartbeat(1) + frames.api_versions(2, 99) + frames.api_versions(3, 99) + heartbeat(4) + produce(5)
    await send_in_pieces(client, session.client, cut(sent, [step] * len(sent)))
    assert await broker.frame() == heartbeat(1)
    assert await broker.frame() == heartbeat(4)
    assert await broker.frame() == produce(5)
    answers = heartbeat_answer(1, 40) + heartbeat_answer(4) + produced(5)
    await send_in_pieces(broker, session.upstream, cut(answers, [step] * len(answers)))
    assert await client.frame() == heartbeat_answer(1, 40)
    assert await client.frame() == frames.frame(unsupported_version_answer(2))
    assert await client.frame() == frames.frame(unsupported_version_answer(3))
    assert await client.frame() == heartbeat_answer(4)
    assert await client.frame() == produced(5)


async def test_an_unknown_version_of_api_versions_as_the_first_request_needs_no_broker(open_stage: OpenStage) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    await client.send(frames.api_versions(0, 99))
    assert await client.frame() == frames.frame(unsupported_version_answer(0))
    await client.send(heartbeat(1))
    assert await broker.frame() == heartbeat(1)


@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_fetch_response_with_node_endpoints_split_at_any_byte(open_stage: OpenStage, partitions: int) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    session = stage.session_of(client)
    answer = frames.fetched_with_endpoints(6, 17, partitions=partitions, record_bytes=40)
    for split in range(1, len(answer)):
        await client.send(fetch(6, 17))
        await broker.frame()
        await send_in_pieces(broker, session.upstream, cut(answer, [split]))
        received = await client.read(len(answer))
        body = parsed(FETCH, 17, received)
        assert body.node_endpoints == ()
        assert body.responses == parsed(FETCH, 17, answer).responses
        assert frames.REAL_HOST.encode() not in received


async def test_a_long_fetch_response_is_walked_and_streamed(open_stage: OpenStage) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    await client.send(fetch(6, 17) + heartbeat(7))
    await broker.frame()
    await broker.frame()
    answer = frames.fetched_with_endpoints(6, 17, partitions=4, record_bytes=READ_SIZE)
    more = heartbeat_answer(7)
    received, _ = await asyncio.gather(client.read(len(answer + more)), broker.send(answer + more))
    assert received.endswith(more)
    assert parsed(FETCH, 17, received[: len(answer)]).node_endpoints == ()
    assert frames.REAL_HOST.encode() not in received


async def test_a_share_fetch_response_split_at_any_byte(open_stage: OpenStage) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    session = stage.session_of(client)
    answer = frames.share_fetched(6, record_bytes=40)
    for split in range(1, len(answer)):
        await client.send(request(SHARE_FETCH, 1, 6, b"\x00" * 30))
        await broker.frame()
        await send_in_pieces(broker, session.upstream, cut(answer, [split]))
        received = await client.read(len(answer))
        body = parsed(SHARE_FETCH, 1, received)
        assert body.node_endpoints == ()
        assert body.responses == parsed(SHARE_FETCH, 1, answer).responses
        assert frames.REAL_HOST.encode() not in received


async def test_many_requests_without_an_answer_stop_the_reading(open_stage: OpenStage) -> None:
    """The bookkeeping is bounded: of 1,200 requests in one read 1,000 pass, the others when 500 are answered."""
    stage = open_stage()
    client, broker = await stage.pair()
    session = stage.session_of(client)
    sent = [heartbeat(number) for number in range(1_200)]
    await client.send(b"".join(sent))
    first = b"".join(sent[:MAX_IN_FLIGHT])
    assert await broker.read(len(first)) == first
    await until(lambda: stage.paused().get("in_flight") == 1)
    await client.send(heartbeat(5_000))
    for number in range(MAX_IN_FLIGHT // 2 - 1):
        await broker.send(heartbeat_answer(number))
        assert await client.frame() == heartbeat_answer(number)
    assert len(session.connection.in_flight) == MAX_IN_FLIGHT // 2 + 1
    assert stage.paused().get("in_flight") == 1
    await broker.send(heartbeat_answer(MAX_IN_FLIGHT // 2 - 1))
    rest = b"".join([*sent[MAX_IN_FLIGHT:], heartbeat(5_000)])
    assert await broker.read(len(rest)) == rest


async def test_two_connections_are_two_streams(open_stage: OpenStage) -> None:
    stage = open_stage()
    one, broker_of_one = await stage.pair()
    two, broker_of_two = await stage.pair()
    await one.send(produce(1, 900)[:500])
    await two.send(produce(2, 30))
    assert await broker_of_two.frame() == produce(2, 30)
    await one.send(produce(1, 900)[500:])
    assert await broker_of_one.frame() == produce(1, 900)
    await broker_of_two.send(produced(2))
    assert await two.frame() == produced(2)
