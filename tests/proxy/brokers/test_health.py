"""What is logged of brokers that fail: at the transition, once a minute, and when they work again."""

import logging
from collections import Counter
from pathlib import Path

import pytest

from proxy.brokers.health import MAX_BROKERS, Health
from proxy.config.client_settings import ClientSettings
from proxy.config.config import Config
from tests.proxy.conversation import Clock, OpenStage, Peer, Stage, lines_of
from tests.proxy.frames import api_versions, fetch, heartbeat, heartbeat_answer, produce, produced, request

A = "broker-a:9092"


class Scene:
    """Two bootstrap servers, and what was logged of them since the last look."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.clock = Clock()
        self.errors: Counter[str] = Counter()
        upstream = ClientSettings(file=Path("client.properties"))
        config = Config(bootstrap_servers=(("broker-a", 9092), ("broker-b", 9092)), upstream=upstream)
        self.health = Health(config, self.errors, self.clock)
        self._caplog = caplog
        caplog.set_level(logging.INFO)

    def lines(self) -> list[tuple[str, dict[str, object]]]:
        found = [(name, {k: v for k, v in fields.items() if v is not None}) for name, fields in self.all_lines()]
        self._caplog.clear()
        return found

    def all_lines(self) -> list[tuple[str, dict[str, object]]]:
        return lines_of(self._caplog.records)


@pytest.fixture
def scene(caplog: pytest.LogCaptureFixture) -> Scene:
    return Scene(caplog)


def test_an_outage_is_told_at_once_each_minute_and_at_its_end(scene: Scene) -> None:
    health, clock = scene.health, scene.clock
    for seconds in (0, 1, 58.9):
        clock.pass_seconds(seconds)
        health.failed(A, "tls_certificate", "unknown CA")
    first = {"address": A, "reason": "tls_certificate", "detail": "unknown CA"}
    [(name, fields)] = scene.lines()
    assert (name, first.items() <= fields.items()) == ("broker_failed", True)
    assert fields["hint"] == "set ssl.truststore.location in --command-config client.properties to the CA of the " + (
        "broker's certificate"
    )
    assert fields.keys() == {*first, "hint"}
    clock.pass_seconds(0.1)
    health.failed(A, "tls_certificate", "unknown CA")
    [(_, fields)] = scene.lines()
    assert (fields["failures"], fields["for_seconds"]) == (4, 60)
    health.failed(A, "connect_refused", "refused")
    [(_, fields)] = scene.lines()
    assert fields["reason"] == "connect_refused", "another reason is told at once"
    health.worked(A, clock() - 1)
    assert scene.lines() == [], "that connection began before the failure"
    clock.pass_seconds(5)
    health.worked(A, clock())
    assert scene.lines() == [("broker_recovered", {"address": A, "after_seconds": 65, "failures": 5})]
    health.worked(A, clock())
    assert scene.lines() == []
    assert +scene.errors == {"tls_certificate": 4, "connect_refused": 1}
    assert scene.errors.keys() > {"closed_early", "closed_mid_frame"}, "each reason has a series from the start"


def test_a_broker_that_fails_now_and_then_does_not_flood_the_log(scene: Scene) -> None:
    health, clock = scene.health, scene.clock
    for _ in range(600):
        health.failed(A, "connect_refused", "refused")
        health.worked(A, clock())
        clock.pass_seconds(0.1)
    lines = [name for name, _ in scene.lines()]
    assert lines == ["broker_failed", "broker_recovered"] * 6, "a pair every ten seconds"


def test_an_answer_to_api_versions_does_not_end_what_it_cannot_show(scene: Scene) -> None:
    health, clock = scene.health, scene.clock
    for reason, ends in (("sasl_required", False), ("silent", False), ("connect_refused", True)):
        health.failed(A, reason, "")
        scene.lines()
        health.worked(A, clock(), is_probe=True)
        assert [name for name, _ in scene.lines()] == ["broker_recovered"] * ends
        clock.pass_seconds(60)


def test_the_number_of_addresses_is_bounded(scene: Scene) -> None:
    for number in range(MAX_BROKERS + 5):
        scene.health.failed(f"broker:{number}", "connect_refused", "refused")
    assert len(scene.health._outages) == MAX_BROKERS
    scene.lines()
    scene.health.failed(f"broker:{MAX_BROKERS}", "connect_refused", "refused")
    assert scene.lines() == []


# What a session tells


async def reasons(stage: Stage, caplog: pytest.LogCaptureFixture) -> list[str]:
    await stage.no_sessions()
    return [fields["reason"] for name, fields in lines_of(caplog.records) if name == "broker_failed"]


#: ApiVersions 0: no error, Produce up to version 9.
NEGOTIATED = bytes.fromhex("00000010 00000001 0000 00000001 0000 0000 0009".replace(" ", ""))


async def negotiated(stage: Stage) -> tuple[Peer, Peer]:
    client, broker = await stage.pair()
    await client.send(api_versions(1, 0))
    await broker.frame()
    await broker.send(NEGOTIATED)
    await client.frame()
    return client, broker


async def test_a_tls_listener_that_answers_with_an_alert(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    await client.send(api_versions(1, 3))
    await broker.frame()
    await broker.send(b"\x15\x03\x03\x00\x02\x02\x50")
    broker.close()
    await client.closed()
    assert await reasons(stage, caplog) == ["plaintext_to_tls"]


async def test_no_broker_is_blamed_for_what_a_client_sends(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    await client.send(api_versions(1, 3) + b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00")
    await broker.frame()
    await client.closed()
    assert await reasons(stage, caplog) == []
    assert stage.metrics.errors.protocol["not_kafka"] == 1


@pytest.mark.parametrize("resets", [False, True])
async def test_a_broker_that_closes_at_the_request_after_api_versions(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture, resets: bool
) -> None:
    stage = open_stage()
    client, broker = await negotiated(stage)
    await client.send(heartbeat(2))
    await broker.frame()
    (broker.reset if resets else broker.close)()
    await client.closed()
    assert await reasons(stage, caplog) == ["sasl_required"]


async def test_a_broker_that_closes_between_requests_is_well(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage()
    client, broker = await negotiated(stage)
    broker.close()
    await client.closed()
    client, broker = await negotiated(stage)
    await client.send(heartbeat(2))
    await broker.frame()
    await broker.send(heartbeat_answer(2))
    await client.frame()
    broker.close()
    await client.closed()
    assert await reasons(stage, caplog) == []


def sweep(stage: Stage, seconds: int) -> int:
    """How often sweeps find the broker silent, with one sweep a second."""
    before = stage.metrics.errors.upstream["silent"]
    for _ in range(seconds):
        stage.clock.pass_seconds(1)
        for session in list(stage.sessions):
            session.sweep(stage.clock())
    return stage.metrics.errors.upstream["silent"] - before


async def test_a_broker_that_does_not_respond_is_reported_each_minute_until_it_does(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "proxy.brokers")
    stage = open_stage()
    client, broker = await stage.pair()
    await client.send(heartbeat(1))
    await broker.frame()
    sweep(stage, 1)  # it is the oldest from now on
    assert sweep(stage, 4) == 0
    assert sweep(stage, 1) == 1
    assert sweep(stage, 59) == 0
    assert sweep(stage, 1) == 1
    await broker.send(heartbeat_answer(1))
    await client.frame()
    sweep(stage, 1)
    assert [(name, fields.get("reason")) for name, fields in lines_of(caplog.records)] == [
        ("broker_failed", "silent"),
        ("broker_failed", "silent"),
        ("broker_recovered", None),
    ]
    assert sweep(stage, 100) == 0


@pytest.mark.parametrize(
    "waits",
    [
        pytest.param(fetch(1), id="Fetch"),
        pytest.param(request(11, 2, 1), id="JoinGroup"),
        pytest.param(request(14, 2, 1), id="SyncGroup"),
        pytest.param(produce(1, 100_000)[:50_000], id="still being sent"),
    ],
)
async def test_what_may_take_long_is_no_silence(open_stage: OpenStage, waits: bytes) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    await client.send(waits)
    await broker.read(len(waits) if waits[4:6] != b"\x00\x01" else 4)
    assert sweep(stage, 30) == 0
    if waits[4:6] == b"\x00\x00":
        await client.send(produce(1, 100_000)[50_000:])
        await broker.read(50_000)
        assert sweep(stage, 30) == 1, "now it is on its way as a whole"
        await broker.send(produced(1))
