"""Where the time of a connection goes: each state of `proxy.observability.client_times`, and that nothing is lost."""

import logging
from collections.abc import Callable

import pytest

from proxy.observability.client_times import STATES
from proxy.observability.response_times import ResponseTimes
from proxy.sessions.lifecycle import State
from proxy.streams.connection import Connection
from tests.proxy.conversation import lines_of, without_burst
from tests.proxy.frames import (
    fetch,
    fetched,
    heartbeat,
    heartbeat_answer,
    metadata,
    metadata_answer,
    produce,
    produced,
    produced_widely,
)
from tests.proxy.streams.pair import Pair, World, pass_holds

MS = 1_000_000
ETL = ("ANONYMOUS", "etl")


Step = float | Callable[["Scene"], object]


class Scene:
    """A pair, and the time of its client by state in ms."""

    def __init__(self, *specs: str) -> None:
        self.world = World(quotas=[without_burst(spec) for spec in specs])
        self.began_ns = self.world.clock()
        self.pair = Pair(self.world)

    def wait(self, ms: float) -> None:
        self.world.clock.now_ns += int(ms * MS)

    def look(self) -> None:
        """As the sweep does once a second."""
        if self.pair.session.state is not State.CLOSED:
            self.pair.session.sweep(self.world.clock())

    def play(self, *steps: Step, looks: int = 0) -> None:
        """Numbers are waits, in ms; with so many looks, at parts of the wait."""
        for step in steps:
            if callable(step):
                step(self)
                continue
            for _ in range(looks or 1):
                self.wait(step / (looks or 1))
                if looks:
                    self.look()

    def debt_ms(self) -> float:
        return 1_000 * sum(self.world.debts().values())

    def times(self) -> ResponseTimes:
        """How long the broker took."""
        ((_, times),) = self.world.shared.brokers.items()
        return times

    def spent(self) -> dict[str, float]:
        self.look()
        spent_ns = self.world.metrics.entities.of(*ETL).times.spent_ns
        return {state: each / MS for state, each in zip(STATES, spent_ns, strict=True) if each}

    def limits(self) -> dict[tuple[str, str], float]:
        return {key: each / MS for key, each in self.world.metrics.entities.of(*ETL).times.limits_ns.items()}


def asks(*frames: bytes) -> Step:
    return lambda scene: scene.pair.client_sends(*frames)


def says(*frames: bytes) -> Step:
    return lambda scene: scene.pair.broker_sends(*frames)


def look(scene: Scene) -> None:
    scene.look()


def client_takes(room: int | None) -> Step:
    return lambda scene: scene.pair.client.take(room)


def broker_takes(room: int | None) -> Step:
    return lambda scene: scene.pair.broker.take(room)


def throttled(answer: bytes, at: int, throttle_ms: int) -> bytes:
    """This response with a throttle time, which is written there."""
    return answer[:at] + throttle_ms.to_bytes(4, "big") + answer[at + 4 :]


METADATA = metadata_answer(3, {1: ("broker", 9092)})
MANY = produced_widely(1, 9, 600)
CASES: dict[str, tuple[list[Step], dict[str, float]]] = {
    "requests wait for the broker, then the client does something else": (
        [5, asks(produce(1)), 20, says(produced(1)), 300, asks(produce(2)), 40, says(produced(2)), 7],
        {"broker": 60, "client": 312},
    ),
    "a pipeline that never runs dry": (
        [asks(produce(0))]
        + [step for each in range(1, 20) for step in (asks(produce(each)), 2.0, says(produced(each - 1)))],
        {"broker": 38},
    ),
    "a fetch waits for data, and a request after it for the broker": (
        [asks(fetch(1)), 500, says(fetched(1)), asks(heartbeat(2)), 3, says(heartbeat_answer(2))],
        {"data": 500, "broker": 3},
    ),
    "a consumer keeps the throttle time of the broker": (
        [asks(fetch(1)), 10, says(fetched(1, throttle_ms=300)), 250],
        {"data": 10, "broker_quota": 250},
    ),
    # librdkafka and aiokafka send the next fetch at once, and the broker does not read it.
    "a consumer fetches on during the throttle time, and then waits for data": (
        [asks(fetch(1)), 10, says(fetched(1, throttle_ms=300)), asks(fetch(2)), look, 700, says(fetched(2))],
        {"data": 410, "broker_quota": 300},
    ),
    "the request quota of the broker is read from other responses": (
        [
            *(asks(heartbeat(1), heartbeat(2)), 10, says(heartbeat_answer(1, throttle_ms=400)), 500),
            *(says(heartbeat_answer(2)), asks(metadata(3)), says(throttled(METADATA, 9, 200)), 300),
        ],
        {"broker": 110, "broker_quota": 600, "client": 100},
    ),
    "a response with many partitions has a throttle time": (
        [asks(produce(1, version=9)), says(throttled(MANY, len(MANY) - 5, 70)), 100],
        {"broker_quota": 70, "client": 30},
    ),
    "a client that does not take its response": (
        [asks(fetch(1)), 10, client_takes(100), says(fetched(1, size=3_000)), 800, client_takes(None), 5],
        {"data": 10, "slow_reader": 800, "client": 5},
    ),
    "a broker that takes no bytes": (
        [broker_takes(100), asks(produce(1, 3_000, acks=0)), 700, broker_takes(None), 5],
        {"broker": 700, "client": 5},
    ),
    "a request that arrives slowly": (
        [look, asks(produce(1, 5_000)[:2_000]), 800, asks(produce(1, 5_000)[2_000:]), 30, says(produced(1))],
        {"client": 800, "broker": 30},
    ),
}


@pytest.mark.parametrize("looks", [0, 1, 2])
@pytest.mark.parametrize("case", CASES)
def test_where_the_time_goes(case: str, looks: int) -> None:
    """However often the sweep looks."""
    steps, expected = CASES[case]
    scene = Scene()
    scene.play(*steps, looks=looks)
    assert scene.spent() == expected
    throttled_ms = 1_000 * scene.world.metrics.entities.of(*ETL).times.broker_throttled_seconds
    assert throttled_ms == pytest.approx(expected.get("broker_quota", 0), abs=51), "of the last 50 are still to come"


def test_the_time_before_a_broker_is_connected_is_the_clients_and_then_the_brokers() -> None:
    world = World()
    observer = Connection(world.context, Pair(world).connection.identity).observer
    began_ns = world.clock()
    observer.connected(began_ns + 3 * MS, began_ns + 10 * MS, world.shared.brokers.times_of("broker:9092"))
    spent = {state: each / MS for state, each in zip(STATES, observer.spent_ns, strict=True) if each}
    assert spent == {"client": 3, "broker": 7}


@pytest.mark.parametrize("throttle_ms", [0, 200])
def test_a_client_keeps_the_notice_of_its_limit(throttle_ms: int) -> None:
    """Also where the broker's own throttle time ends earlier."""
    scene = Scene("client-id=etl,producer_byte_rate=1000")
    scene.play(asks(produce(1, 400)))
    debt_ms = scene.debt_ms()
    scene.play(10, says(produced(1, throttle_ms=throttle_ms)), debt_ms + 90)
    at_limit, rest = pytest.approx(debt_ms - 10, abs=1), pytest.approx(100, abs=1)
    assert scene.spent() == {"broker": 10, "limit": at_limit, "client": rest}
    assert list(scene.limits()) == [("producer_byte_rate", "client-id:etl")]


@pytest.mark.parametrize("version", [7, 9, 12])
@pytest.mark.parametrize("runs", [1, 20])
def test_a_client_keeps_the_throttle_time_of_the_broker(version: int, runs: int) -> None:
    scene = Scene()
    answers = [produced(number, version) for number in range(runs - 1)]
    scene.play(*(asks(produce(number, version=version)) for number in range(runs)), 10)
    scene.play(says(*answers, produced(runs - 1, version, throttle_ms=200)), 250)
    assert scene.spent() == {"broker": 10, "broker_quota": 200, "client": 50}


def test_requests_in_flight_wait_for_the_quota_of_the_broker_and_do_not_make_it_slow() -> None:
    """The broker reads no request while it throttles (KIP-219), and librdkafka goes on sending."""
    scene = Scene()
    scene.play(look, asks(produce(0), produce(1)), 10, says(produced(0)))
    for number in range(1, 4):  # at each look the next request would be timed
        scene.play(says(produced(number, throttle_ms=300)), look, asks(produce(number + 1)), 320)
    scene.play(says(produced(4)))
    assert (scene.spent(), scene.times().produce.count) == ({"broker": 70, "broker_quota": 900}, 1)
    assert scene.times().produce.sum_seconds == pytest.approx(0.01)


@pytest.mark.parametrize("looks_first", [False, True])
def test_a_socket_that_fills_while_the_broker_throttles_is_its_quota(looks_first: bool) -> None:
    """librdkafka pipelines large requests: the broker answers one, mutes the connection, and takes no more bytes."""
    scene = Scene()
    fills, answered = asks(produce(2, 3_000), produce(3, 3_000)), says(produced(1, throttle_ms=9_000))
    # The socket may be full before the response tells why.
    first, second = (fills, answered) if looks_first else (answered, fills)
    scene.play(asks(produce(1, 3_000)), 10, broker_takes(1_000), first, 5, second)
    assert scene.world.metrics.connections.paused["write_backpressure"] == 1
    scene.play(10_000, looks=10)
    assert scene.world.shared.health.outages(0) == [], "a broker that has muted a connection is not silent"
    scene.play(broker_takes(None), 20, says(produced(2)))
    assert scene.spent() == {"broker": 10_035 - 9_000, "broker_quota": 9_000}


def test_the_limits_of_the_proxy_and_of_the_broker_are_told_apart() -> None:
    """What the proxy holds is held by the proxy; what waits at the broker meanwhile, and afterwards, by its quota."""
    scene = Scene("client-id=etl,producer_byte_rate=1000")
    scene.play(asks(produce(1, 400)), says(produced(1, throttle_ms=2_000)))
    debt_ms = scene.debt_ms()
    scene.play(asks(produce(2, 10)), look)
    pass_holds(scene.world)
    held_ms = (scene.world.clock() - scene.began_ns) / MS
    assert held_ms == pytest.approx(debt_ms, abs=1)
    scene.wait(3_000 - held_ms)
    assert scene.spent() == {"limit": held_ms, "broker_quota": 2_000 - held_ms, "broker": 1_000}


@pytest.mark.parametrize("throttle_ms", [0, 600])
def test_many_requests_in_flight_wait_by_name_as_in_the_log(throttle_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    """Those behind `--max-pending-requests` wait for the broker with those in flight, or for its quota."""
    caplog.set_level(logging.WARNING)
    scene = Scene()
    most = scene.pair.connection.max_in_flight
    scene.pair.client_sends(*(heartbeat(number) for number in range(most + 9)))
    assert scene.world.metrics.connections.paused["in_flight"] == 1
    scene.pair.broker_sends(heartbeat_answer(0, throttle_ms=throttle_ms))
    scene.play(7_000, looks=7)
    scene.pair.broker_sends(*(heartbeat_answer(number) for number in range(1, most)))
    scene.wait(100)
    waited_ms = 7_000 - throttle_ms
    expected = {"broker": waited_ms + 100, "broker_quota": throttle_ms}
    assert scene.spent() == {state: each for state, each in expected.items() if each}
    assert scene.limits() == {("max_pending_requests", "proxy"): waited_ms}
    first, second = [fields for event, fields in lines_of(caplog.records) if event == "throttled"]
    assert {each["limit"] for each in (first, second)} == {"max_pending_requests"}
    assert (second["held_seconds"], second["of"]) == (5.0, 5.0)


NOT_TIMED: dict[str, list[Step]] = {
    # Brokers before KIP-219 send it when the throttle time in it is over.
    "delayed for the quota of the broker": [asks(heartbeat(1)), 400, says(heartbeat_answer(1, throttle_ms=400))],
    "behind one that the client does not take": [
        *(asks(fetch(1), heartbeat(2)), client_takes(100), says(fetched(1, size=3_000)), 800),
        *(client_takes(None), says(heartbeat_answer(2))),
    ],
}


@pytest.mark.parametrize("case", NOT_TIMED)
def test_a_response_that_is_late_for_another_reason_is_not_timed(case: str) -> None:
    scene = Scene()
    scene.play(look, *NOT_TIMED[case])
    assert scene.times().others.count == 0


def test_a_broker_is_timed_from_the_end_of_a_request() -> None:
    scene = Scene()
    scene.play(*CASES["a request that arrives slowly"][0])
    assert (scene.times().produce.count, scene.times().produce.sum_seconds) == pytest.approx((1, 0.03))
