"""Accepting: storms, exhaustion, the bound on connections; and the bound on memory."""

import asyncio
import errno
import socket

import pytest

from proxy.admin.healthcheck import check
from proxy.admin.http_server import HttpServer, Response, text_response
from proxy.background.host import listening_socket
from proxy.config.config import SecurityOptions
from tests.proxy.conversation import LOOPBACK, OpenStage, Peer, Stage, arrives, lines_of, until
from tests.proxy.frames import heartbeat


async def test_what_is_accepted_keeps_its_options(open_stage: OpenStage) -> None:
    client, _ = await (stage := open_stage()).pair()
    session = stage.session_of(client)
    for wire in (session.client, session.upstream):
        assert wire is not None
        sock = wire._sock
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert not sock.getblocking()


class Exhausted:
    """A listening socket whose accept fails so many times."""

    def __init__(self, sock: socket.socket, code: int, times: int) -> None:
        self._sock = sock
        self._code = code
        self.left = times

    def accept(self) -> object:
        if self.left:
            self.left -= 1
            raise OSError(self._code, "not now")
        return self._sock.accept()

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()


def exhaust(stage: Stage, code: int, times: int) -> Exhausted:
    listener = stage.server.ports._listeners[stage.port]
    exhausted = Exhausted(listener._sock, code, times)
    listener._sock = exhausted  # type: ignore[assignment]
    return exhausted


@pytest.mark.parametrize(
    ("code", "reason"),
    [(errno.EMFILE, "descriptors_exhausted"), (errno.ENFILE, "descriptors_exhausted"), (errno.ENOBUFS, "no_memory")],
)
async def test_accepting_pauses_without_descriptors_and_resumes(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch, code: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("proxy.sessions.listener.PAUSE_SECONDS", 0.01)
    other, broker_of_other = await (stage := open_stage()).pair()
    exhausted = exhaust(stage, code, 3)
    client = await stage.client()
    await until(lambda: stage.metrics.errors.accept[reason] == 1)
    await arrives(other, broker_of_other, heartbeat(1))
    broker = await stage.broker.accept()
    assert exhausted.left == 0
    assert stage.metrics.errors.accept[reason] == 3, "one try for each rest: it does not spin"
    assert [fields["reason"] for name, fields in lines_of(caplog.records) if name == "accept_paused"] == [reason] * 3
    await arrives(client, broker, heartbeat(2))


async def test_a_connection_that_was_aborted_in_the_backlog_costs_nothing(open_stage: OpenStage) -> None:
    stage = open_stage()
    exhaust(stage, errno.ECONNABORTED, 1)
    await stage.pair()
    assert stage.metrics.errors.accept["aborted"] == 1


async def test_a_connection_that_comes_during_a_drain_is_closed(open_stage: OpenStage) -> None:
    """A response may name a new node while the proxy drains, and its port is bound then."""
    stage = open_stage()
    stage.server._drained = asyncio.Event()
    await (await stage.client()).closed()
    assert stage.metrics.connections.open == 0


async def test_no_descriptor_for_the_broker_closes_it(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = open_stage()
    client = Peer(socket.socket())
    stage.clients.append(client)
    client.sock.connect_ex((LOOPBACK, stage.port))
    real = socket.socket

    def no_more(family: int = -1, kind: int = -1, proto: int = -1, fileno: int | None = None) -> socket.socket:
        if fileno is None:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(family, kind, proto, fileno)  # what accept makes of a descriptor

    with monkeypatch.context() as patched:
        patched.setattr("proxy.brokers.upstream.socket.socket", no_more)
        await until(lambda: stage.metrics.errors.upstream["connect_failed"] == 1)
    await client.closed()
    await stage.no_sessions()
    await stage.pair()


async def test_connections_above_the_bound_are_closed(open_stage: OpenStage, caplog: pytest.LogCaptureFixture) -> None:
    stage = open_stage(security=SecurityOptions(max_connections=3))
    pairs = [await stage.pair() for _ in range(3)]
    for _ in range(4):
        await (await stage.client()).closed()
    assert stage.metrics.connections.rejected["max_connections"] == 4
    assert stage.metrics.connections.open == 3
    [(_, fields)] = [line for line in lines_of(caplog.records) if line[0] == "connection_rejected"]
    assert fields["max_connections"] == 3
    pairs[0][0].close()
    await until(lambda: stage.metrics.connections.open == 2)
    client, broker = await stage.pair()
    await arrives(client, broker, heartbeat(1))


@pytest.mark.claim(
    "limits",
    "all interfaces, however they are written, are those of IPv6 and IPv4 on every port, or of "
    "IPv4 alone where there is no IPv6; no wildcard is advertised",
)
@pytest.mark.parametrize("host", ["*", "::"])
@pytest.mark.parametrize("client", ["127.0.0.1", "::1"])
async def test_all_interfaces_are_of_both_families(host: str, client: str) -> None:
    """On the ports of clients and on that of probes: a cluster may have one family or the other."""
    with listening_socket((host, 0)) as sock:
        socket.create_connection((client, sock.getsockname()[1]), 10).close()

    async def respond(path: str, accept: str) -> Response:
        return text_response("fine")

    admin = HttpServer(respond, ())
    await admin.listen((host, 0))
    try:
        reader, writer = await asyncio.open_connection(client, admin.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: " + (b"[::1]" if ":" in client else b"127.0.0.1") + b"\r\n\r\n")
        assert b" 200 " in await reader.readline()
        writer.close()
        assert (await asyncio.to_thread(check, (host, admin.port), 10, ready=False))[0]
    finally:
        await admin.close()


@pytest.mark.parametrize("code", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_without_ipv6_all_interfaces_are_those_of_ipv4(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make = socket.socket

    def without_ipv6(family: int, *rest: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(code, "no IPv6")
        return make(family, *rest)

    monkeypatch.setattr("proxy.sessions.listener.socket.socket", without_ipv6)
    with listening_socket(("::", 0)) as sock:
        assert sock.family == socket.AF_INET
