"""Each client is warned of once, when the producers that share its limit leave each too little."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from proxy.config.floor import JAVA, LIBRDKAFKA
from proxy.enforcement.holds import Delay
from proxy.enforcement.identity import Identity
from proxy.enforcement.shares import CHECKED_AT_ONCE, HOUR_NS, MAX_CLIENTS, Shares
from tests.proxy.conversation import lines_of, without_burst
from tests.proxy.enforcement.test_measures import held_by
from tests.proxy.frames import api_versions
from tests.proxy.streams.pair import Pair, World

RATE = 1_000_000
PORTS = [(f"port-{number}",) for number in range(3)]


class Scene:
    """Producers of one limit, each with a connection to the same ports."""

    def __init__(self, caplog: pytest.LogCaptureFixture, spec: str = f"total,producer_byte_rate={RATE}") -> None:
        self.world = World([without_burst(spec)])
        self.shares = Shares()
        self.caplog = caplog

    def identity(self, client_id: str) -> Identity:
        who = Identity(self.world.config, self.world.registry, self.world.metrics.entities, "peer:1")
        who.identify(client_id, 0)
        return who

    def observe(
        self,
        producers: int,
        ports: int = 1,
        *,
        name: str = "etl",
        how: str = "notice",
        software: str = "",
        rounds: int | None = None,
    ) -> list[dict[str, Any]]:
        """One pass over all connections. Returns the warnings; of so many `rounds` of the event loop, or all."""
        now_ns = self.world.clock()
        self.caplog.clear()
        for number in range(producers):
            for port in PORTS[:ports]:
                who = self.identity(name.format(number))
                who.software = software
                (limit,) = self.world.registry.limits_in_use()
                frame = held_by(limit, 1, now_ns) if how == "hold" else None
                if how == "notice":
                    who.notice.extend(limit, now_ns + 1, "debt")
                delay = Delay(limit, now_ns, 1_000, is_shown=False) if how == "delay" else None
                self.shares.add(who, frame or delay, port, now_ns)
        self.shares.check()
        for _ in range(-(-producers // CHECKED_AT_ONCE) if rounds is None else rounds):
            self.shares.warn()
        return [fields for event, fields in lines_of(self.caplog.records) if event == "share_below_floor"]


@pytest.fixture
def scene(caplog: pytest.LogCaptureFixture) -> Scene:
    caplog.set_level(logging.WARNING)
    return Scene(caplog)


@pytest.mark.parametrize("how", ["notice", "hold", "delay"])
@pytest.mark.parametrize("ports", [1, 3])
def test_a_warning_has_the_numbers_and_comes_once(scene: Scene, how: str, ports: int) -> None:
    """Connections to several brokers are those of one producer."""
    enough = RATE // JAVA.smallest_share
    assert scene.observe(enough, ports, how=how) == []
    (warned,) = scene.observe(enough + 2, ports, how=how)
    assert (warned["client_id"], warned["limit"], warned["entity"]) == ("etl", "producer_byte_rate", "total")
    assert (warned["producers"], warned["share"], warned["limit_value"]) == (4, 250_000, RATE)
    assert str(JAVA.smallest_share) in warned["smallest_share"]
    assert scene.observe(enough + 2, ports, how=how) == []


@pytest.mark.parametrize(
    ("software", "floor"),
    [
        ("apache-kafka-java", JAVA.smallest_share),
        ("librdkafka", LIBRDKAFKA.smallest_share),
        ("confluent-kafka-python", LIBRDKAFKA.smallest_share),
        ("sarama", min(JAVA.smallest_share, LIBRDKAFKA.smallest_share)),
    ],
)
def test_the_floor_is_that_of_the_software(caplog: pytest.LogCaptureFixture, software: str, floor: int) -> None:
    caplog.set_level(logging.WARNING)
    assert Scene(caplog, f"total,producer_byte_rate={floor}").observe(1, software=software) == []
    (warned,) = Scene(caplog, f"total,producer_byte_rate={floor - 1}").observe(1, software=software)
    assert str(floor) in warned["smallest_share"]


def test_the_software_is_the_one_in_api_versions() -> None:
    pair = Pair(World())
    pair.client_sends(api_versions(1, 3))
    assert pair.connection.identity.software == "x"


def test_connections_that_are_not_throttled_take_no_share(scene: Scene) -> None:
    assert scene.observe(50, how="free") == []


def test_limits_of_other_kinds_have_no_floor(caplog: pytest.LogCaptureFixture) -> None:
    assert Scene(caplog, "total,consumer_byte_rate=10").observe(5) == []


def test_the_number_of_warnings_is_bounded(scene: Scene) -> None:
    assert len(scene.observe(MAX_CLIENTS + 50, name="client-{}")) == MAX_CLIENTS
    assert scene.observe(50, name="later-{}") == []
    assert len(scene.shares._clients) == 0
    scene.world.clock.pass_seconds(HOUR_NS / 1e9)
    assert len(scene.observe(50, name="later-{}")) == 50


def test_a_round_of_the_loop_warns_of_a_few_clients(scene: Scene) -> None:
    """What is left is checked before the next pass: no client waits without end behind others."""
    warned = [scene.observe(100, name="client-{}", rounds=1) for _ in range(6)]
    assert [len(each) for each in warned] == [CHECKED_AT_ONCE] * 5 + [0]
    assert len({fields["client_id"] for each in warned for fields in each}) == 100
