"""Changes while thousands of frames are held: no round of the event loop takes more than 20 ms of processor time.

The clients and the broker are one other process. The time is that of the thread, not of the clock on the wall: other
work on the machine does not count.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

import pytest

from proxy.config.quotas_file import Quotas
from proxy.server import raise_descriptor_limit
from proxy.ticks import settle_garbage_collection
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import LOOPBACK, Stage, until
from tests.proxy.frames import produce

LONGEST_ROUND_NS = 20_000_000
FRAME_BYTES = 1_000
#: A frame leaves a debt of a quarter of an hour.
HELD = "{},producer_byte_rate=1,burst_seconds=0.1"
SCOPES = ("total", "client-id=<default>")


class TimedLoop(asyncio.SelectorEventLoop):
    """Remembers its longest round."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_ns = 0
        self.rounds = 0

    def _run_once(self) -> None:
        before_ns = time.thread_time_ns()
        super()._run_once()  # type: ignore[misc]  # typeshed has no private methods
        self.longest_ns = max(self.longest_ns, time.thread_time_ns() - before_ns)
        self.rounds += 1


def play_clients_and_broker(pipe: Connection, count: int) -> None:
    """A broker that reads and never answers, and `count` clients with two Produce requests each.

    Sends the broker's port and receives the proxy's; ends with the pipe.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    poll, sockets = select.epoll(), dict[int, socket.socket]()
    server = socket.create_server((LOOPBACK, 0), backlog=4_096)
    server.setblocking(False)
    poll.register(server, select.EPOLLIN)
    poll.register(pipe.fileno(), select.EPOLLIN)
    pipe.send(server.getsockname()[1])
    port = 0
    clients: list[socket.socket] = []
    while True:
        if port and len(clients) < count:
            client = socket.create_connection((LOOPBACK, port))
            client_id = f"client-{len(clients)}"
            client.sendall(produce(1, FRAME_BYTES, client_id=client_id) + produce(2, FRAME_BYTES, client_id=client_id))
            clients.append(client)
        for fd, _ in poll.poll(0 if port and len(clients) < count else -1):
            if fd == server.fileno():
                accepted, _ = server.accept()
                sockets[accepted.fileno()] = accepted
                poll.register(accepted, select.EPOLLIN)
            elif fd == pipe.fileno():
                try:
                    port = pipe.recv()
                except EOFError:
                    return
            elif not sockets[fd].recv(65_536):
                poll.unregister(fd)
                sockets.pop(fd).close()


@contextmanager
def clients_and_broker(count: int) -> Iterator[tuple[Connection, int]]:
    """The pipe to that process, and the broker's port."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process: SpawnProcess = context.Process(target=play_clients_and_broker, args=(its, count), daemon=True)
    process.start()
    its.close()
    try:
        yield mine, mine.recv()
    finally:
        mine.close()
        process.join(10)
        process.kill()


@contextmanager
def garbage_collection_of_the_proxy() -> Iterator[None]:
    """As in a proxy's process, where full collections are rare."""
    before = gc.get_threshold()
    settle_garbage_collection()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


CHANGES: dict[str, Callable[[Stage, str], None]] = {
    "another rate": lambda stage, scope: _replace(stage, f"{scope},producer_byte_rate=2,burst_seconds=0.1"),
    "another mode": lambda stage, scope: _replace(stage, HELD.format(scope) + ",mode=pause"),
    "another limit": lambda stage, _: _replace(stage, "client-id=nobody,producer_byte_rate=1"),
    "enforcement off": lambda stage, _: stage.server.active_config.toggle(),
}
#: After these nothing is held.
LIFTING = ("another limit", "enforcement off")


def _replace(stage: Stage, spec: str) -> None:
    quotas = Quotas((parse_spec(spec),), 1.0)
    quotas.prepare()  # the watch does this in a thread
    stage.server.active_config.replace_quotas(quotas)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("count", [300, pytest.param(5_000, marks=[pytest.mark.nightly, pytest.mark.timeout(600)])])
def test_no_round_of_the_loop_is_long(change: str, scope: str, count: int) -> None:
    async def run(loop: TimedLoop, pipe: Connection, port: int) -> None:
        quotas = [parse_spec(HELD.format(scope))]
        stage = Stage(quotas=quotas, real_clock=time.monotonic_ns, bootstrap_servers=((LOOPBACK, port),))
        raise_descriptor_limit(stage.config)
        async with stage:
            pipe.send(stage.port)
            await until(lambda: stage.paused().get("quota", 0) == count)
            with garbage_collection_of_the_proxy():
                await asyncio.sleep(0)  # the next round: a collection took most of this one
                loop.longest_ns = loop.rounds = 0
                CHANGES[change](stage, scope)
                is_lifted = change in LIFTING
                await until(lambda: loop.rounds > count // 100 + 20 and not (is_lifted and stage.paused().get("quota")))
                longest_ns, rounds = loop.longest_ns, loop.rounds
            assert stage.paused().get("quota", 0) == (0 if is_lifted else count)
            print(f"{change}, {scope}, {count}: longest round {longest_ns / 1e6:.1f} ms of {rounds}")
            assert longest_ns <= LONGEST_ROUND_NS

    with clients_and_broker(count) as (pipe, port), asyncio.Runner(loop_factory=TimedLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, TimedLoop)
        runner.run(run(loop, pipe, port))
