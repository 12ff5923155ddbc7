"""What a peer may do wrong costs its own connection, is counted with its reason and said in one line; nothing else."""

import asyncio
import struct

import pytest

from protocol.apis import SASL_HANDSHAKE
from proxy.config.config import SecurityOptions
from tests.proxy.conversation import OpenStage, lines_of
from tests.proxy.frames import (
    frame,
    heartbeat,
    heartbeat_answer,
    produce,
    produced,
    request,
)

BAD_REQUESTS = {
    "length below zero": (b"\xff\xff\xff\xfe" + bytes(60), "negative_frame_length"),
    "length above the bound": (struct.pack(">i", 104_857_601) + produce(1)[4:], "frame_too_large"),
    "length too small for a header": (struct.pack(">i", 5) + bytes(60), "malformed_frame"),
    "unknown API": (request(4, 0, 1), "unknown_api"),
    "API key below zero": (request(-3, 0, 1), "unknown_api"),
    "version too new": (request(0, 14, 1, bytes(40)), "unsupported_version"),
    "version below zero": (request(1, -1, 1, bytes(40)), "unsupported_version"),
    "login of version 0": (request(SASL_HANDSHAKE, 0, 1, b"\x00\x05PLAIN"), "unsupported_version"),
    "client id beyond the frame": (frame(struct.pack(">hhih", 12, 0, 1, 900)), "malformed_frame"),
    "header tags without end": (request(12, 4, 1)[:-1] + b"\xff\xff\xff\xff\xff\xff", "malformed_frame"),
    "fetch without its budget": (request(1, 12, 1, b"\x00" * 3), "malformed_frame"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), "not_kafka"),
    "HTTP": (b"GET /metrics HTTP/1.1\r\nHost: proxy\r\n\r\n", "not_kafka"),
    "SSH": (b"SSH-2.0-OpenSSH_9.2p1\r\n", "not_kafka"),
}


@pytest.mark.parametrize("cut_up", [False, True])
@pytest.mark.parametrize("what", BAD_REQUESTS)
async def test_a_bad_request_closes_its_own_connection(
    open_stage: OpenStage, what: str, cut_up: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage()
    other, broker_of_other = await stage.pair()
    await other.send(produce(1, 600)[:300])
    client, broker = await stage.pair()
    sent, reason = BAD_REQUESTS[what]
    if cut_up:
        for at in range(len(sent)):
            if client.send_now(sent[at : at + 1]) == 0 or not stage.sessions:
                break
            await asyncio.sleep(0)
            if len(stage.sessions) == 1:
                break
    else:
        await client.send(sent)
    await client.closed()
    await broker.closed()
    assert stage.metrics.errors.protocol[reason] == 1
    assert sum(stage.metrics.errors.protocol.values()) == 1
    [(name, fields)] = lines_of(caplog.records)
    assert (name, fields["reason"]) == ("protocol_error", reason)
    assert fields["peer"].startswith("127.0.0.1:")
    hints = {"TLS": "--ssl-certificate-location", "HTTP": "--metrics-listen", "login of version 0": "librdkafka 1.2.0"}
    assert hints.get(what, "") in (fields["hint"] or "")
    await other.send(produce(1, 600)[300:])
    assert await broker_of_other.frame() == produce(1, 600)
    await broker_of_other.send(produced(1))
    assert await other.frame() == produced(1)


async def test_the_longest_request_is_configurable(open_stage: OpenStage) -> None:
    stage = open_stage(security=SecurityOptions(max_request_bytes=500))
    client, broker = await stage.pair()
    fits = produce(1, 500 - len(produce(1, 0)) + 4)
    assert len(fits) == 504
    await client.send(fits)
    assert await broker.frame() == fits
    # The second of the same kind is compared, not parsed: the bound must hold there as well.
    await client.send(produce(2, 500 - len(produce(1, 0)) + 5))
    await client.closed()
    assert stage.metrics.errors.protocol["frame_too_large"] == 1


@pytest.mark.parametrize("size", [3, 4, 11, 13, 16, 600])
async def test_a_client_that_dies_inside_of_a_frame(
    open_stage: OpenStage, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of a header reaches the broker."""
    stage = open_stage()
    client, broker = await stage.pair()
    await client.send(produce(1, 900)[:size])
    client.close()
    assert await broker.rest() == (produce(1, 900)[:size] if size > 16 else b"")
    broker.close()
    await stage.no_sessions()
    assert stage.metrics.errors.protocol["closed_mid_frame"] == 1
    assert [name for name, _ in lines_of(caplog.records)] == ["protocol_error"]


BAD_RESPONSES = {
    "wrong correlation id": (heartbeat_answer(8), "correlation_mismatch"),
    "response without a request": (heartbeat_answer(7) + heartbeat_answer(8), "unexpected_response"),
    "length below zero": (b"\x80\x00\x00\x00" + heartbeat_answer(7)[4:], "negative_frame_length"),
    "length without room for a correlation id": (b"\x00\x00\x00\x03" + bytes(8), "malformed_frame"),
    "length above the bound": (struct.pack(">i", 1_073_741_825) + heartbeat_answer(7)[4:], "frame_too_large"),
}


@pytest.mark.parametrize("what", BAD_RESPONSES)
async def test_a_bad_response_closes_its_own_connection(
    open_stage: OpenStage, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage()
    other, broker_of_other = await stage.pair()
    client, broker = await stage.pair()
    await client.send(heartbeat(7))
    await broker.frame()
    sent, reason = BAD_RESPONSES[what]
    await broker.send(sent)
    await client.closed()
    await broker.closed()
    assert stage.metrics.errors.protocol[reason] == 1
    assert sum(stage.metrics.errors.protocol.values()) == 1
    assert [(name, fields["reason"]) for name, fields in lines_of(caplog.records)] == [("protocol_error", reason)]
    await other.send(heartbeat(1))
    assert await broker_of_other.frame() == heartbeat(1)
