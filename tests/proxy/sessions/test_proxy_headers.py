"""Connections of load balancers: the PROXY header is read before anything else, and gives the client's address."""

import struct
from ipaddress import ip_network
from itertools import pairwise

import pytest

from proxy.config.config import ListeningOptions, SecurityOptions
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import LOOPBACK, OpenStage, Peer, lines_of, until
from tests.proxy.dialogue import alter
from tests.proxy.frames import heartbeat

FROM_HERE = ListeningOptions(address=(LOOPBACK, 0), broker_ports=None, proxy_protocol_from=(ip_network(LOOPBACK),))
CLIENT = ("192.0.2.1", 51344)
LINE = b"PROXY TCP4 192.0.2.1 198.51.100.7 51344 19092\r\n"
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
TLV = struct.pack(">BH", 0x04, 9) + b"x" * 9
BINARY = SIGNATURE + struct.pack(">BBH4B4BHH", 0x21, 0x11, 12 + len(TLV), 192, 0, 2, 1, 198, 51, 100, 7, 51344, 1) + TLV
LOCAL = SIGNATURE + struct.pack(">BBH", 0x20, 0, 0)


@pytest.mark.parametrize("header", [LINE, BINARY], ids=["version 1", "version 2"])
@pytest.mark.parametrize("step", [1, 7, 1_000], ids=["byte by byte", "pieces", "whole, with the request"])
async def test_a_session_has_the_clients_address_and_bytes(open_stage: OpenStage, header: bytes, step: int) -> None:
    stage = open_stage(listening=FROM_HERE)
    client = await stage.client()
    data = header + heartbeat(1)
    waiting = stage.server.ports._headers._waiting
    for start, end in pairwise([*range(0, len(data), step), len(data)]):
        await client.send(data[start:end])
        if end < len(header):
            await until(lambda end=end: [len(each.data) for each in waiting.values()] == [end])  # type: ignore[misc]
            assert not stage.sessions
    assert await stage.broker.first_frame() == heartbeat(1)
    (session,) = stage.sessions
    assert (session.origin.ip, session.origin.port) == CLIENT
    assert session.identity.client.peer == "192.0.2.1:51344"


@pytest.mark.parametrize("header", [LOCAL, b"PROXY UNKNOWN\r\n"], ids=["LOCAL", "UNKNOWN"])
async def test_without_a_client_the_address_is_that_of_the_socket(open_stage: OpenStage, header: bytes) -> None:
    stage = open_stage(listening=FROM_HERE)
    client = await stage.client()
    await client.send(header + heartbeat(1))
    assert await stage.broker.first_frame() == heartbeat(1)
    assert stage.session_of(client).origin.ip == LOOPBACK


@pytest.mark.claim("limits", "a network")
async def test_limits_of_a_network_apply_to_clients(open_stage: OpenStage, caplog: pytest.LogCaptureFixture) -> None:
    """IPv4 within IPv6 among them. A limit that is set while connections are open counts these, too."""
    stage = open_stage(listening=FROM_HERE, quotas=[parse_spec("ip=192.0.2.0/24,connections=3")])

    async def connect(address: str) -> Peer:
        client = await stage.client()
        await client.send(f"PROXY TCP{6 if ':' in address else 4} {address} {address} 51344 19092\r\n".encode())
        return client

    for address in ("192.0.2.1", "192.0.2.2", "::ffff:192.0.2.3", "192.0.3.1", "::1"):
        await connect(address)
        await stage.broker.accept()
    await (await connect("192.0.2.4")).closed()
    alter(stage, "ip=192.0.0.0/16,connections=4")
    alter(stage, "ip=192.0.2.0/24,connections=3", away=True)
    await (await connect("192.0.77.1")).closed()
    assert stage.metrics.connections.rejected["connections"] == 2
    rejected = [fields["entity"] for name, fields in lines_of(caplog.records) if name == "connection_rejected"]
    assert rejected == ["ip:192.0.2.0/24", "ip:192.0.0.0/16"]


async def test_from_elsewhere_no_header_is_accepted(open_stage: OpenStage, caplog: pytest.LogCaptureFixture) -> None:
    listening = ListeningOptions(
        address=(LOOPBACK, 0), broker_ports=None, proxy_protocol_from=(ip_network("127.0.0.2/31"), ip_network("::1"))
    )
    stage = open_stage(listening=listening)
    for header in (LINE, BINARY):
        client, _ = await stage.pair()
        await client.send(header + heartbeat(1))
        await client.closed()
    assert stage.metrics.errors.protocol["not_kafka"] == 2
    assert "proxy bytes" in lines_of(caplog.records)[0][1]["detail"]


@pytest.mark.parametrize(
    ("data", "ends"),
    [(heartbeat(1), False), (BINARY[:13] + b"\x99" + BINARY[14:], False), (LINE[:20], True)],
    ids=["no header", "wrong", "cut off"],
)
async def test_without_a_valid_header_the_connection_is_closed(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture, data: bytes, ends: bool
) -> None:
    stage = open_stage(listening=FROM_HERE)
    client = await stage.client()
    await client.send(data)
    if ends:
        client.end()
    await client.closed()
    assert stage.metrics.errors.protocol["proxy_header"] == 1
    [(name, fields)] = lines_of(caplog.records)
    assert (name, fields["reason"]) == ("protocol_error", "proxy_header")
    assert fields["peer"] == f"{LOOPBACK}:{client.sock.getsockname()[1]}"
    assert "--proxy-protocol-from" in fields["hint"]


@pytest.mark.parametrize("resets", [False, True])
async def test_a_health_check_is_silent(open_stage: OpenStage, caplog: pytest.LogCaptureFixture, resets: bool) -> None:
    stage = open_stage(listening=FROM_HERE)
    client = await stage.client()
    waiting = stage.server.ports._headers._waiting
    await until(lambda: waiting)
    client.reset() if resets else client.close()
    await until(lambda: not waiting)
    assert not sum(stage.metrics.errors.protocol.values())
    assert lines_of(caplog.records) == []


@pytest.mark.parametrize("timeout_seconds", [30.0, 0.0])
async def test_no_header_comes(open_stage: OpenStage, caplog: pytest.LogCaptureFixture, timeout_seconds: float) -> None:
    stage = open_stage(listening=FROM_HERE, security=SecurityOptions(handshake_timeout_seconds=timeout_seconds))
    headers = stage.server.ports._headers
    for _ in range(100):
        await (await stage.client()).send(LINE[:10])
    await until(lambda: len(headers._waiting) == 100)
    now_ns = stage.clock()
    headers.expire(now_ns + 29_999_999_999)
    assert len(headers._waiting) == 100
    headers.expire(now_ns + 30_000_000_000)
    assert len(headers._waiting) == (100 - 64 if timeout_seconds else 100), "not all of them in one turn"
    headers.expire(now_ns + 30_000_000_000)
    assert len(headers._waiting) == (0 if timeout_seconds else 100)
    rejected = stage.metrics.connections.rejected["proxy_header_timeout"]
    assert rejected == (100 if timeout_seconds else 0)
    assert [fields["reason"] for _, fields in lines_of(caplog.records)] == ["proxy_header_timeout"] * bool(rejected)


async def test_those_that_wait_for_their_header_are_bounded(open_stage: OpenStage) -> None:
    stage = open_stage(listening=FROM_HERE, security=SecurityOptions(max_connections=2))
    first = [await stage.client() for _ in range(2)]
    await until(lambda: len(stage.server.ports._headers._waiting) == 2)
    await (await stage.client()).closed()
    assert stage.metrics.connections.rejected["max_connections"] == 1
    await first[0].send(LINE)
    await stage.broker.accept()
    stage.server.close()
    await first[1].closed()
