"""Whether the brokers can be reached, asked of servers that a test plays."""

import asyncio
import struct
from collections.abc import Callable

import pytest

from proxy.brokers import readiness
from proxy.brokers.readiness import FRESH_FOR_NS, Readiness, Status
from tests.proxy.conversation import (
    LOOPBACK,
    NS_PER_SECOND,
    OpenBroker,
    OpenStage,
    ScriptedBroker,
    Stage,
    lines_of,
    nobody_accepts,
    nobody_listens,
    until,
)
from tests.proxy.frames import frame

#: ApiVersions v0, correlation id 1, no client id.
ASKED = frame(struct.pack(">hhih", 18, 0, 1, -1))
#: No error, one API.
GOOD = frame(struct.pack(">ihihhh", 1, 0, 1, 0, 0, 13))
BAD = frame(struct.pack(">ihi", 1, 35, 0))


def ready_of(
    stage: Stage, servers: list[tuple[str, int]], not_ready: Callable[[], str | None] = lambda: None
) -> Readiness:
    return Readiness(servers, stage.server.tls, stage.shared.health, stage.clock, not_ready)


async def asked(broker: ScriptedBroker, *pieces: bytes) -> None:
    """One connection to the server: it is asked, answers in these pieces, and sees the asker hang up."""
    peer = await broker.accept()
    assert await peer.frame() == ASKED
    for piece in pieces:
        await peer.send(piece)
    await peer.closed()


async def checked(ready: Readiness, broker: ScriptedBroker, *pieces: bytes) -> Status:
    """What a check finds while this server answers in these pieces."""
    checking = asyncio.ensure_future(ready.check())
    await asked(broker, *pieces)
    return await checking


@pytest.mark.parametrize("pieces", [[GOOD], [GOOD[at : at + 1] for at in range(len(GOOD))]], ids=["whole", "cut"])
async def test_a_server_that_answers_is_enough(open_stage: OpenStage, pieces: list[bytes]) -> None:
    stage = open_stage()
    status = await checked(ready_of(stage, [stage.broker.address]), stage.broker, *pieces)
    assert status == Status(True, f"127.0.0.1:{stage.broker.address[1]} answers")


NOT_KAFKA = "its response is not Kafka's"
BAD_ANSWERS = {
    "hangs up": (b"", "closed the connection before its first response (TLS listeners"),
    "hangs up in its answer": (GOOD[:9], "closed the connection before its first response"),
    "error": (BAD, "its response to ApiVersions is an error"),
    "another's answer": (frame(struct.pack(">ihi", 2, 0, 0)), "its response has the correlation id 2, not 1"),
    "no API keys": (frame(struct.pack(">ih", 1, 0)), "its response to ApiVersions is not Kafka's"),
    "bytes after its end": (frame(GOOD[4:] + b"\0"), "its response to ApiVersions is not Kafka's"),
    "too long": (struct.pack(">i", 1_000_000), "its response has 1000000 bytes, more than"),
    "too short": (frame(struct.pack(">h", 1)), NOT_KAFKA),
    "length below zero": (b"\xff\xff\xff\xff", NOT_KAFKA),
    "length above the bound": (struct.pack(">i", 64 * 1024 * 1024 + 1), NOT_KAFKA),
    "TLS": (b"\x15\x03\x03\x00\x02\x02\x46", "it answers with a TLS alert (the listener uses TLS: set"),
    "HTTP": (b"HTTP/1.1 400 Bad Request\r\n\r\n", NOT_KAFKA),
}


@pytest.mark.parametrize("what", BAD_ANSWERS)
async def test_a_server_with_any_other_response_is_not_ready(open_stage: OpenStage, what: str) -> None:
    stage = open_stage()
    answer, reason = BAD_ANSWERS[what]
    checking = asyncio.ensure_future(ready_of(stage, [stage.broker.address]).check())
    peer = await stage.broker.accept()
    assert await peer.frame() == ASKED
    await peer.send(answer)
    peer.end()
    status = await checking
    assert not status.ok
    assert status.reason.startswith(f"no bootstrap server answers ApiVersions: 127.0.0.1:{stage.broker.address[1]}: ")
    assert reason in status.reason


async def test_the_first_good_answer_decides(open_stage: OpenStage, open_broker: OpenBroker) -> None:
    """One refuses, one accepts nobody, one is silent: none of them is waited for."""
    stage, silent = open_stage(), open_broker()
    with nobody_accepts() as unreachable:
        servers = [nobody_listens(), unreachable, silent.address, stage.broker.address]
        checking = asyncio.ensure_future(ready_of(stage, servers).check())
        peer = await silent.accept()
        assert await peer.frame() == ASKED
        await asked(stage.broker, GOOD)
        assert (await checking).ok
        await peer.closed()


async def test_all_that_is_wrong_is_said(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert readiness.PROBE_TIMEOUT_SECONDS == 3
    monkeypatch.setattr(readiness, "PROBE_TIMEOUT_SECONDS", 0.05)
    stage, closed = open_stage(), nobody_listens()
    with nobody_accepts() as unreachable:
        status = await checked(ready_of(stage, [closed, unreachable, stage.broker.address]), stage.broker)
    assert not status.ok
    assert f"127.0.0.1:{unreachable[1]}: no answer within 0.05 s" in status.reason
    assert f"127.0.0.1:{stage.broker.address[1]}: no answer within 0.05 s" in status.reason
    assert f"127.0.0.1:{closed[1]}: " in status.reason


async def test_an_answer_is_believed_for_a_while(open_stage: OpenStage) -> None:
    stage = open_stage()
    ready = ready_of(stage, [stage.broker.address])
    first = [asyncio.ensure_future(ready.check()) for _ in range(4)]
    assert (await checked(ready, stage.broker, GOOD)).ok
    assert all(status.ok for status in await asyncio.gather(*first)), "all who ask at once are told the same"
    stage.clock.pass_seconds(FRESH_FOR_NS / NS_PER_SECOND - 0.001)
    assert (await ready.check()).ok
    stage.clock.pass_seconds(0.001)
    assert not (await checked(ready, stage.broker, BAD)).ok
    assert not (await ready.check()).ok, "a bad answer is believed as long"


@pytest.mark.claim("limits", "a proxy that has started stays so while brokers are away")
async def test_a_proxy_that_has_started_stays_so_while_brokers_are_away(open_stage: OpenStage) -> None:
    """Otherwise all replicas would lose their clients at once, which keeps no broker from failing."""
    stage = open_stage()
    ready = ready_of(stage, [stage.broker.address])
    for answer, is_ready, has_started in ((BAD, False, False), (GOOD, True, True), (BAD, False, True)):
        stage.clock.pass_seconds(FRESH_FOR_NS / NS_PER_SECOND)
        assert (await checked(ready, stage.broker, answer)).ok is is_ready
        assert (await ready.check_started()).ok is has_started


async def test_a_check_returns_soon_whatever_brokers_do(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a probe hangs: no answer yet, later the last answer; one probe at a time."""
    assert readiness.ANSWER_WITHIN_SECONDS < 1
    monkeypatch.setattr(readiness, "ANSWER_WITHIN_SECONDS", 0.01)
    monkeypatch.setattr(readiness, "PROBE_TIMEOUT_SECONDS", 60)
    stage = open_stage()
    ready = ready_of(stage, [stage.broker.address])
    for _ in range(3):
        status = await ready.check()
        assert not status.ok
        assert status.reason == (
            f"no bootstrap server has answered ApiVersions yet; probed: 127.0.0.1:{stage.broker.address[1]}"
        )
    await asked(stage.broker, GOOD)
    while not (await ready.check()).ok:
        pass
    stage.clock.pass_seconds(3600)
    assert (await ready.check()).ok, "the last answer, while the next probe hangs"
    peer = await stage.broker.accept()
    ready.close()
    await peer.closed()


async def test_a_probe_that_a_defect_ends_is_no_answer(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even after the check that began it has returned: else the last good answer would remain."""
    monkeypatch.setattr(readiness, "ANSWER_WITHIN_SECONDS", 0.01)
    stage, may_end = open_stage(), asyncio.Event()
    ready = ready_of(stage, [stage.broker.address])

    async def ask(*_: object) -> bytes:
        if stage.clock() < later_ns:
            return GOOD[4:]
        await may_end.wait()
        raise ValueError("a token that is no UTF-8")

    monkeypatch.setattr(readiness, "ask_broker", ask)
    later_ns = stage.clock() + FRESH_FOR_NS
    assert (await ready.check()).ok
    stage.clock.pass_seconds(FRESH_FOR_NS / NS_PER_SECOND)
    assert (await ready.check()).ok, "while the probe is under way"
    may_end.set()
    await until(lambda: ready._probe is not None and ready._probe.done())
    assert isinstance(ready._probe and ready._probe.exception(), ValueError)
    assert not (await ready.check()).ok


async def test_a_proxy_that_serves_no_new_connection_is_not_ready_and_probes_no_broker(open_stage: OpenStage) -> None:
    stage = open_stage()
    reason: str | None = "draining"
    ready = ready_of(stage, [stage.broker.address], lambda: reason)
    assert await ready.check() == Status(False, "draining")
    reason = None
    assert (await checked(ready, stage.broker, GOOD)).ok
    reason = "reading is paused"
    assert await ready.check() == Status(False, "reading is paused"), "whatever the last answer"


async def test_the_proxy_asks_by_itself_until_a_server_answers(
    open_stage: OpenStage, open_broker: OpenBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "PROBE_EVERY_SECONDS", 0.001)
    address = nobody_listens()
    stage = open_stage(bootstrap_servers=(address,))
    running = asyncio.ensure_future(ready_of(stage, [address]).run())
    await until(lambda: stage.metrics.errors.upstream["connect_refused"] > 2)
    [(name, fields)] = lines_of(caplog.records)
    at = f"{LOOPBACK}:{address[1]}"
    assert (name, fields["address"], fields["reason"]) == ("broker_failed", at, "connect_refused")
    assert fields["effect"] == "no bootstrap server can be used"
    with caplog.at_level("INFO"):
        await (await open_broker(*address).accept()).send(GOOD)
        await running
    assert lines_of(caplog.records)[-1][0] == "broker_recovered"
