"""On sockets: what some clients announce and do not send, or ask for and do not get, keeps no other one from its limit;
and a topic that stands late in a request is limited as any other.

The proxy's clock is the test's: what passes between two of its moments is the burst of a second, or what it has earned.
"""

import asyncio
import contextlib
from functools import partial

import pytest

from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import OpenStage, Peer, Stage, until
from tests.proxy.frames import Topic, batch, fetch, fetched, produce, produce_records

ROUNDS = 2
STALLING = 60
#: Nearly all of 1 MB, as requests or responses of 1 KB.
REQUESTS = 900


async def send_to(stage: Stage, client: Peer, data: bytes) -> None:
    """Send this, and wait until the proxy has read it."""
    await client.send(data)
    session = stage.session_of(client)
    await until(lambda: not stage.unread(session))


async def stall(stage: Stage, sent: bytes) -> list[Peer]:
    """So many clients that send this, and nothing more. The proxy has read it."""
    clients = []
    for _ in range(STALLING):
        client, _ = await stage.pair()
        await send_to(stage, client, sent)
        clients.append(client)
    return clients


async def leave(stage: Stage, clients: list[Peer]) -> None:
    for client in clients:
        client.reset()
    await until(lambda: len(stage.sessions) == 1)


async def test_an_innocent_producer_beside_sixty_requests_that_are_announced(open_stage: OpenStage) -> None:
    """Of 50 MB each, 200 bytes; and again on new connections."""
    stage = open_stage(quotas=[parse_spec("total,producer_byte_rate=1MB")])
    client, broker = await stage.pair()
    for number in range(ROUNDS):
        stalling = await stall(stage, produce(1, 50_000_000)[:200])
        sent = b"".join(produce(REQUESTS * number + at, 980, acks=0, client_id="innocent") for at in range(REQUESTS))
        await client.send(sent)
        assert await broker.read(len(sent)) == sent
        await leave(stage, stalling)
        stage.clock.pass_seconds(1)


async def test_an_innocent_consumer_beside_sixty_of_which_the_answers_are_late(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[parse_spec("total,consumer_byte_rate=1MB")])
    client, broker = await stage.pair()
    for number in range(ROUNDS):
        stalling = await stall(stage, fetch(1))
        for at in range(REQUESTS * number, REQUESTS * number + REQUESTS):
            await client.send(fetch(at, client_id="innocent"))
            await broker.frame()
            await broker.send(fetched(at, size=980))
            assert await client.frame() == fetched(at, size=980)
        await leave(stage, stalling)
        stage.clock.pass_seconds(1)


@pytest.mark.parametrize("pieces", [0, 200])
async def test_a_late_topic_on_one_new_connection_after_another(open_stage: OpenStage, pieces: int) -> None:
    """Of 0.4 MB, after 70 kB or 200 pieces of another topic. They get the burst and a frame, then what is earned."""
    any_topic = parse_spec("topic=<default>,bytes_in_rate=1GB")
    stage = open_stage(quotas=[parse_spec("topic=secret,bytes_in_rate=1MB"), any_topic])
    topics: dict[Topic, list[bytes | None]] = {"decoy": [b"abc"] * pieces or [batch(1, 70_000)]}
    sent = produce_records(1, topics | {"secret": [batch(1, 400_000)]})
    late = sent.index(b"secret")
    received = [0] * 10

    async def read(broker: Peer, at: int) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                received[at] += len(await broker.read(1))
                waiting = await asyncio.get_running_loop().sock_recv(broker.sock, 1 << 20)
                received[at] += len(waiting)
                if not waiting:
                    return

    tasks = []
    for at in range(len(received)):
        client, broker = await stage.pair()
        tasks.append(asyncio.ensure_future(read(broker, at)))
        await send_to(stage, client, sent[:late])
        tasks.append(asyncio.ensure_future(client.send(sent[late:])))

    async def passed() -> int:
        """Bytes that have passed when each has, or is held."""
        await until(lambda: stage.paused().get("quota", 0) + received.count(len(sent)) == len(received))
        return sum(received)

    def has_gone_on(before: int) -> bool:
        return sum(received) > before or before == len(received) * len(sent)

    free, frame = len(received) * len(sent[:late]) + 75_000, 400_000  # what is not of the topic, and a head of each
    for second in range(1, 5):
        before = await passed()
        assert before <= second * 1_000_000 + frame + free
        stage.clock.pass_seconds(1)
        await until(partial(has_gone_on, before))
    assert await passed() == len(received) * len(sent)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
