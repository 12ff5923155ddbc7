"""What is logged of brokers that fail: at the transition, once a minute, and when they work again."""

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.brokers.health import Health
from proxy.config.client_settings import ClientSettings
from proxy.config.config import Config
from proxy.observability.response_times import MAX_BROKERS
from tests.proxy.conversation import LOOPBACK, Clock, OpenStage, Peer, Stage, exchange, lines_of
from tests.proxy.frames import api_versions, fetch, heartbeat, heartbeat_answer, produce, request
from tests.proxy.streams.pair import Pair, World

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


# ---- what a session tells
async def reasons(stage: Stage, caplog: pytest.LogCaptureFixture) -> list[str]:
    await stage.no_sessions()
    address = f"{LOOPBACK}:{stage.broker.address[1]}"
    said = [fields for name, fields in lines_of(caplog.records) if name == "broker_failed"]
    assert all(fields["address"] == address for fields in said)
    assert all("TLS" in fields["hint"] for fields in said if fields["reason"] == "closed_early")
    assert all("Kafka 4" in fields["hint"] for fields in said if fields["reason"] in {"closed_early", "sasl_required"})
    return [fields["reason"] for fields in said]


#: ApiVersions 0: no error, Produce up to version 9.
NEGOTIATED = bytes.fromhex("00000010 00000001 0000 00000001 0000 0000 0009".replace(" ", ""))
ALERT = b"\x15\x03\x03\x00\x02\x02\x50"


@pytest.mark.parametrize("end", [Peer.close, Peer.reset])
@pytest.mark.parametrize(
    ("is_negotiated", "sent", "answer", "reason"),
    [
        (False, api_versions(1, 3), ALERT, "plaintext_to_tls"),
        (False, api_versions(1, 3), b"", "closed_early"),
        (True, heartbeat(2), b"", "sasl_required"),
        (True, heartbeat(2), heartbeat_answer(2), None),
        (True, b"", b"", None),
        (False, b"", b"", None),
    ],
)
async def test_why_a_broker_ends_a_connection(
    open_stage: OpenStage,
    caplog: pytest.LogCaptureFixture,
    is_negotiated: bool,
    sent: bytes,
    answer: bytes,
    reason: str | None,
    end: Callable[[Peer], None],
) -> None:
    """Between requests it is well, unless it breaks the connection."""
    client, broker = await (stage := open_stage()).pair()
    if is_negotiated:
        await exchange(client, broker, api_versions(1, 0), NEGOTIATED)
    await client.send(sent)
    await broker.read(len(sent))
    await broker.send(answer)
    if answer is ALERT:
        await client.closed()
    elif answer:
        await client.frame()
    end(broker)
    await client.closed()
    if reason is None and end is Peer.reset:
        reason = "connection_reset"
    assert await reasons(stage, caplog) == [reason] * (reason is not None)
    assert +stage.metrics.errors.upstream == Counter(await reasons(stage, caplog))


@pytest.mark.claim("security", "a broker is not blamed for what a client sends")
async def test_a_broker_is_not_blamed_for_a_client(open_stage: OpenStage, caplog: pytest.LogCaptureFixture) -> None:
    client, broker = await (stage := open_stage()).pair()
    await client.send(api_versions(1, 3) + b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00")
    await broker.frame()
    await client.closed()
    assert await reasons(stage, caplog) == []
    assert stage.metrics.errors.protocol["not_kafka"] == 1


def silences(pair: Pair, seconds: int) -> int:
    """How often sweeps find the broker silent, with one sweep a second."""
    errors = pair.world.metrics.errors.upstream
    before = errors["silent"]
    for _ in range(seconds):
        pair.world.clock.pass_seconds(1)
        pair.session.sweep(pair.world.clock())
    return errors["silent"] - before


def test_a_broker_that_does_not_respond_is_reported_each_minute_until_it_does(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "proxy.brokers")
    pair = Pair(World())
    pair.client_sends(heartbeat(1))
    # After the first sweep it is the oldest: then 5 s, and a minute.
    assert [silences(pair, seconds) for seconds in (1, 4, 1, 59, 1)] == [0, 0, 1, 0, 1]
    pair.broker_sends(heartbeat_answer(1))
    assert silences(pair, 1) == 0
    assert [(name, fields.get("reason")) for name, fields in lines_of(caplog.records)] == [
        ("broker_failed", "silent"),
        ("broker_failed", "silent"),
        ("broker_recovered", None),
    ]
    assert silences(pair, 100) == 0


@pytest.mark.parametrize(
    "waits", [fetch(1), request(11, 2, 1), request(14, 2, 1)], ids=["Fetch", "JoinGroup", "SyncGroup"]
)
def test_what_may_take_long_is_no_silence(waits: bytes) -> None:
    pair = Pair(World())
    pair.client_sends(waits)
    assert silences(pair, 30) == 0


def test_a_request_that_is_still_being_sent_is_no_silence() -> None:
    pair = Pair(World())
    pair.client_sends(produce(1, 100_000)[:50_000])
    assert silences(pair, 30) == 0
    pair.client_sends(produce(1, 100_000)[50_000:])
    assert silences(pair, 30) == 1, "now it is on its way as a whole"
