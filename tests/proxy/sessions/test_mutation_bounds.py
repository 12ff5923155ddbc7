"""Requests that create and delete partitions, among others: order, memory, ends, and what cannot be read."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

import pytest

from protocol.apis import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from proxy.config.config import EnforcementOptions, SecurityOptions
from proxy.streams.connection import MAX_OWED_BYTES, Answer
from proxy.streams.handlers.data import HEAD_READ_SIZE
from proxy.streams.handlers.limit import MAX_REQUEST_LENGTH
from proxy.streams.memory import READ_SIZE, Holding
from tests.proxy.conversation import Stage, cut, lines_of, send_in_pieces, until, without_burst
from tests.proxy.frames import correlation_of, heartbeat, heartbeat_answer, noise, produce, produced, request
from tests.proxy.mutation_frames import (
    PASSED,
    REFUSED,
    Told,
    create,
    created,
    deletion,
    done,
    in_debt,
    mutation,
    told,
)

MAX_IN_FLIGHT = SecurityOptions().max_pending_requests

OpenStage = Callable[..., Stage]
QUOTA = without_burst("client-id=etl,controller_mutation_rate=10")
#: A request for these is about 25 kB long.
MANY = {f"{number:03}" + "x" * 240: 1 for number in range(100)}


async def test_answers_come_in_the_order_of_the_requests(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await in_debt(stage)
    session = stage.session_of(client)
    later = deletion(4, 5, ["d"])
    sent = heartbeat(1) + create(2, {"b": 1}) + heartbeat(3) + create(4, {"c": 1}) + later
    await client.send(sent)
    passed = heartbeat(1) + heartbeat(3) + later
    assert await broker.read(len(passed)) == passed
    answers = heartbeat_answer(1) + heartbeat_answer(3) + done(DELETE_TOPICS, 4, 5, ["d"])
    await send_in_pieces(broker, session.upstream, cut(answers, [1] * len(answers)))
    assert await client.frame() == heartbeat_answer(1)
    assert told(CREATE_TOPICS, 7, await client.frame()).correlation == 2
    assert await client.frame() == heartbeat_answer(3)
    assert told(CREATE_TOPICS, 7, await client.frame()).correlation == 4
    assert told(DELETE_TOPICS, 4, await client.frame()) == Told(5, 400, {"d": PASSED})
    assert stage.paused() == {}


@pytest.mark.parametrize("seen", [3, 8, 1_000, 8_000_000 - 1])
async def test_an_answer_waits_for_the_end_of_an_earlier_response(open_stage: OpenStage, seen: int) -> None:
    """Also where the client has not taken the earlier one's beginning yet."""
    stage = open_stage(quotas=[QUOTA])
    client, broker = await in_debt(stage)
    session = stage.session_of(client)
    first = heartbeat_answer(1, 8_000_000)
    await client.send(heartbeat(1))
    await broker.frame()
    sending = asyncio.ensure_future(broker.send(first[:seen]))
    await until(lambda: sending.done() or stage.paused().get("write_backpressure"))
    await client.send(create(2, {"b": 1}))
    await until(lambda: session.connection.in_flight and isinstance(session.connection.in_flight[-1][1], Answer))
    received, _ = await asyncio.gather(client.read(seen if seen > 8 else 0), sending)
    assert received == first[: len(received)]
    await broker.send(first[seen:])
    assert await client.read(len(first) - len(received)) == first[len(received) :]
    assert told(CREATE_TOPICS, 7, await client.frame()) == Told(2, 300, {"b": REFUSED})


async def test_close_to_a_limit_of_bytes_a_request_is_read_to_its_end(open_stage: OpenStage) -> None:
    """Not in pieces of the few bytes that are read there otherwise, so as to keep little where a frame is held."""
    stage = open_stage(quotas=[QUOTA, without_burst("total,producer_byte_rate=1000000")])
    client, broker = await stage.pair()
    requests = stage.session_of(client).requests
    await client.send(produce(1, 500))
    await broker.frame()
    assert requests.stream.want == HEAD_READ_SIZE
    sent = create(2, MANY)
    await client.send(sent[:100])
    await until(lambda: requests.kept)
    assert requests.stream.want == len(sent) - 100


async def test_data_is_not_held_and_gets_no_throttle_time(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await in_debt(stage)
    await client.send(produce(1, 500) + mutation(DELETE_TOPICS, 4, 2, {"a": 1}) + produce(3, 500))
    passed = produce(1, 500) + mutation(DELETE_TOPICS, 4, 2, {"a": 1}) + produce(3, 500)
    assert await broker.read(len(passed)) == passed
    await broker.send(produced(1))
    assert await client.frame() == produced(1)


async def test_the_proxys_own_responses_are_bounded(open_stage: OpenStage) -> None:
    """Behind a request that the broker does not answer refusals pile up: a client that asks on is not read."""
    stage = open_stage(quotas=[QUOTA])
    client, broker = await in_debt(stage)
    session = stage.session_of(client)
    await client.send(heartbeat(1))
    await broker.frame()
    sending = asyncio.ensure_future(client.send(b"".join(create(number, MANY) for number in range(2, 102))))
    await until(lambda: stage.paused().get("in_flight") == 1)
    largest = MAX_OWED_BYTES + 2 * READ_SIZE  # one more read, whose answers are larger than what asked for them
    assert MAX_OWED_BYTES < session.connection.owed_bytes <= largest
    assert len(session.connection.in_flight) < 60
    await broker.send(heartbeat_answer(1))
    assert await client.frame() == heartbeat_answer(1)
    for number in range(2, 102):
        assert told(CREATE_TOPICS, 7, await client.frame()) == Told(number, 300, dict.fromkeys(MANY, REFUSED))
    await sending
    await until(lambda: not stage.paused())
    assert session.connection.owed_bytes == 0


async def test_refused_topics_of_requests_that_pass_are_bounded(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await stage.pair()
    session = stage.session_of(client)
    size = len(create(0, MANY)) - 4
    count = MAX_OWED_BYTES // size + 1
    for number in range(count):
        assert stage.paused() == {}
        assert session.connection.owed_bytes == number * size
        await client.send(create(number, MANY))
        assert await broker.frame() == create(number, dict(list(MANY.items())[:1]))
        stage.clock.pass_seconds(1)  # the first topic of each request finds no debt
    await client.send(heartbeat(99))
    await until(lambda: stage.paused() == {"in_flight": 1})
    for left in reversed(range(count)):
        number = count - 1 - left
        await broker.send(created(number, [next(iter(MANY))]))
        assert told(CREATE_TOPICS, 7, await client.frame()).correlation == number
        assert stage.paused() == ({"in_flight": 1} if left * size > MAX_OWED_BYTES // 2 else {})
    assert await broker.frame() == heartbeat(99)
    assert session.connection.owed_bytes == 0


async def test_unread_refusals_are_bounded(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await in_debt(stage)
    session = stage.session_of(client)
    session.client._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    count = 200
    sending = asyncio.ensure_future(client.send(b"".join(create(number, MANY) for number in range(count))))
    await until(lambda: stage.paused().get("in_flight") == 1)
    assert len(session.connection.in_flight) < 60
    for number in range(count):
        assert told(CREATE_TOPICS, 7, await client.frame()).correlation == number
        assert session.connection.owed_bytes + stage.memory.buffered_bytes <= 3 * READ_SIZE
    await sending
    await until(lambda: not stage.paused())
    await client.send(heartbeat(1))
    assert await broker.frame() == heartbeat(1)


async def test_small_refusals_count_as_requests_in_flight(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await in_debt(stage)
    await client.send(heartbeat(1))
    await broker.frame()
    await client.send(b"".join(create(number, {"a": 1}) for number in range(MAX_IN_FLIGHT)))
    await until(lambda: stage.paused().get("in_flight") == 1)
    await broker.send(heartbeat_answer(1))
    await client.frame()
    for number in range(MAX_IN_FLIGHT):
        assert told(CREATE_TOPICS, 7, await client.frame()).correlation == number
    await until(lambda: not stage.paused())


@pytest.mark.parametrize("end", ["client", "broker", "both"])
async def test_a_session_that_ends_before_its_responses_leaves_nothing(open_stage: OpenStage, end: str) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await stage.pair()
    await client.send(create(1, {"a": 3, "b": 1}) + heartbeat(2) + create(3, {"c": 1}))
    await broker.frame()
    await broker.frame()
    session = stage.session_of(client)
    await until(lambda: len(session.connection.in_flight) == 3)
    assert session.connection.in_flight
    if end != "client":
        broker.reset()
    if end != "broker":
        client.reset()
    if end == "client":
        assert await broker.rest() == b""
        broker.close()
    await stage.no_sessions()
    assert not session.connection.in_flight


async def test_a_half_closed_client_gets_all_responses(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await stage.pair()
    await client.send(create(1, {"a": 3, "b": 1}) + create(2, {"c": 1}))
    client.end()
    assert await broker.frame() == create(1, {"a": 3})
    await broker.send(created(1, "a"))
    assert await broker.rest() == b""
    broker.close()
    received = await client.rest()
    size = 4 + int.from_bytes(received[:4], "big")
    assert told(CREATE_TOPICS, 7, received[:size]).errors == {"a": PASSED, "b": REFUSED}
    assert told(CREATE_TOPICS, 7, received[size:]).errors == {"c": REFUSED}


# ---- large ones, and what is none


async def test_the_longest_request_and_a_response_larger_than_the_buffer(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await stage.pair()
    one = create(1, {"": 1})
    topics = {f"{number:05}" + "x" * 240: 1 for number in range((MAX_REQUEST_LENGTH - len(one)) // 256)}
    topics["last"] = 1
    topics["y" * (MAX_REQUEST_LENGTH + 4 - len(create(1, topics)) - 20)] = 1
    sent = create(1, topics)
    assert MAX_REQUEST_LENGTH - 20 <= len(sent) - 4 <= MAX_REQUEST_LENGTH
    await client.send(sent)
    first, *others = topics
    assert await broker.frame() == create(1, {first: 1})
    answer = created(1, [first])
    await broker.send(answer[:20])
    await broker.send(answer[20:])
    assert told(CREATE_TOPICS, 7, await client.frame()).errors == {first: PASSED} | dict.fromkeys(others, REFUSED)
    await client.send(mutation(CREATE_TOPICS, 5, 2, topics))
    assert await broker.frame() == mutation(CREATE_TOPICS, 5, 2, topics)
    long_names = ["z" * 249 + f"{number:05}" for number in range(2_200)]
    answer = done(CREATE_TOPICS, 5, 2, long_names)
    assert len(answer) > MAX_REQUEST_LENGTH + 4
    await broker.send(answer)
    assert told(CREATE_TOPICS, 5, await client.frame()) == Told(2, 5_000, dict.fromkeys(long_names, PASSED))


async def test_a_longer_request_closes_its_connection(open_stage: OpenStage, caplog: pytest.LogCaptureFixture) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await stage.pair()
    await client.send(request(CREATE_TOPICS, 7, 1, noise(MAX_REQUEST_LENGTH))[:1_000])
    await client.closed()
    assert await broker.rest() == b""
    assert stage.metrics.errors.protocol["mutation_request_too_large"] == 1
    [line] = [fields for name, fields in lines_of(caplog.records) if name == "protocol_error"]
    assert line["detail"].startswith(f"CreateTopics request of {MAX_REQUEST_LENGTH + 14} bytes")


async def test_incomplete_requests_do_not_use_up_memory(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA], security=SecurityOptions(max_buffered_bytes=4_000_000))
    long = create(2, {f"{number:03}" + "x" * 240: 1 for number in range(300)})
    short = create(3, {"x": 1})
    halves = []
    while not stage.memory.is_tight:
        halves.append(await stage.pair())
        await halves[-1][0].send(long[:-1])
        await until(lambda: stage.memory.kept_bytes == len(halves) * len(long[:-1]))
    assert stage.memory.kept_bytes < stage.memory.limit // 2
    second, broker_of_second = await stage.pair()
    await second.send(short[:-1])
    await until(lambda: stage.session_of(second).requests.kept)
    third, broker_of_third = await stage.pair()
    await third.send(long[:-1])
    await third.closed()
    assert await broker_of_third.rest() == b""
    assert stage.metrics.errors.protocol["mutation_request_too_large"] == 1
    whole = create(4, MANY)
    fourth, broker_of_fourth = await stage.pair()
    assert stage.memory.read_size > len(whole)
    for client, broker, last in (
        (fourth, broker_of_fourth, whole),
        (second, broker_of_second, short[-1:]),
        *((client, broker, long[-1:]) for client, broker in halves),
    ):
        await client.send(last)
        assert correlation_of(await broker.frame()) == {fourth: 4, second: 3}.get(client, 2)
        stage.clock.pass_seconds(1)


async def test_clients_that_read_slowly_do_not_refuse_a_request(open_stage: OpenStage) -> None:
    """Their responses use half of the memory; little of it is requests that have not arrived whole."""
    stage = open_stage(quotas=[QUOTA], security=SecurityOptions(max_buffered_bytes=4_000_000))
    slow = Holding()
    stage.memory.update(slow, 0, 2_500_000, 0)
    assert stage.memory.is_tight
    client, broker = await stage.pair()
    sent = create(4, {f"{number:03}" + "x" * 240: 1 for number in range(300)})
    await client.send(sent[:-1])
    await until(lambda: stage.memory.kept_bytes == len(sent) - 1)
    await client.send(sent[-1:])
    assert correlation_of(await broker.frame()) == 4
    stage.memory.forget(slow)


async def test_a_longer_request_passes_in_a_dry_run(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA], enforcement=EnforcementOptions(dry_run=True))
    client, broker = await stage.pair()
    sent = request(CREATE_TOPICS, 7, 1, noise(MAX_REQUEST_LENGTH)) + heartbeat(2)
    received, _ = await asyncio.gather(broker.read(len(sent)), client.send(sent))
    assert received == sent
    await broker.send(heartbeat_answer(1))
    assert await client.frame() == heartbeat_answer(1)


@pytest.mark.parametrize(("api", "version"), [(CREATE_TOPICS, 7), (DELETE_TOPICS, 1), (CREATE_PARTITIONS, 3)])
async def test_a_request_that_cannot_be_read_closes_its_connection(
    open_stage: OpenStage, api: int, version: int
) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await stage.pair()
    await client.send(heartbeat(1) + request(api, version, 2, b"\x7f\xff\xff\xff\x10"))
    await client.closed()
    assert await broker.rest() == heartbeat(1), "what came before is forwarded, once"
    assert sum(stage.metrics.errors.protocol.values()) == 1
    assert stage.metrics.errors.protocol["defect"] == 0


async def test_a_response_that_cannot_be_read_closes_its_connection(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await stage.pair()
    await client.send(create(1, {"a": 3, "b": 1}))
    await broker.frame()
    await broker.send(struct.pack(">ii", 9, 1) + b"\xff" * 5)
    await client.closed()
    assert sum(stage.metrics.errors.protocol.values()) == 1
    assert stage.metrics.errors.protocol["defect"] == 0
