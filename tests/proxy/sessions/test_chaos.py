"""Whatever comes, in whatever order: nothing is left behind, nothing is a defect, and the process lives."""

import asyncio
import contextlib
import random
import socket
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.apis import SHARE_FETCH
from proxy.config.config import SecurityOptions
from proxy.config.quota_sources import Quotas
from quotas.parsing.parse import parse_spec
from tests.proxy import frames
from tests.proxy.conversation import OpenStage, Peer, Stage, until, without_burst
from tests.proxy.frames import api_versions, fetch, fetched, heartbeat, heartbeat_answer, metadata, produce, produced

CONNECTIONS = 300
QUOTA = without_burst("client-id=etl,producer_byte_rate=40MB,consumer_byte_rate=40MB")
OF_ANOTHER = parse_spec("client-id=x,producer_byte_rate=1")


def some_request(random_: random.Random, number: int) -> bytes:
    size = random_.randrange(60_000)
    return random_.choice(
        [
            produce(number, size, random_.choice([2, 7, 9, 12, 13])),
            produce(number, size, acks=0),
            fetch(number, random_.choice([1, 4, 12, 17])),
            frames.request(SHARE_FETCH, 1, number, bytes(30)),
            heartbeat(number),
            metadata(number),
            api_versions(number, 99),
        ]
    )


def some_answer(random_: random.Random, asked: bytes) -> bytes:
    """What a broker may say to this, or nothing, or nonsense."""
    api, version, number = int.from_bytes(asked[4:6], "big"), int.from_bytes(asked[6:8], "big"), asked[8:12]
    correlation = int.from_bytes(number, "big")
    if random_.random() < 0.02:
        return random_.randbytes(random_.randrange(1, 50))
    if api == 0:
        return produced(correlation, version, endpoints=random_.random() < 0.3 and version >= 10)
    if api == 1:
        size = random_.choice([10, 1_000, 400_000])
        if version < 16:
            return fetched(correlation, version, size)
        return frames.fetched_with_endpoints(correlation, version, record_bytes=size)
    if api == SHARE_FETCH:
        return frames.share_fetched(correlation)
    if api == 3:
        return frames.metadata_answer(correlation, {random_.randrange(3): ("127.0.0.9", 9092)})
    return heartbeat_answer(correlation)


async def leave(random_: random.Random, peer: Peer) -> None:
    with contextlib.suppress(OSError):  # the other side may have left already
        random_.choice([peer.close, peer.reset, peer.end])()


async def play_client(random_: random.Random, stage: Stage, clients: list[Peer]) -> None:
    client = await stage.client()
    clients.append(client)
    if random_.random() < 0.05:
        await leave(random_, client)
        return
    sent = b"".join(some_request(random_, number) for number in range(random_.randrange(1, 12)))
    if random_.random() < 0.3:
        sent = sent[: random_.randrange(len(sent))]
    reading = random_.random() < 0.8
    at = 0
    for _ in range(400):
        try:
            at += client.send_now(sent[at : at + random_.choice([1, 50, 5_000, 200_000])])
            if reading:
                client.sock.recv(200_000)
        except BlockingIOError:
            pass
        except OSError:
            break
        if at == len(sent) and random_.random() < 0.05:
            break
        await asyncio.sleep(0.0005 if random_.random() < 0.2 else 0)
    await leave(random_, client)


async def play_broker(random_: random.Random, broker: Peer) -> None:
    try:
        for _ in range(random_.randrange(1, 30)):
            asked = await asyncio.wait_for(broker.frame(), 1)
            if asked[4:6] == b"\x00\x00" and b"\x00\x00" in asked[12:30] and random_.random() < 0.3:
                continue
            answer = some_answer(random_, asked)
            for start in range(0, len(answer), size := random_.choice([7, 60_000, 1_000_000])):
                await broker.send(answer[start : start + size])
                if size == 7 and start > 200:
                    break
    except (OSError, EOFError, TimeoutError):
        pass
    try:
        await leave(random_, broker)
        if broker.sock.fileno() >= 0:
            await asyncio.wait_for(broker.closed(), 1)
            broker.close()
    except (OSError, TimeoutError):
        broker.close()


@pytest.mark.parametrize("seed", [1, 2])
async def test_connections_that_come_and_go_at_any_moment(open_stage: OpenStage, seed: int) -> None:
    """And on uvloop: a descriptor that was closed while registered would end the process here."""
    random_ = random.Random(seed)
    stage = open_stage(
        quotas=[QUOTA], real_clock=time.monotonic_ns, security=SecurityOptions(max_buffered_bytes=600_000)
    )
    clients: list[Peer] = []
    players: set[asyncio.Task[None]] = set()

    async def accept() -> None:
        while True:
            broker = await stage.broker.accept()
            players.add(asyncio.ensure_future(play_broker(random.Random(random_.random()), broker)))

    accepting = asyncio.ensure_future(accept())
    for number in range(CONNECTIONS):
        players.add(asyncio.ensure_future(play_client(random.Random(seed * 1_000 + number), stage, clients)))
        if number % 25 == 0:
            await asyncio.sleep(0.002)
        if number % 60 == 59:
            stage.server.active_config.replace_quotas(
                Quotas({"": (QUOTA if number % 120 == 59 else OF_ANOTHER,)}, random_.choice((1.0, 0.5)))
            )
        if number % 40 == 39 and stage.sessions:
            random_.choice(sorted(stage.sessions, key=lambda session: session.identity.client.peer)).close()
        if number % 50 == 49 and stage.sessions:
            random_.choice(sorted(stage.sessions, key=lambda session: session.identity.client.peer)).drain()
    while pending := [player for player in players if not player.done()]:
        await asyncio.wait(pending, timeout=5)
    accepting.cancel()
    for client in clients:
        client.close()
    for player in players:
        player.result()
    await until(lambda: not stage.sessions)
    stage.check_at_rest()


# ---- arbitrary bytes
PIECES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(lambda body: frames.frame(body), st.binary(max_size=60)),
        st.builds(produce, st.integers(0, 5), st.integers(0, 300), st.integers(0, 13), st.integers(-1, 1)),
        st.builds(fetch, st.integers(0, 5), st.integers(0, 18)),
        st.builds(heartbeat, st.integers(0, 5)),
        st.builds(metadata, st.integers(0, 5)),
        st.builds(api_versions, st.integers(0, 5), st.sampled_from([0, 3, 4, 99])),
        st.builds(
            lambda number, body: frames.request(SHARE_FETCH, 1, number, body), st.integers(0, 5), st.binary(max_size=9)
        ),
    ),
    max_size=8,
)
ANSWERS = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(
            lambda number, body: frames.frame(number.to_bytes(4, "big") + body),
            st.integers(0, 5),
            st.binary(max_size=80),
        ),
        st.builds(produced, st.integers(0, 5), st.integers(0, 13)),
        st.builds(fetched, st.integers(0, 5), st.integers(0, 15)),
        st.builds(frames.fetched_with_endpoints, st.integers(0, 5)),
        st.builds(frames.share_fetched, st.integers(0, 5)),
        st.builds(lambda number: frames.metadata_answer(number, {1: ("kafka", 9092)}), st.integers(0, 5)),
    ),
    max_size=8,
)
SPLITS = st.lists(st.integers(1, 50), max_size=12)


@given(PIECES, ANSWERS, SPLITS, SPLITS, st.randoms(use_true_random=False))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
async def test_any_bytes_from_both_sides(
    open_stage: OpenStage,
    sent: list[bytes],
    answered: list[bytes],
    cuts: list[int],
    answer_cuts: list[int],
    random_: random.Random,
) -> None:
    """Whatever client and broker say, in whatever pieces: an answer to it or a counted reason, never a defect."""
    async with open_stage(quotas=[QUOTA]) as stage:
        client, broker = await stage.pair()
        session = stage.session_of(client)
        left = [_pieces(b"".join(sent), cuts), _pieces(b"".join(answered), answer_cuts)]
        peers = [client, broker]
        while any(left):
            side = random_.choice([side for side in (0, 1) if left[side]])
            try:
                peers[side].send_now(left[side].pop(0))
            except OSError:
                break
            if session.state.value == "closed":
                break
            for peer in peers:
                _read_what_is_there(peer)
            await asyncio.sleep(0)
            stage.clock.pass_seconds(0.01)
        for _ in range(4):
            await asyncio.sleep(0)
        (client if random_.random() < 0.5 else broker).close()


def _pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    pieces = []
    at = 0
    for size in cuts:
        pieces.append(data[at : at + size])
        at += size
    return [piece for piece in [*pieces, data[at:]] if piece]


def _read_what_is_there(peer: Peer) -> None:
    try:
        while peer.sock.recv(100_000, socket.MSG_DONTWAIT):
            pass
    except OSError:
        pass
