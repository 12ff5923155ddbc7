"""The disk guard between brokers and producers: scripted brokers, a proxy without sockets, and a clock of the test."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from fractions import Fraction
from typing import Any, cast

import pytest
from kio.schema.api_versions.v0.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v1.response import MetadataResponse, MetadataResponseBroker
from kio.static.primitive import i16, i32

from protocol.messages import encode
from proxy.adaptive.disk_guard import FACT, DiskGuardTask
from proxy.background.host import Host
from proxy.config.config import EnforcementOptions
from proxy.internal_clients.log_dirs import LogDirs
from quotas.adaptive.disk_guard import STALE_NS, DiskMarks
from quotas.adaptive.producer_guard import ProducerGuard
from quotas.fleet.member import Member
from quotas.fleet.parameters import Parameters
from tests.protocol.test_log_dirs import DESCRIBE_LOG_DIRS, response, result
from tests.proxy.conversation import NS_PER_SECOND, lines_of
from tests.proxy.internal_clients.test_cluster_quotas import HEADER, METADATA, VERSIONS, Broker
from tests.proxy.streams.pair import Pair, World
from tests.proxy.streams.test_disk_guard import batch

MARKS = DiskMarks(Fraction(85, 100), Fraction(95, 100), "85%..95%")
TOTAL = 1_000_000_000
EFFECT = "the disk guard keeps its last state, and counts what passes"

Logged = Callable[[], list[tuple[str, dict[str, object]]]]


def offered(highest: int = 4) -> bytes:
    keys = (ApiVersion(api_key=i16(DESCRIBE_LOG_DIRS), min_version=i16(1), max_version=i16(highest)),)
    return HEADER + encode(ApiVersionsResponse(error_code=ErrorCode.none, api_keys=keys))


def disk(used: float, path: str = "/data") -> bytes:
    return response(result(path, TOTAL, int(TOTAL * (1 - used)), topics=3), result("remote://bucket", -1, -1))


class Stage:
    """Three brokers and one proxy with the guard."""

    def __init__(self, ports: list[int], brokers: list[Broker]) -> None:
        self.brokers = dict(enumerate(brokers, 1))
        self._ports = dict(enumerate(ports, 1))
        self.alive({1, 2, 3})
        for broker in brokers:
            broker.answers |= {VERSIONS: offered(), DESCRIBE_LOG_DIRS: disk(0.5)}
        self.world = World(enforcement=EnforcementOptions(disk_guard=MARKS))
        self.config = self.world.config.__class__(
            bootstrap_servers=(("127.0.0.1", ports[0]),), enforcement=self.world.config.enforcement
        )
        self.member = Member("etl", Parameters(), lambda: 7, "here")
        self.guard = self.task()
        self.guard.waits = False

    def task(self) -> DiskGuardTask:
        context = self.world.context
        host = Host(clock=self.world.clock)
        parts = (
            LogDirs(self.config, host),
            MARKS,
            ProducerGuard(),
            host,
            context.registry,
            context.metrics.entities,
            lambda: context.actions.enforces,
        )
        return DiskGuardTask(*parts, self.member)

    def alive(self, nodes: set[int]) -> None:
        found = tuple(
            MetadataResponseBroker(node_id=i32(node), host="127.0.0.1", port=i32(self._ports[node]), rack=None)  # type: ignore[arg-type]
            for node in sorted(nodes)
        )
        body = encode(MetadataResponse(brokers=found, controller_id=i32(1), topics=()))  # type: ignore[arg-type]
        self.brokers[1].answers[METADATA] = HEADER + body

    async def reads(self, *used: float, seconds: float = 10) -> None:
        """Time passes, and then the disks of brokers 1, 2, 3 are so full."""
        self.world.clock.now_ns += int(seconds * NS_PER_SECOND)
        for node, each in enumerate(used, 1):
            self.brokers[node].answers[DESCRIBE_LOG_DIRS] = disk(each)
        await self.guard.poll()


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    brokers = [Broker(), Broker(), Broker()]
    async with AsyncExitStack() as ending:
        servers = [
            await ending.enter_async_context(await asyncio.start_server(broker.serve, "127.0.0.1", 0))
            for broker in brokers
        ]
        yield Stage([server.sockets[0].getsockname()[1] for server in servers], brokers)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    caplog.set_level("INFO", "proxy.adaptive")

    def lines() -> list[tuple[str, dict[str, object]]]:
        found = [(name, dict(fields)) for name, fields in lines_of(caplog.records) if "disk_guard" in name]
        caplog.clear()
        return found

    return lines


async def test_any_disk_slows_producers_who_are_released_lower(stage: Stage, logged: Logged) -> None:
    pair = Pair(stage.world)
    await stage.reads(0.5, 0.5, 0.5)
    assert (stage.world.registry.guard, logged()) == (None, []), "nothing is to be looked at"
    await stage.reads(0.5, 0.5, 0.9)
    guard = stage.world.registry.guard
    assert guard is not None
    assert 0 < guard.limit.rate <= 100_000_000 / 2 / 30
    assert guard.message == "disk guard 85%..95%: broker 3 at 90.0 %, in /data"
    await stage.reads(0.5, 0.96, 0.9)
    pair.client_sends(batch(1))
    assert pair.is_held
    await stage.reads(0.5, 0.79, 0.79)
    assert pair.is_held, "one reading"
    await stage.reads(0.5, 0.79, 0.79)
    assert pair.sent() == [batch(1)]
    assert stage.world.registry.guard is None
    assert [name for name, _ in logged()] == ["disk_guard_slowing", "disk_guard_full", "disk_guard_open"]


async def test_the_content_of_requests_is_read_until_refused_batches_have_come_back(stage: Stage) -> None:
    pair = Pair(stage.world)
    pair.client_sends(batch(1))
    assert not stage.world.registry.resolve("ANONYMOUS", "etl").walks
    for used in (0.9, 0.7, 0.7):
        await stage.reads(used)
    assert stage.world.registry.resolve("ANONYMOUS", "etl").walks
    stage.world.clock.now_ns += 31 * NS_PER_SECOND
    stage.guard.tick(stage.world.clock())
    assert not stage.world.registry.resolve("ANONYMOUS", "etl").walks


async def test_a_broker_that_has_gone_keeps_its_reading_and_is_reported(stage: Stage, logged: Logged) -> None:
    await stage.reads(0.5, 0.5, 0.94)
    before = stage.guard.decision
    logged()
    stage.alive({1, 2})
    for _ in range(29):
        await stage.reads(0.5, 0.5)
        assert stage.guard.decision.factor <= before.factor
    assert stage.guard.decision.stale == ()
    await stage.reads(0.5, 0.5, seconds=STALE_NS / NS_PER_SECOND - 290)
    assert logged() == [("disk_guard_stale", {"brokers": "3", "effect": EFFECT})]
    assert stage.guard.figures(2).is_stale
    assert stage.guard.page()["stale_brokers"] == [3]


@pytest.mark.parametrize(
    ("answers", "reason", "hint"),
    [
        (
            {DESCRIBE_LOG_DIRS: response(error=ErrorCode.cluster_authorization_failed)},
            "cluster_authorization_failed",
            "the right Describe on the cluster is missing: kafka-acls --add --allow-principal User:NAME --operation "
            "Describe --cluster",
        ),
        ({VERSIONS: offered(3)}, "not_offered", "brokers report the size of their disks since Kafka 3.3"),
        ({DESCRIBE_LOG_DIRS: None}, "closed_early", None),
        ({DESCRIBE_LOG_DIRS: HEADER + b"\x00\x01"}, "malformed_frame", None),
    ],
)
async def test_why_a_broker_cannot_be_read_is_said_once(
    stage: Stage, logged: Logged, answers: dict[int, bytes | None], reason: str, hint: str | None
) -> None:
    stage.brokers[2].answers |= answers
    for _ in range(3):
        await stage.guard.poll()
    [(name, fields)] = logged()
    assert (name, fields["reason"]) == ("disk_guard_failed", reason)
    assert str(fields["message"]).startswith("broker 2 at 127.0.0.1:")
    assert hint is None or fields["hint"] == hint
    assert {key[0] for key in stage.guard.rules.disks} == {1, 3}
    stage.brokers[2].answers |= {VERSIONS: offered(), DESCRIBE_LOG_DIRS: disk(0.5)}
    await stage.guard.poll()
    assert logged() == [("disk_guard_recovered", {})]


async def test_no_data_request_passes_before_the_first_readings(stage: Stage, logged: Logged) -> None:
    guard = stage.guard = stage.task()
    pair = Pair(stage.world)
    guard.start(cast("Any", stage.world.loop))
    pair.client_sends(batch(1))
    stage.world.loop.pass_seconds(1)
    assert (pair.is_held, guard.state) == (True, "starting")
    await guard._first()
    assert (pair.sent(), guard.state) == ([batch(1)], "open")
    assert logged() == []
    guard.close()


async def test_without_a_reading_it_starts_blind_and_says_so(stage: Stage, logged: Logged) -> None:
    guard = stage.guard = stage.task()
    for broker in stage.brokers.values():
        broker.answers[DESCRIBE_LOG_DIRS] = response(error=ErrorCode.cluster_authorization_failed)
    pair = Pair(stage.world)
    guard.start(cast("Any", stage.world.loop))
    pair.client_sends(batch(1))
    await guard._first()
    assert pair.sent() == [batch(1)]
    assert [name for name, _ in logged()] == ["disk_guard_failed", "disk_guard_blind"]
    assert guard.figures(1).is_stale
    guard.close()


async def test_started_at_97_percent_nothing_passes_and_no_transaction_counts_as_open(stage: Stage) -> None:
    guard = stage.guard = stage.task()
    stage.brokers[1].answers[DESCRIBE_LOG_DIRS] = disk(0.97)
    pair = Pair(stage.world)
    guard.start(cast("Any", stage.world.loop))
    await guard._first()
    pair.client_sends(batch(1, name="tx"))
    stage.world.loop.pass_seconds(1)
    assert (pair.is_held, guard.state) == (True, "full")
    guard.close()


async def test_what_metrics_show_is_bounded(stage: Stage) -> None:
    await stage.reads(0.5, 0.94, 0.7)
    figures = stage.guard.figures(2)
    assert (figures.state, round(figures.factor, 2), figures.is_stale) == ("slowing", 0.1, False)
    assert [(each[0], each[1], round(each[2], 2)) for each in figures.disks] == [(2, "/data", 0.94), (3, "/data", 0.7)]


async def test_enforcement_that_begins_forgets_the_debt_of_a_dry_run(stage: Stage) -> None:
    actions = stage.world.context.actions
    await stage.reads(0.9)
    actions.change("auto", enforces=False)
    stage.guard.tick(stage.world.clock())
    limit = stage.guard.producers.limit
    limit.charge(10**9, stage.world.clock())
    actions.change("auto", enforces=True)
    stage.guard.tick(stage.world.clock())
    assert stage.world.registry.guard is not None
    assert stage.world.registry.guard.limit.debt_ns(stage.world.clock()) == 0
    assert not stage.world.registry.is_in_use(limit)


# ---- fleets
async def test_the_lowest_factor_of_the_fleet_applies_while_its_member_lives(stage: Stage) -> None:
    member, clock = stage.member, stage.world.clock
    await stage.reads(0.5, 0.5, 0.5)
    clock.now_ns += 2 * NS_PER_SECOND
    member.seen.update(other=clock(), odd=clock())
    member.roster.facts.update(other={FACT: 250}, odd={FACT: "0"})
    stage.guard.tick(clock())
    guard = stage.world.registry.guard
    assert guard is not None
    assert guard.message == "disk guard 85%..95%: a disk is nearly full, by another member of the fleet"
    assert stage.guard.decision.factor == 0.25
    assert member.facts.all == {FACT: 1000}
    member.seen.clear()
    await stage.reads(0.5, 0.5, 0.92)
    assert stage.guard.decision.factor == pytest.approx(0.3, abs=0.01)
    assert member.facts.all == {FACT: pytest.approx(300, abs=10)}
