"""The process as a whole: how it drains, what signals do, which exit code it leaves. Its peers are scripted."""

import asyncio
import json
import logging
import os
import signal
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from proxy.admin.healthcheck import get
from proxy.config.config import Config, SecurityOptions
from proxy.process.start_log import log_start, raise_descriptor_limit
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import LOOPBACK, Peer, ScriptedBroker, Stage, arrives, lines_of
from tests.proxy.frames import frame, heartbeat, heartbeat_answer, produce, produced
from tests.proxy.tls_peer import Certificates

PATIENCE_SECONDS = 30.0


async def test_the_start_lists_some_quotas(open_stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture) -> None:
    stage = open_stage(quotas=[parse_spec(f"client-id=c{nth},producer_byte_rate=1MB") for nth in range(23)])
    with caplog.at_level(logging.INFO, "proxy"):
        log_start(stage.server.config, stage.server.active_config.quotas, 19092, 1)
    [held] = [fields["held"] for name, fields in lines_of(caplog.records) if name == "quotas"]
    assert held.startswith("client-id:c0 producer_byte_rate=1000000; client-id:c1 ")
    assert held.endswith("; client-id:c19 producer_byte_rate=1000000; and 3 more entries")


class Process:
    """A running proxy, its broker, and what it has logged."""

    def __init__(self, process: asyncio.subprocess.Process, broker: ScriptedBroker) -> None:
        self.broker = broker
        self._process = process
        self.scope = ""
        self._port = 0
        self._admin = LOOPBACK, 0
        self._peers: list[Peer] = []

    async def event(self, name: str) -> dict[str, Any]:
        """The next line of this event; those before it are passed over."""
        assert self._process.stderr is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            while line := await self._process.stderr.readline():
                fields: dict[str, Any] = json.loads(line)
                if fields["event"] == name:
                    return fields
        raise AssertionError(f"it ended without {name}")

    async def started(self) -> None:
        listening = await self.event("listening")
        self._port = int(listening["bootstrap"].rpartition(":")[2])
        self._admin = LOOPBACK, urlsplit(listening["metrics"]).port or 0
        self.scope = (await self.event("quotas"))["scope"]

    @contextmanager
    def unread(self) -> Iterator[None]:
        """What it writes to stderr meanwhile stays in the pipe."""
        transport = self._process._transport.get_pipe_transport(2)  # type: ignore[attr-defined] # it has no public name
        transport.pause_reading()
        yield
        transport.resume_reading()

    async def health(self) -> str:
        return (await asyncio.to_thread(get, self._admin, "/healthz", PATIENCE_SECONDS))[1]

    async def answer_probe(self) -> None:
        """The proxy asks by itself whether the server answers, until it does."""
        peer = await self.broker.accept()
        self._peers.append(peer)
        await peer.frame()
        await peer.send(ANSWER_TO_PROBE)

    async def client(self) -> Peer:
        sock = socket.socket()
        sock.setblocking(False)
        client = Peer(sock)
        self._peers.append(client)
        await asyncio.get_running_loop().sock_connect(sock, (LOOPBACK, self._port))
        return client

    async def pair(self) -> tuple[Peer, Peer]:
        return await self.client(), await self.broker.accept()

    async def refuses(self) -> None:
        """Nobody listens any more."""
        with socket.socket() as sock, pytest.raises(ConnectionRefusedError):
            sock.connect((LOOPBACK, self._port))

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def exit_code(self) -> int:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._process.wait()

    def close(self) -> None:
        for peer in self._peers:
            peer.close()


#: A response to ApiVersions 0 without an error, and with one API.
ANSWER_TO_PROBE = frame(struct.pack(">ihihhh", 1, 0, 1, 0, 0, 13))


@asynccontextmanager
async def running(*flags: str, broker: ScriptedBroker | None = None) -> AsyncIterator[Process]:
    broker = broker or ScriptedBroker()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_QUOTA_PROXY_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "run", "--bootstrap-servers", f"{LOOPBACK}:{broker.address[1]}"),
        *("--listen", f"{LOOPBACK}:0", "--broker-ports", "0", "--metrics-listen", f"{LOOPBACK}:0"),
        *("--log-format", "json", *flags),
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    proxy = Process(process, broker)
    try:
        await proxy.started()
        await proxy.answer_probe()
        yield proxy
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        proxy.close()
        broker.close()


@pytest.mark.parametrize(("event_loop", "stop"), [("uvloop", signal.SIGTERM), ("asyncio", signal.SIGINT)])
async def test_a_drain_ends_idle_connections_and_lets_the_others_finish(event_loop: str, stop: signal.Signals) -> None:
    async with running("--event-loop", event_loop) as proxy:
        idle, broker_of_idle = await proxy.pair()
        busy, broker_of_busy = await proxy.pair()
        await arrives(busy, broker_of_busy, produce(1))
        proxy.send(stop)
        assert await idle.rest() == b""
        assert await broker_of_idle.rest() == b""
        await proxy.refuses()
        await busy.send(heartbeat(2))
        await arrives(broker_of_busy, busy, produced(1))
        assert await broker_of_busy.rest() == b"", "nothing new is begun"
        assert (await proxy.event("stopped"))["connections_cut"] == 0
        assert await proxy.exit_code() == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=lambda second: second.name)
async def test_a_second_signal_ends_the_drain(second: signal.Signals) -> None:
    async with running("--drain-timeout", "1h") as proxy:
        client, broker = await proxy.pair()
        await arrives(client, broker, produce(1))
        proxy.send(signal.SIGTERM)
        await proxy.event("draining")
        proxy.send(second)
        await client.closed()
        assert await proxy.exit_code() == 1


@pytest.mark.claim(
    "enforcement",
    "a stderr that nobody reads stops neither clients nor /healthz nor SIGTERM; dropped lines are "
    "counted, and reported where they are missing",
)
async def test_a_stderr_that_nobody_reads_stops_neither_clients_nor_the_end() -> None:
    """A container's runtime or an agent for logs that stands still. 150 lines fill a pipe."""
    limit = ("--quota", "client-id=<default>,producer_byte_rate=1,mode=pause")
    async with running(*limit, "--drain-timeout", "100ms") as proxy:
        with proxy.unread():
            for number in range(150):
                name = f"{number:0500}"
                client, broker = await proxy.pair()
                await client.send(produce(1, client_id=name) + produce(2, client_id=name))  # the second one is held
                assert await broker.frame() == produce(1, client_id=name)
            assert "listening on " in await proxy.health()
            proxy.send(signal.SIGTERM)
            assert await proxy.exit_code() == 1, "requests are held"
        assert (await proxy.event("throttled"))["client_id"].startswith("0000"), "what was in the pipe is not lost"


def shared_ports() -> tuple[str, ...]:
    with socket.socket() as first, socket.socket() as second:
        first.bind((LOOPBACK, 0))
        second.bind((LOOPBACK, 0))
        listen, broker_port = (sock.getsockname()[1] for sock in (first, second))
    return "--listen", f"{LOOPBACK}:{listen}", "--broker-ports", f"{broker_port}-{broker_port}"


@pytest.mark.claim(
    "enforcement", "one of several processes with one port that drains loses no connection that waits to be accepted"
)
async def test_processes_share_their_ports_and_one_that_drains_loses_no_connection() -> None:
    """Not those either that wait to be accepted when it is told to end: it stands still while they come."""
    ports, broker = shared_ports(), ScriptedBroker()
    async with (
        running(*ports, "--reuse-port", broker=broker) as ends,
        running(*ports, "--reuse-port", broker=broker) as stays,
    ):
        ends.send(signal.SIGSTOP)
        clients = [await stays.client() for _ in range(300)]
        for number, client in enumerate(clients):
            await client.send(heartbeat(number))
        served = [await broker.accept() for _ in range(30)]  # by the one that stays
        ends.send(signal.SIGTERM)
        ends.send(signal.SIGCONT)
        served += [await broker.accept() for _ in range(270)]
        answers = {heartbeat(number): heartbeat_answer(number) for number in range(300)}
        for each in served:
            await each.send(answers.pop(await each.frame()))
        received = [await client.frame() for client in clients]
        assert received == [heartbeat_answer(number) for number in range(300)]
        assert (await ends.event("draining"))["connections"] > 64, "more than are accepted at once"
        for client in clients:
            client.end()
        assert await ends.exit_code() == 0
        await (await stays.client()).send(heartbeat(1))
        assert await broker.first_frame() == heartbeat(1)


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_port_that_the_other_process_does_not_share(is_first: bool) -> None:
    ports = shared_ports()
    switches = ["--reuse-port"] if is_first else [], [] if is_first else ["--reuse-port"]
    async with running(*ports, *switches[0]) as first:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "run", "--bootstrap-servers", f"{LOOPBACK}:{first.broker.address[1]}"),
            *("--metrics-listen", f"{LOOPBACK}:0", *ports, *switches[1]),
            stderr=asyncio.subprocess.PIPE,
        )
        _, told = await process.communicate()
        hint = "" if is_first else ": another process has it without --reuse-port, or as another user"
        line = f"error: --listen: cannot listen on {ports[1]}: Address already in use{hint}\n"
        assert told.decode().splitlines(keepends=True)[-1] == line
        assert process.returncode == 1


async def test_a_hang_up_reads_the_quotas_file_again(tmp_path: Path) -> None:
    quotas = tmp_path / "quotas.toml"
    quotas.write_text('[[quota]]\nclient-id = "etl"\nproducer_byte_rate = 5\n')
    async with running("--quotas-file", str(quotas)) as proxy:
        replace_content(quotas, '[[quota]]\nclient-id = "etl"\nproducer_byte_rat = 5\n')
        proxy.send(signal.SIGHUP)
        assert "producer_byte_rat" in (await proxy.event("config_refused"))["place"]
        replace_content(quotas, '[[quota]]\nclient-id = "etl"\nproducer_byte_rate = "5GB"\n')
        proxy.send(signal.SIGHUP)
        await proxy.event("quotas_reloaded")
        client, broker = await proxy.pair()
        for number in range(3):
            await arrives(client, broker, produce(number, 100_000))


async def test_a_signal_meant_for_log_files_or_mistyped_does_not_end_the_proxy() -> None:
    async with running() as proxy:
        proxy.send(signal.SIGUSR1)
        assert "SIGUSR2" in (await proxy.event("signal_ignored"))["hint"]
        client, broker = await proxy.pair()
        await arrives(client, broker, produce(1, 1_000))


async def test_a_server_name_that_is_not_ascii_is_refused_in_one_line(tmp_path: Path) -> None:
    """Python prints a traceback for each: `event` fails at a line that is no JSON."""
    certificates = Certificates(tmp_path)
    location = ("--ssl-certificate-location", str(certificates.server.both))
    async with running(*location) as proxy:
        for _ in range(3):
            client, hello = await proxy.client(), hello_of(certificates, "broker-3.kafka.test")
            await client.send(hello.replace(b"broker-3.kafka.test", b"broker-\xff.kafka.test"))
            assert (await client.rest())[:1] == b"\x15", "an alert"
            client.close()
        assert (await proxy.event("exception_ignored"))["detail"].startswith("UnicodeDecodeError: 'ascii' codec")
        assert (await proxy.event("protocol_error"))["reason"] == "tls_handshake"
        proxy.send(signal.SIGTERM)
        await proxy.event("draining")
        assert await proxy.exit_code() == 0


def hello_of(certificates: Certificates, server_name: str) -> bytes:
    """What a client of TLS sends first."""
    sent = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        certificates.of_client().wrap_bio(ssl.MemoryBIO(), sent, server_hostname=server_name).do_handshake()
    return sent.read()


def replace_content(path: Path, text: str) -> None:
    """In one step: the proxy may read the file at any time."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


@pytest.mark.parametrize(
    ("hard", "connections", "wanted"), [(4_000, 10_000, None), (3_999, 10_000, 4_000), (4_000, 2_000, 8_000)]
)
def test_few_descriptors(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, hard: int, connections: int, wanted: int | None
) -> None:
    """The default of 10,000 connections is a bound for everybody: machines with usual limits get no warning for it."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (hard, hard))
    raise_descriptor_limit(Config(security=SecurityOptions(max_connections=connections)))
    assert [fields["wanted"] for _, fields in lines_of(caplog.records)] == ([] if wanted is None else [wanted])
