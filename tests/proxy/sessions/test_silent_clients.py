"""Many clients that send and never read: memory stays within `--max-buffered-bytes`, and others are served."""

import asyncio
import socket
import time
from collections.abc import Callable

import pytest

from proxy.config.config import SecurityOptions
from proxy.streams.memory import OWN_SIZE, READ_SIZE
from tests.proxy.conversation import OpenStage, Peer, Stage, arrives, exchange
from tests.proxy.frames import fetch, fetched, produce, produced

pytestmark = pytest.mark.claim(
    "enforcement", "--max-pending-requests and --max-buffered-bytes hold, and others are served"
)

BOUND = 8 << 20
#: Buffers of each socket, so that the proxy has the bytes and not the kernel.
SOCKET_BUFFER = 16_384
PENDING = 20
REQUESTS = b"".join(produce(number, 4_000) for number in range(2, 60))
RESPONSE = fetched(1, size=1_000_000)
#: Rounds in which no side takes a byte, until all is full. The kernel may take longer to acknowledge what was read.
IDLE_ROUNDS = 20
FILL_SECONDS = 60


async def fill(stage: Stage, pairs: list[tuple[Peer, Peer]], is_full: Callable[[], bool]) -> int:
    """Both sides send until no byte is taken. Returns the most bytes that the proxy had in memory meanwhile."""
    sent = dict.fromkeys((peer for pair in pairs for peer in pair), 0)
    most = idle = 0
    deadline = time.monotonic() + FILL_SECONDS
    while idle < IDLE_ROUNDS or "turn" in stage.paused() or not (is_full() or time.monotonic() > deadline):
        idle += 1
        for client, broker in pairs:
            for peer, data in ((client, REQUESTS), (broker, RESPONSE)):
                taken = peer.send_now(data[sent[peer] : sent[peer] + 65_536])
                sent[peer] += taken
                if taken:
                    idle = 0
            most = max(most, stage.memory.buffered_bytes)
        await asyncio.sleep(0)
    return most


@pytest.mark.parametrize("number", [200, pytest.param(2_000, marks=[pytest.mark.nightly, pytest.mark.timeout(600)])])
async def test_memory_is_bounded_and_others_are_served(open_stage: OpenStage, number: int) -> None:
    stage = open_stage(security=SecurityOptions(max_buffered_bytes=BOUND, max_pending_requests=PENDING))
    pairs = []
    for _ in range(number):
        client, broker = await stage.pair()
        session = stage.session_of(client)
        assert session.upstream is not None
        for sock in (client.sock, broker.sock, session.client._sock, session.upstream._sock):
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
        await arrives(client, broker, fetch(1))
        pairs.append((client, broker))

    def kept() -> list[int]:
        return sorted(stage.session_of(client).responses.stream.holding.total for client, _ in pairs)

    def is_full() -> bool:
        return stage.memory.used > BOUND * 3 // 4 and kept()[number // 100] >= OWN_SIZE

    most = await fill(stage, pairs, is_full)
    assert is_full(), "few are left out"
    assert most <= BOUND + READ_SIZE + 2 * OWN_SIZE * number
    assert kept()[-1] <= 4 * SOCKET_BUFFER, "none has it all"
    client, broker = await stage.pair()
    for each in range(5):
        await exchange(client, broker, produce(each, 20_000), produced(each))
    for peer in (peer for pair in pairs for peer in pair):
        peer.close()
    client.close()
    broker.close()
    await stage.no_sessions()
    assert stage.memory.buffered_bytes == 0
