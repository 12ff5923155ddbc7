"""Clients of Kafka 4.4: they log each throttle time, and name the node that they mean to reach."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.static.primitive import i32

from protocol.api_versions import ClientSoftware
from protocol.apis import API_VERSIONS
from protocol.messages import encode
from proxy.config.config import EnforcementOptions
from proxy.enforcement.habits import habits_of
from proxy.enforcement.identity import LEAST_LOGGED_NS
from proxy.enforcement.report import MEMORY
from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec
from quotas.time_units import NS_PER_MS
from tests.protocol.kafka_messages import ApiVersionsRequest5
from tests.proxy.conversation import without_burst
from tests.proxy.frames import heartbeat, heartbeat_answer, produce, produce_throttle_ms, produced, request
from tests.proxy.streams.pair import Pair, World, named, pass_holds, pass_one_hold

pytestmark = pytest.mark.claim(
    "limits",
    "what applications do with clients of 4.3 and 4.4 at a broker of 4.4; lines, rate and "
    "evenness of throttled clients of 4.4",
)

#: Each byte of a Produce request is a millisecond of debt, as the first, or a tenth of one.
SLOW = without_burst("client-id=etl,producer_byte_rate=1000")
FAST = without_burst("client-id=etl,producer_byte_rate=10000")
BROKER = ("broker", 9092)


def cluster_of(node: int) -> str | None:
    """A client names both or neither."""
    return None if node < 0 else "c" * 22


def negotiate(version: str = "4.4.0", name: str = "apache-kafka-java", node: int = -1) -> bytes:
    body = ApiVersionsRequest5(
        client_software_name=name, client_software_version=version, cluster_id=cluster_of(node), node_id=i32(node)
    )
    return request(API_VERSIONS, 5, 99, encode(body))


def pair_of(world: World, version: str = "4.4.0") -> Pair:
    return named(world, "apache-kafka-java", version)


def told(pair: Pair) -> list[int]:
    """The throttle times of all Produce responses."""
    return [produce_throttle_ms(each, 9) for each in pair.received()]


@pytest.mark.parametrize(
    ("name", "version", "logs"),
    [
        ("apache-kafka-java", "4.4.0", True),
        ("apache-kafka-java", "4.4.0-SNAPSHOT", True),
        ("apache-kafka-java", "4.10.1", True),
        ("apache-kafka-java", "10.0", True),
        ("apache-kafka-java", "4.3.1", False),
        ("apache-kafka-java", "3.9.0", False),
        ("apache-kafka-java", "unknown", False),
        ("librdkafka", "4.4.0", False),
        ("", "", False),
    ],
)
def test_who_logs(name: str, version: str, logs: bool) -> None:
    assert habits_of(ClientSoftware(name, version)).least_notice_ns == (LEAST_LOGGED_NS if logs else 0)
    pair = Pair(World([SLOW]))
    pair.client_sends(negotiate(version or "-", name or "-"))
    assert pair.connection.identity.least_notice_ns == (LEAST_LOGGED_NS if logs else 0)
    pair.client_sends(negotiate("2.12.1", "librdkafka"))
    assert pair.connection.identity.least_notice_ns == 0, "the latest counts"


AUTO, NOTIFY = EnforcementOptions(), EnforcementOptions(throttle_mode="notify")
NOTIFYING = "client-id=etl,producer_byte_rate=10000,burst_seconds=0.00001,mode=notify"


@pytest.mark.parametrize(
    ("version", "quota", "options", "seconds", "told_ms"),
    [
        ("4.3.1", FAST, AUTO, 0, 200),
        ("4.4.0", FAST, AUTO, 0, 0),
        ("4.4.0", SLOW, AUTO, 0, 2_000),
        ("4.4.0", SLOW, AUTO, 1.2, 0),
        ("4.4.0", parse_spec(NOTIFYING), AUTO, 0, 200),
        ("4.4.0", FAST, NOTIFY, 0, 200),
    ],
    ids=["4.3", "short", "long", "what is left is short", "notices asked for by the limit", "by the proxy"],
)
def test_a_short_wait_is_held_and_not_told(
    version: str, quota: QuotaEntry, options: EnforcementOptions, seconds: float, told_ms: int
) -> None:
    """The next frame waits for it in any case, so the limit holds. Who asks for notices gets each."""
    pair = pair_of(world := World([quota], enforcement=options), version)
    pair.client_sends(produce(1, 2_000))
    world.clock.pass_seconds(seconds)
    pair.broker_sends(produced(1))
    assert [ms // 100 * 100 for ms in told(pair)] == [told_ms]
    pair.client_sends(produce(2))
    assert pair.is_held


def test_a_wait_that_is_not_told_counts_as_a_pause() -> None:
    world = World([FAST])
    pair_of(world).client_sends(produce(1, 2_000), produce(2))
    pass_holds(world)
    assert world.throttled() == {("etl", "producer_byte_rate", "pause"): 1}


def test_of_a_long_wait_it_is_told_once() -> None:
    """By the first response. Later ones come while the client waits already; for others they have what is left."""
    others: dict[str, list[int]] = {}
    for version in ("4.3.1", "4.4.0"):
        world = World([parse_spec("client-id=etl,producer_byte_rate=1000,burst_seconds=3")])
        pair = pair_of(world, version)
        for number in range(4):
            pair.client_sends(produce(number, 1_400))
        for number in range(3):
            pair.broker_sends(produced(number))
            world.clock.pass_seconds(0.5)
        others[version] = told(pair)
    first = others["4.3.1"][0]
    assert first > 1_000
    assert others == {"4.3.1": [first, first - 500, first - 1_000], "4.4.0": [first, 0, 0]}


def test_it_is_told_again_when_it_has_waited() -> None:
    """It pipelines: each notice covers the frame that is held already."""
    pair = pair_of(world := World([SLOW]))
    for number in range(9):
        pair.client_sends(produce(number, 2_000))
    lines = []
    for number in range(9):
        pair.broker_sends(produced(number))
        if told(pair)[-1]:
            lines.append((world.clock(), told(pair)[-1] * NS_PER_MS))
        if number < 8:
            pass_one_hold(world)
            world.clock.pass_seconds(0.001)  # notices are rounded up
    assert len(lines) == 5
    assert all(wait_ns >= LEAST_LOGGED_NS for _, wait_ns in lines)
    assert all(later >= earlier + wait_ns for (earlier, wait_ns), (later, _) in pairwise(lines))


def test_nothing_is_told_before_there_is_debt() -> None:
    """The soft mark is 20 ms."""
    pair = pair_of(world := World([parse_spec("client-id=etl,producer_byte_rate=1MB,burst_seconds=0.1")]))
    pair.exchange(produce(1, 90_000), produced(1))
    assert told(pair) == [0]
    assert world.throttled() == {}


def test_a_part_of_a_fleets_limit_is_held_alone() -> None:
    """Others are told of 100 ms at most: a line for each would be many."""
    pair = pair_of(World([SLOW]))
    pair.exchange(heartbeat(7), heartbeat_answer(7))
    (limit,) = pair.connection.identity.limits.produce.limits
    limit.whole = cast("Any", SimpleNamespace(wanted=lambda: None, share=1_000, rate=1_000, fleet="f", members=2))
    pair.exchange(produce(1, 2_000), produced(1))
    assert produce_throttle_ms(pair.received()[-1], 9) == 0


def test_control_requests_and_bounds_of_the_proxy() -> None:
    """`request_rate` is told of as bytes are; a bound of the proxy, of 100 ms, never."""
    pair = pair_of(world := World([without_burst("client-id=etl,request_rate=10")]))
    for number in range(3):
        pair.exchange(heartbeat(number), heartbeat_answer(number))
    assert pair.received() == [heartbeat_answer(number) for number in range(3)]
    pair.connection.identity.notice.extend(None, world.clock() + 100_000_000, MEMORY)
    assert pair.connection.observer.notify(pair.connection.identity.notice, world.clock()) == 0


# ---- the node that a client means
@pytest.mark.parametrize(
    ("known", "meant", "passes"),
    [
        ({3: BROKER}, 3, 3),
        ({3: BROKER}, -1, -1),
        ({}, 3, -1),
        ({4: BROKER}, 3, -1),
        ({3: ("other", 9092), 4: BROKER}, 3, -1),
        ({3: ("broker", 9093)}, 3, -1),
    ],
    ids=["its node", "any", "unknown", "another has its port", "another one's address", "another port"],
)
def test_the_node_passes_where_the_line_leads_to_it(known: dict[int, tuple[str, int]], meant: int, passes: int) -> None:
    """Else it becomes "any": the client learns from Metadata that it is wrong."""
    world = World([])
    for node, address in known.items():
        world.context.nodes.advertise(node, *address)
    pair = Pair(world, cuts=(7,))
    pair.client_sends(negotiate(node=meant))
    assert (bytes(pair.to_broker), pair.in_flight) == (negotiate(node=passes), [99])
    pair.client_sends(heartbeat(1))
    assert pair.sent()[1:] == [heartbeat(1)]


def test_a_request_without_a_node_passes_as_it_is() -> None:
    for body in (b"", b"\x02x\x02y\x00", b"\xff" * 40):
        pair = Pair(World([]))
        sent = request(API_VERSIONS, 5, 1, body)
        pair.client_sends(sent)
        assert pair.to_broker == sent, "the broker decides"
