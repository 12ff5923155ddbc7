"""Clients that drop a response with a throttle time and send the request again, as rskafka does: in `auto` they are
told of no wait, since each repetition would be throttled again.
"""

import pytest

from protocol.apis import CREATE_TOPICS
from proxy.config.config import EnforcementOptions
from proxy.sessions.throttling import _BLOCKED_NS
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import without_burst
from tests.proxy.frames import heartbeat, heartbeat_answer, produce, produce_throttle_ms, produced
from tests.proxy.mutation_frames import done, mutation, told
from tests.proxy.streams.pair import Pair, World, named, pass_holds

pytestmark = pytest.mark.claim("limits", "rskafka is told of no wait in auto, so it repeats nothing")

RECORDS = 60
MOST_REQUESTS = 10 * RECORDS
LIMIT = "client-id=etl,producer_byte_rate=60000"


def repeating(world: World) -> Pair:
    return named(world, "rskafka", "0.6.0")


def produced_by(world: World, version: int = 7) -> tuple[int, float]:
    """How often its records were appended until all were acknowledged without a throttle time, and the seconds."""
    pair, left, appended, began = repeating(world), RECORDS, 0, world.clock()
    while left and appended < MOST_REQUESTS:
        pair.client_sends(produce(appended, 10_000, version))
        pass_holds(world)
        pair.broker_sends(produced(appended, version))
        pass_holds(world)
        appended += 1
        throttle_ms = produce_throttle_ms(pair.received()[-1], version)
        left -= not throttle_ms
        world.clock.pass_seconds(throttle_ms / 1_000)
    return appended, (world.clock() - began) / 1e9


@pytest.mark.parametrize("version", [3, 5, 7])
@pytest.mark.parametrize("mode", ["auto", "pause"])
def test_its_records_are_appended_once_and_at_the_rate(version: int, mode: str) -> None:
    """The oldest versions would get late responses, with the throttle time in them for others."""
    world = World([parse_spec(LIMIT)], enforcement=EnforcementOptions(throttle_mode=mode))
    appended, seconds = produced_by(world, version)
    assert appended == RECORDS
    assert seconds == pytest.approx((RECORDS - 1) / 6 - 1, abs=0.2), "of the burst and the rate"


def test_it_repeats_where_notices_are_asked_for() -> None:
    """So the client of this test does what it stands for."""
    world = World([parse_spec(LIMIT)], enforcement=EnforcementOptions(throttle_mode="notify"))
    assert produced_by(world)[0] > RECORDS


def test_no_other_response_contains_a_throttle_time() -> None:
    """Of control requests, of one that creates topics, and of a bound of the proxy."""
    world = World(
        [without_burst("client-id=etl,request_rate=1"), without_burst("client-id=etl,controller_mutation_rate=1")]
    )
    pair = repeating(world)
    pair.exchange(heartbeat(1) + heartbeat(2), heartbeat_answer(1) + heartbeat_answer(2))
    assert pair.received() == [heartbeat_answer(1), heartbeat_answer(2)]
    for number in (3, 4):
        pair.exchange(mutation(CREATE_TOPICS, 5, number, {"t": 3}), done(CREATE_TOPICS, 5, number, ["t"]))
        assert told(CREATE_TOPICS, 5, pair.received()[-1]).throttle_ms == 0
    pair.connection.identity.notice.extend(None, world.clock() + _BLOCKED_NS, "memory")
    assert pair.connection.observer.notify(pair.connection.identity.notice, world.clock()) == 0
