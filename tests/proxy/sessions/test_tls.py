"""TLS on either side: the bytes of a conversation, its ends, handshakes that fail or stall, and many at once."""

import asyncio
import datetime
import socket
import ssl
import subprocess
from collections.abc import Iterable
from ipaddress import ip_network
from itertools import repeat
from pathlib import Path
from typing import Any, cast

import pytest

from proxy.config.client_settings import Pem
from proxy.config.config import SecurityOptions
from proxy.sessions.slices import HEAVY_ROUND_NS, Slices
from proxy.sessions.tls_wire import Handshake, TlsWire
from proxy.sessions.wire import Wire
from tests.proxy import frames
from tests.proxy.conversation import (
    LOOPBACK,
    PATIENCE_SECONDS,
    OpenBroker,
    OpenStage,
    Peer,
    Stage,
    arrives,
    exchange,
    lines_of,
    until,
)
from tests.proxy.tls_peer import Certificates, ClientKeys, TlsPeer
from tests.proxy.wires import WorkClock


async def client_of(stage: Stage, certificates: Certificates, **context: object) -> TlsPeer:
    """A client after its handshake."""
    client = TlsPeer(await stage.client(), certificates.of_client(**context))  # type: ignore[arg-type]
    await client.handshake()
    return client


async def pair(stage: Stage, certificates: Certificates, sides: str = "both") -> tuple[TlsPeer, TlsPeer]:
    """A client, and the broker's side of its connection: with TLS on these sides; plain ones have the same methods."""
    client = await client_of(stage, certificates) if sides != "broker" else await stage.client()
    broker = await stage.broker.accept()
    if sides != "client":
        broker = TlsPeer(broker, certificates.of_server(), None)  # type: ignore[assignment]
        await broker.handshake()  # type: ignore[attr-defined]
    return client, broker  # type: ignore[return-value]


def opened(open_stage: OpenStage, certificates: Certificates, sides: str = "both", **options: object) -> Stage:
    if sides != "broker":
        options["listening"] = certificates.listening()
    if sides != "client":
        options["upstream"] = certificates.upstream()
    return open_stage(**options)


def turns_of_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Will contain, of each turn, the bytes that were decrypted, and those that OpenSSL was given."""
    turns: list[tuple[int, int]] = []
    decrypt = TlsWire._decrypt

    def noted(*arguments: Any) -> tuple[int, int]:
        turns.append(decrypt(*arguments))
        return turns[-1]

    monkeypatch.setattr(TlsWire, "_decrypt", noted)
    return turns


def with_small_buffers(*ends: Wire | Peer | None) -> None:
    for end in ends:
        assert end is not None
        option = socket.SO_RCVBUF if isinstance(end, Peer) else socket.SO_SNDBUF
        (end.sock if isinstance(end, Peer) else end._sock).setsockopt(socket.SOL_SOCKET, option, 65_536)


# ---- conversations
@pytest.mark.parametrize("sides", ["client", "broker", "both"])
async def test_a_conversation(open_stage: OpenStage, certificates: Certificates, sides: str) -> None:
    """Frames of more than one TLS record and more than one read; many records in one read; one record in many reads."""
    stage = opened(open_stage, certificates, sides)
    client, broker = await pair(stage, certificates, sides)
    await exchange(client, broker, frames.heartbeat(1), frames.heartbeat_answer(1))
    for number, size in enumerate((100, 40_000, 3_000_000), start=10):
        sending = asyncio.ensure_future(
            client.send(frames.produce(number, size) + frames.api_versions(100 + number, 99))
        )
        assert await broker.frame() == frames.produce(number, size)
        await sending
        await arrives(broker, client, frames.produced(number))
        assert (await client.frame())[4:8] == (100 + number).to_bytes(4, "big")
    for number in range(200):  # a record each
        await client.send(frames.heartbeat(number))
    assert [await broker.frame() for _ in range(200)] == [frames.heartbeat(number) for number in range(200)]
    for number in range(200):
        await broker.send(frames.heartbeat_answer(number))
    assert [await client.frame() for _ in range(200)] == [frames.heartbeat_answer(number) for number in range(200)]
    await client.send(frames.find_coordinator(20) + frames.metadata(21))
    assert [await broker.frame() for _ in range(2)] == [frames.find_coordinator(20), frames.metadata(21)]
    named = {7: ("127.0.0.9", 9_092)}
    await broker.send(frames.coordinator_answer(20, 7, *named[7]) + frames.metadata_answer(21, named, 5_000))
    shown = {7: stage.context.nodes.advertise(7, *named[7])}
    assert await client.frame() == frames.coordinator_answer(20, 7, *shown[7])
    assert await client.frame() == frames.metadata_answer(21, shown, 5_000)


@pytest.mark.parametrize(
    ("host", "server_name"),
    [("broker-3.kafka.test", "broker-3.kafka.test"), ("Bücher.test", "xn--bcher-kva.test"), (LOOPBACK, None)],
)
@pytest.mark.parametrize("sizes", [(), repeat(1)], ids=["whole", "byte by byte"])
async def test_a_route_knows_the_server_name_of_the_handshake(
    open_stage: OpenStage, certificates: Certificates, host: str, server_name: str | None, sizes: Iterable[int]
) -> None:
    """Clients send no name for an address. The route is asked once, after the handshake, however it arrives."""
    stage, asked = opened(open_stage, certificates, "client"), list[str | None]()
    stage.server.ports.place_of = lambda port, name: asked.append(name) or port  # type: ignore
    context = certificates.of_client()
    context.check_hostname = False
    client = TlsPeer(await stage.client(), context, host)
    await until(lambda: stage.sessions)
    assert asked == []
    await client.handshake(sizes)
    await client.send(frames.produce(1), sizes)
    assert await stage.broker.first_frame() == frames.produce(1)
    assert asked == [server_name]


@pytest.mark.claim(
    "security", "records of one byte, and records without data (TLS 1.3's KeyUpdate), are read in several turns"
)
async def test_tiny_records(open_stage: OpenStage, certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one client could stop the event loop for seconds."""
    client, broker = await pair(opened(open_stage, certificates, "client"), certificates, "client")
    turns = turns_of_reads(monkeypatch)
    for at in range(3_000):
        client.tls.write(frames.produce(1, 3_000)[at : at + 1])
    await client.send(frames.produce(1, 3_000)[3_000:])
    assert await broker.frame() == frames.produce(1, 3_000)
    assert len(turns) >= 3_000 // 64
    assert max(size for size, _ in turns[:-1]) <= 64


@pytest.mark.claim(
    "security", "records of one byte, and records without data (TLS 1.3's KeyUpdate), are read in several turns"
)
@pytest.mark.parametrize("asks", [False, True])
async def test_key_updates_are_read_in_several_turns(
    open_stage: OpenStage, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asks: bool
) -> None:
    """They contain no data, so OpenSSL would read all of them at once; a request after them passes, and so does the
    response, after the proxy's own updates.
    """
    stage = opened(open_stage, certificates, "client")
    context = certificates.of_client()
    context.keylog_filename = str(tmp_path / "keys")
    client = TlsPeer(await stage.client(), context)
    await client.handshake()
    broker = await stage.broker.accept()
    turns = turns_of_reads(monkeypatch)
    keys = ClientKeys(tmp_path / "keys")
    updates = b"".join(keys.update(asks=asks) for _ in range(3_000))
    await client.peer.send(updates + keys.record(frames.heartbeat(1), 23))
    assert await broker.frame() == frames.heartbeat(1)
    assert len(turns) > 4
    assert max(given for _, given in turns) < 20_000 < len(updates) / 4
    await arrives(broker, client, frames.heartbeat_answer(1))


async def test_a_receiver_that_is_slow(open_stage: OpenStage, certificates: Certificates) -> None:
    """A send that the socket does not take begins again with the same bytes, and may be longer then."""
    stage = opened(open_stage, certificates)
    client, broker = await pair(stage, certificates)
    session = stage.session_of(client.peer)
    await until(lambda: session.upstream is not None)
    with_small_buffers(session.client, session.upstream, client.peer, broker.peer)
    await client.send(frames.fetch(1) + frames.api_versions(2, 99))
    assert await broker.frame() == frames.fetch(1)
    answering = asyncio.ensure_future(broker.send(frames.fetched(1, size=3_000_000)))
    await until(lambda: session.responses.writer.pending is not None)
    requesting = asyncio.ensure_future(client.send(frames.produce(3, 3_000_000)))
    await until(lambda: session.requests.writer.pending is not None)
    response, _ = await asyncio.gather(client.frame(), answering)
    assert response == frames.fetched(1, size=3_000_000)
    assert (await client.frame())[4:8] == (2).to_bytes(4, "big")
    request, _ = await asyncio.gather(broker.frame(), requesting)
    assert request == frames.produce(3, 3_000_000)


# ---- ends
@pytest.mark.parametrize("size", [20, 3_000_000])
async def test_half_close(open_stage: OpenStage, certificates: Certificates, size: int) -> None:
    """A client that sends no more receives what is in flight; then both sides see TLS's own end, no cut connection. It
    comes after what a slow client has not read, of which the wire has encrypted a part that the socket does not take.
    The broker, which then ends its stream, has not failed: the client ended first.
    """
    stage = opened(open_stage, certificates)
    client, broker = await pair(stage, certificates)
    session = stage.session_of(client.peer)
    await client.send(frames.fetch(1) + frames.produce(2, 50_000, acks=0))
    assert [await broker.frame() for _ in range(2)] == [frames.fetch(1), frames.produce(2, 50_000, acks=0)]
    if size > 65_536:
        with_small_buffers(session.client, client.peer)
    await client.end()
    answering = asyncio.ensure_future(broker.send(frames.fetched(1, size=size)))
    if size > 65_536:
        await until(lambda: cast("TlsWire", session.client)._unsent)
    assert await client.frame() == frames.fetched(1, size=size)
    await answering
    await broker.ended()
    await broker.end()
    await client.ended()
    await stage.no_sessions()
    assert not stage.metrics.errors.upstream.total()


async def test_the_end_of_stream_in_the_read_of_a_request(open_stage: OpenStage, certificates: Certificates) -> None:
    """It is found by the read before, and no event of the loop reports it: the client does not end TCP's stream."""
    stage = opened(open_stage, certificates, "client")
    client, broker = await pair(stage, certificates, "client")
    client.tls.write(frames.heartbeat(1))
    client.peer.end = lambda: None  # type: ignore[method-assign]
    await client.end()
    assert await broker.frame() == frames.heartbeat(1)
    await arrives(broker, client, frames.heartbeat_answer(1))
    plain = cast("Peer", broker)
    await plain.closed()
    plain.close()
    await stage.no_sessions()


# ---- handshakes of clients
@pytest.mark.claim(
    "security", "a client that does not speak TLS, or stalls in its handshake, affects only its own connection"
)
async def test_a_client_that_stalls_in_its_handshake(
    open_stage: OpenStage, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """`--handshake-timeout` begins with the PROXY header, and ends with the first request."""
    stage = open_stage(
        listening=certificates.listening(proxy_protocol_from=(ip_network("127.0.0.0/8"),)),
        security=SecurityOptions(handshake_timeout_seconds=10),
    )
    headers = stage.server._ticks.sweep._headers
    header = b"PROXY TCP4 10.0.0.1 10.0.0.2 1000 2000\r\n"
    first, second, third = [await stage.client() for _ in range(3)]
    for client in (first, second, third):
        await client.send(header[:10])
    await until(lambda: len(headers._waiting) == 3)
    stage.clock.pass_seconds(6)  # after that, 4 s are left
    silent = TlsPeer(second, certificates.of_client())
    good = TlsPeer(third, certificates.of_client())
    await first.send(header[10:] + b"\x16\x03\x01")
    for client, peer in ((second, silent), (third, good)):
        await client.send(header[10:])
        await peer.handshake()
    await good.send(frames.heartbeat(1))
    brokers = [await stage.broker.accept() for _ in range(2)]
    stage.clock.pass_seconds(5)
    await asyncio.gather(first.closed(), second.closed())
    assert stage.metrics.connections.closed["handshake_timeout"] == 2
    [session] = stage.sessions
    assert session.request_stream.has_request
    assert brokers


@pytest.mark.claim(
    "security", "a client that asks for renegotiation (TLS 1.2) is refused; other connections do not notice"
)
async def test_renegotiation_is_refused(open_stage: OpenStage, certificates: Certificates) -> None:
    """Of TLS 1.2, by its alert. OpenSSL's client then gives up; another client's connection goes on."""
    stage = opened(open_stage, certificates, "client")
    other, others_broker = await pair(stage, certificates, "client")
    command = ("openssl", "s_client", "-connect", f"{LOOPBACK}:{stage.port}", "-tls1_2", "-CAfile", certificates.ca)
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    openssl = await asyncio.create_subprocess_exec(*command, **pipes)
    try:
        assert openssl.stdin is not None
        openssl.stdin.write(frames.heartbeat(1))
        broker = await stage.broker.accept()
        assert await broker.frame() == frames.heartbeat(1)
        openssl.stdin.write(b"R\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            _, said = await openssl.communicate()
    finally:
        if openssl.returncode is None:
            openssl.kill()
            await openssl.wait()
    assert b"RENEGOTIATING" in said
    assert b"no renegotiation" in said
    assert openssl.returncode
    await broker.closed()
    await arrives(other, others_broker, frames.heartbeat(2))


async def test_plaintext(open_stage: OpenStage, certificates: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    """Counted and logged; a health check that sends nothing is neither."""
    stage = opened(open_stage, certificates, "client")
    client = await stage.client()
    await client.send(frames.heartbeat(1))
    await client.closed()
    client.close()
    (await stage.client()).close()
    await stage.no_sessions()
    assert stage.metrics.errors.protocol["tls_handshake"] == 1
    [said] = [fields for name, fields in lines_of(caplog.records) if name == "protocol_error"]
    assert (said["reason"], "security.protocol=SSL" in said["detail"]) == ("tls_handshake", True)


@pytest.mark.claim(
    "security",
    "with required, a client must have a certificate from --ssl-ca-location; with requested, a bad one is refused",
)
@pytest.mark.parametrize("auth", ["requested", "required"])
async def test_client_certificate(open_stage: OpenStage, certificates: Certificates, tmp_path: Path, auth: str) -> None:
    """A good one names the user; none passes unless it is required; a bad one is refused, and the client sees the alert
    though it has sent a request already.
    """
    rules = "RULE:^CN=([a-z]+),O=.*$/$1/,DEFAULT"
    stage = open_stage(listening=certificates.listening(ca=certificates.ca, client_auth=auth, principal_rules=rules))
    strangers = Certificates(tmp_path)
    client = await client_of(stage, certificates, files=certificates.issue("client", common_name="etl,O=acme"))
    await client.send(frames.heartbeat(1))
    assert await (await stage.broker.accept()).frame() == frames.heartbeat(1)
    assert stage.session_of(client.peer).identity.client.user.startswith("CN=etl")
    context = certificates.of_client()
    if auth == "required":
        client = TlsPeer(await stage.client(), context)
        await client.handshake()  # with TLS 1.3 a client is done before the server is
        await client.send(frames.heartbeat(2))
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            await client.frame()
        stage.metrics.errors.protocol["tls_handshake"] = 0
    context.load_cert_chain(strangers.issue("stranger").both)
    client = TlsPeer(await stage.client(), context)
    await client.handshake()
    await client.send(frames.produce(3, 100_000))
    with pytest.raises(ssl.SSLError, match=r"UNKNOWN_CA|CERTIFICATE"):
        await client.frame()
    client.peer.close()
    await until(lambda: stage.metrics.errors.protocol["tls_handshake"] == 1)


@pytest.mark.claim("security", "many handshakes at once take turns with other clients")
@pytest.mark.pure
async def test_many_at_once(open_stage: OpenStage, certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """400 ClientHellos at once: in each round of the loop only so many steps as `HEAVY_ROUND_NS` has room for, and a
    request of another client passes within a few rounds.
    """
    step_ns = 700_000
    stage = opened(open_stage, certificates, "client", work_clock=WorkClock(step_ns))
    innocent, broker = await pair(stage, certificates, "client")
    rounds: list[int] = [0]
    on_slice, next_round = Handshake.on_slice, Slices._next_round

    def counting(handshake: Handshake) -> None:
        rounds[-1] += 1
        on_slice(handshake)

    def beginning(turns: Slices) -> None:
        rounds.append(0)
        next_round(turns)

    monkeypatch.setattr(Handshake, "on_slice", counting)
    monkeypatch.setattr(Slices, "_next_round", beginning)
    clients = [TlsPeer(await stage.client(), certificates.of_client()) for _ in range(400)]
    await until(lambda: len(stage.sessions) == 401)
    for client in clients:
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.do_handshake()
        client.peer.send_now(client._outgoing.read())
    await until(lambda: sum(rounds) > 20)
    before = len(rounds)
    await arrives(innocent, broker, frames.heartbeat(1))
    assert len(rounds) - before <= 20
    assert sum(rounds) < 400, "they are not done yet"
    assert max(rounds) <= HEAVY_ROUND_NS // step_ns + 1
    for client in clients:
        await client.handshake()
    await until(lambda: sum(rounds) >= 800)  # the last client is done before the proxy


# ---- handshakes with brokers
def expired(certificates: Certificates) -> ssl.SSLContext:
    day = datetime.timedelta(days=1)
    issued = certificates.security._ca.issue_cert(LOOPBACK, not_after=datetime.datetime.now(datetime.UTC) - day)
    path = certificates.directory / "expired.pem"
    path.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


@pytest.mark.claim(
    "security",
    "a broker with an untrusted, misnamed or expired certificate receives no request; the host "
    "name is checked unless the file turns that off",
)
@pytest.mark.parametrize(
    "reason", ["tls_certificate", "tls_hostname", "tls_expired", "tls_plaintext_peer", "tls_failed"]
)
async def test_the_next_broker_after_a_handshake_that_fails(
    open_stage: OpenStage,
    open_broker: OpenBroker,
    certificates: Certificates,
    tmp_path: Path,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrong CA, a wrong name, an expired certificate, no TLS, no answer."""
    monkeypatch.setattr("proxy.brokers.upstream.NEXT_ADDRESS_SECONDS", 0.3 if reason == "tls_failed" else 20)
    contexts = {
        "tls_certificate": lambda: Certificates(tmp_path).of_server(),
        "tls_hostname": lambda: certificates.of_server(certificates.issue("other", "other.test")),
        "tls_expired": lambda: expired(certificates),
    }
    bad, good = open_broker(), open_broker()
    stage = open_stage(upstream=certificates.upstream(), bootstrap_servers=(bad.address, good.address))
    client = await stage.client()
    refused = await bad.accept()
    if reason in contexts:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await TlsPeer(refused, contexts[reason](), None).handshake()
    elif reason == "tls_plaintext_peer":
        assert await refused.read(1) == b"\x16"
        refused.close()
    broker = TlsPeer(await good.accept(), certificates.of_server(), None)
    await broker.handshake()
    await arrives(client, broker, frames.heartbeat(1))
    assert stage.metrics.errors.upstream[reason] == 1


async def test_without_a_check_of_the_name(open_stage: OpenStage, certificates: Certificates) -> None:
    files = certificates.issue("other", "other.test")
    own = Pem(files.both.read_text())
    stage = open_stage(upstream=certificates.upstream(checks_hostname=False, certificate=own))
    client = await stage.client()
    context = certificates.of_server(files)
    context.load_verify_locations(certificates.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    broker = TlsPeer(await stage.broker.accept(), context, None)
    await broker.handshake()
    assert broker.tls.getpeercert() is not None
    await arrives(client, broker, frames.heartbeat(1))
