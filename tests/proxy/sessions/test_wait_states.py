"""Where the time of a connection goes: each state of `proxy.observability.wait_clock`, and that nothing is lost."""

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.observability.wait_clock import STATES
from proxy.sessions.lifecycle import State
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


class Scene:
    """A pair, and the time of its client by state in ms."""

    def __init__(self, *specs: str) -> None:
        self.world = World(quotas=[without_burst(spec) for spec in specs])
        self.began_ns = self.world.clock()
        self.pair = Pair(self.world)
        #: Correlation ids of the requests that the broker has answered: a response may be held.
        self.answered: set[int] = set()

    def wait(self, ms: float) -> None:
        self.world.clock.now_ns += int(ms * MS)

    def look(self) -> None:
        """As the sweep does once a second."""
        if self.pair.session.state is not State.CLOSED:
            self.pair.session.sweep(self.world.clock())

    def spent(self) -> dict[str, float]:
        self.look()
        spent_ns = self.world.metrics.entities.of(*ETL).times.spent_ns
        return {state: each / MS for state, each in zip(STATES, spent_ns, strict=True) if each}

    def limits(self) -> dict[tuple[str, str], float]:
        return {key: each / MS for key, each in self.world.metrics.entities.of(*ETL).times.limits_ns.items()}


def test_a_request_waits_for_the_broker_and_then_the_client_does_something_else() -> None:
    scene = Scene()
    scene.wait(5)
    scene.pair.client_sends(produce(1))
    scene.wait(20)
    scene.pair.broker_sends(produced(1))
    scene.wait(300)
    scene.pair.client_sends(produce(2))
    scene.wait(40)
    scene.pair.broker_sends(produced(2))
    scene.wait(7)
    assert scene.spent() == {"broker": 60, "client": 312}


@pytest.mark.parametrize("looks", [1, 3])
def test_a_look_in_between_changes_nothing(looks: int) -> None:
    scene = Scene()
    scene.pair.client_sends(produce(1))
    for _ in range(looks):
        scene.wait(12 / looks)
        scene.look()
    scene.pair.broker_sends(produced(1))
    for _ in range(looks):
        scene.wait(6 / looks)
        scene.look()
    assert scene.spent() == {"broker": 12, "client": 6}


def test_a_pipeline_that_never_runs_dry_waits_for_the_broker() -> None:
    scene = Scene()
    scene.pair.client_sends(produce(0))
    for number in range(1, 20):
        scene.pair.client_sends(produce(number))
        scene.wait(2)
        scene.pair.broker_sends(produced(number - 1))
    assert scene.spent() == {"broker": 38}


def test_a_fetch_waits_for_data_and_a_request_before_it_for_the_broker() -> None:
    scene = Scene()
    scene.pair.client_sends(fetch(1))
    scene.wait(500)
    scene.pair.broker_sends(fetched(1))
    scene.pair.client_sends(heartbeat(2))
    scene.wait(3)
    scene.pair.broker_sends(heartbeat_answer(2))
    assert scene.spent() == {"data": 500, "broker": 3}


def test_a_held_request_waits_for_its_limit() -> None:
    scene = Scene("client-id=etl,producer_byte_rate=1000")
    scene.pair.client_sends(produce(1, 2_000))
    scene.wait(100)
    scene.pair.client_sends(produce(2, 10))
    before = scene.world.clock()
    pass_holds(scene.world)
    held_ms = (scene.world.clock() - before) / MS
    scene.wait(50)
    scene.pair.broker_sends(produced(1), produced(2))
    assert held_ms > 1_000
    assert scene.spent() == {"broker": 150, "limit": held_ms}
    assert scene.limits() == {("producer_byte_rate", "client-id:etl"): held_ms}


def test_a_client_keeps_the_notice_of_its_limit() -> None:
    scene = Scene("client-id=etl,producer_byte_rate=1000")
    scene.pair.client_sends(produce(1, 400))
    debt_ms = 1_000 * sum(scene.world.debts().values())
    scene.wait(10)
    scene.pair.broker_sends(produced(1))
    scene.wait(debt_ms + 90)
    assert scene.spent() == {
        "broker": 10,
        "limit": pytest.approx(debt_ms - 10, abs=1),
        "client": pytest.approx(100, abs=1),
    }
    assert list(scene.limits()) == [("producer_byte_rate", "client-id:etl")]


def test_a_client_that_does_not_keep_its_notice_is_not_at_the_limit_for_longer() -> None:
    scene = Scene("client-id=etl,consumer_byte_rate=1000")
    scene.pair.client_sends(fetch(1))
    scene.pair.broker_sends(fetched(1, size=3_000))
    scene.wait(30)
    scene.pair.client_sends(heartbeat(2))
    scene.wait(20)
    scene.pair.broker_sends(heartbeat_answer(2))
    scene.pair.client_sends(heartbeat(3))
    scene.wait(20)
    assert scene.spent() == {"limit": 30, "broker": 40}


@pytest.mark.parametrize("version", [7, 9, 12])
@pytest.mark.parametrize("runs", [1, 20])
def test_a_client_keeps_the_throttle_time_of_the_broker(version: int, runs: int) -> None:
    scene = Scene()
    for number in range(runs):
        scene.pair.client_sends(produce(number, version=version))
    scene.wait(10)
    scene.pair.broker_sends(
        *(produced(number, version, throttle_ms=200 * (number == runs - 1)) for number in range(runs))
    )
    scene.wait(250)
    assert scene.spent() == {"broker": 10, "broker_quota": 200, "client": 50}
    assert scene.world.metrics.entities.of(*ETL).times.broker_throttled_seconds == pytest.approx(0.2)


def test_requests_in_flight_wait_for_the_quota_of_the_broker_and_do_not_make_it_slow() -> None:
    """The broker reads no request while it throttles (KIP-219), and librdkafka goes on sending."""
    scene = Scene()
    scene.look()
    scene.pair.client_sends(produce(0, version=9), produce(1, version=9))
    scene.wait(10)
    scene.pair.broker_sends(produced(0, 9))
    for number in range(1, 4):
        scene.pair.broker_sends(produced(number, 9, throttle_ms=300))
        scene.look()  # the next request would be timed
        scene.pair.client_sends(produce(number + 1, version=9))
        scene.wait(320)
    scene.pair.broker_sends(produced(4, 9))
    assert scene.spent() == {"broker": 70, "broker_quota": 900}
    ((_, times),) = scene.world.shared.brokers.items()
    assert times.produce.count == 1
    assert times.produce.sum_seconds == pytest.approx(0.01)


def test_a_consumer_keeps_the_throttle_time_of_the_broker() -> None:
    scene = Scene()
    scene.pair.client_sends(fetch(1))
    scene.wait(10)
    scene.pair.broker_sends(fetched(1, throttle_ms=300))
    scene.wait(250)
    assert scene.spent() == {"data": 10, "broker_quota": 250}


def test_a_consumer_that_fetches_on_waits_for_the_quota_of_the_broker_and_then_for_data() -> None:
    """librdkafka and aiokafka send the next fetch at once, and the broker does not read it."""
    scene = Scene()
    scene.pair.client_sends(fetch(1))
    scene.wait(10)
    scene.pair.broker_sends(fetched(1, throttle_ms=300))
    scene.pair.client_sends(fetch(2))
    scene.look()
    scene.wait(700)
    scene.pair.broker_sends(fetched(2))
    assert scene.spent() == {"data": 410, "broker_quota": 300}


@pytest.mark.parametrize("looks_first", [False, True])
def test_a_socket_that_fills_while_the_broker_throttles_is_its_quota(looks_first: bool) -> None:
    """librdkafka pipelines large requests: the broker answers one, mutes the connection, and takes no more bytes."""
    scene = Scene()
    scene.pair.client_sends(produce(1, 3_000))
    scene.wait(10)
    scene.pair.broker.room = 1_000
    if looks_first:  # the socket is full before the response tells why
        scene.pair.client_sends(produce(2, 3_000), produce(3, 3_000))
        scene.wait(5)
        scene.pair.broker_sends(produced(1, throttle_ms=9_000))
    else:
        scene.pair.broker_sends(produced(1, throttle_ms=9_000))
        scene.wait(5)
        scene.pair.client_sends(produce(2, 3_000), produce(3, 3_000))
    assert scene.world.metrics.connections.paused["write_backpressure"] == 1
    for _ in range(10):
        scene.wait(1_000)
        scene.look()
    assert scene.world.shared.health.outages(0) == [], "a broker that has muted a connection is not silent"
    scene.pair.broker.room = None
    scene.pair.broker.on_writable()  # type: ignore[misc]
    scene.wait(20)
    scene.pair.broker_sends(produced(2))
    quota_ms = 9_000
    assert scene.spent() == {"broker": 10_035 - quota_ms, "broker_quota": quota_ms}


def test_the_limits_of_the_proxy_and_of_the_broker_are_told_apart() -> None:
    """What the proxy holds is held by the proxy; what waits at the broker meanwhile, and afterwards, by its quota."""
    scene = Scene("client-id=etl,producer_byte_rate=1000")
    scene.pair.client_sends(produce(1, 400))
    scene.pair.broker_sends(produced(1, throttle_ms=2_000))
    debt_ms = 1_000 * sum(scene.world.debts().values())
    scene.pair.client_sends(produce(2, 10))
    scene.look()
    pass_holds(scene.world)
    held_ms = (scene.world.clock() - scene.began_ns) / MS
    assert held_ms == pytest.approx(debt_ms, abs=1)
    scene.wait(3_000 - held_ms)
    assert scene.spent() == {"limit": held_ms, "broker_quota": 2_000 - held_ms, "broker": 1_000}


def test_the_request_quota_of_the_broker_is_read_from_other_responses() -> None:
    scene = Scene()
    scene.pair.client_sends(heartbeat(1), heartbeat(2))
    scene.wait(10)
    scene.pair.broker_sends(heartbeat_answer(1, throttle_ms=400))
    scene.wait(500)
    scene.pair.broker_sends(heartbeat_answer(2))
    scene.pair.client_sends(metadata(3))
    answer = bytearray(metadata_answer(3, {1: ("broker", 9092)}))
    answer[9:13] = (200).to_bytes(4, "big")
    scene.pair.broker_sends(bytes(answer))
    scene.wait(300)
    assert scene.spent() == {"broker": 110, "broker_quota": 600, "client": 100}
    assert scene.world.metrics.entities.of(*ETL).times.broker_throttled_seconds == pytest.approx(0.6)


def test_a_request_with_many_partitions_keeps_the_throttle_time_of_the_broker() -> None:
    scene = Scene()
    scene.pair.client_sends(produce(1, version=9))
    answer = bytearray(produced_widely(1, 9, 600))
    answer[-5:-1] = (70).to_bytes(4, "big")
    scene.pair.broker_sends(bytes(answer))
    scene.wait(100)
    assert scene.pair.received() == [bytes(answer)]
    assert scene.spent() == {"broker_quota": 70, "client": 30}


@pytest.mark.parametrize("throttle_ms", [0, 600])
def test_many_requests_in_flight_wait_by_name_and_the_log_has_the_same_time(
    throttle_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Those behind `--max-pending-requests` wait for the broker with those in flight, or for its quota."""
    caplog.set_level(logging.WARNING)
    scene = Scene()
    most = scene.pair.connection.max_in_flight
    scene.pair.client_sends(*(heartbeat(number) for number in range(most + 9)))
    assert scene.world.metrics.connections.paused["in_flight"] == 1
    scene.pair.broker_sends(heartbeat_answer(0, throttle_ms=throttle_ms))
    for _ in range(7):
        scene.wait(1_000)
        scene.look()
    scene.pair.broker_sends(*(heartbeat_answer(number) for number in range(1, most)))
    scene.wait(100)
    waited_ms = 7_000 - throttle_ms
    expected = {"broker": waited_ms + 100, "broker_quota": throttle_ms}
    assert scene.spent() == {state: each for state, each in expected.items() if each}
    assert scene.limits() == {("max_pending_requests", "proxy"): waited_ms}
    first, second = [fields for event, fields in lines_of(caplog.records) if event == "throttled"]
    assert {each["limit"] for each in (first, second)} == {"max_pending_requests"}
    assert (second["held_seconds"], second["of"]) == (5.0, 5.0)


def test_requests_behind_those_in_flight_wait_for_a_limit_and_the_broker_is_timed_all_the_same() -> None:
    """A producer that pipelines at its limit, as librdkafka does: a request waits for it at each moment."""
    scene = Scene("client-id=etl,producer_byte_rate=1000")
    scene.pair.client_sends(produce(0, 300))
    for number in range(1, 6):
        scene.look()
        scene.pair.client_sends(produce(number, 300))
        assert scene.world.metrics.connections.paused["quota"] == 1
        pass_holds(scene.world)
        scene.wait(15)
        scene.pair.client_sends(produce(100 + number, 300))
        scene.pair.broker_sends(produced(number - 1 if number == 1 else 99 + number), produced(number))
        pass_holds(scene.world)
    ((_, times),) = scene.world.shared.brokers.items()
    assert times.produce.count >= 4
    assert times.produce.sum_seconds / times.produce.count == pytest.approx(0.015)


def test_a_request_that_arrives_slowly_is_the_clients_time() -> None:
    scene = Scene()
    request = produce(1, 5_000)
    scene.pair.client_sends(request[:2_000])
    scene.wait(400)
    scene.look()
    scene.wait(400)
    scene.pair.client_sends(request[2_000:])
    scene.wait(30)
    scene.pair.broker_sends(produced(1))
    assert scene.spent() == {"client": 800, "broker": 30}


def test_a_client_that_does_not_take_its_response_is_a_slow_reader() -> None:
    scene = Scene()
    scene.pair.client_sends(fetch(1))
    scene.wait(10)
    scene.pair.client.room = 100
    scene.pair.broker_sends(fetched(1, size=3_000))
    scene.wait(700)
    scene.look()
    scene.wait(100)
    scene.pair.client.room = None
    assert scene.pair.client.on_writable is not None
    scene.pair.client.on_writable()
    scene.wait(5)
    assert scene.spent() == {"data": 10, "slow_reader": 800, "client": 5}


def test_a_broker_that_takes_no_bytes_is_waited_for() -> None:
    scene = Scene()
    scene.pair.broker.room = 100
    scene.pair.client_sends(produce(1, 3_000, acks=0))
    scene.wait(700)
    scene.look()
    scene.pair.broker.room = None
    assert scene.pair.broker.on_writable is not None
    scene.pair.broker.on_writable()
    scene.wait(5)
    assert scene.spent() == {"broker": 700, "client": 5}


STEPS: dict[str, Callable[[Scene, int], None]] = {
    "produce": lambda scene, n: scene.pair.client_sends(produce(n, 300)),
    "fetch": lambda scene, n: scene.pair.client_sends(fetch(n)),
    "beat": lambda scene, n: scene.pair.client_sends(heartbeat(n)),
    "answer": lambda scene, n: _answer(scene, n),
    "wait": lambda scene, n: scene.wait(n),
    "look": lambda scene, n: scene.look(),
    "pass": lambda scene, n: pass_holds(scene.world),
}


def _answer(scene: Scene, number: int) -> None:
    """The broker answers the oldest request that it has not answered."""
    for request in scene.pair.sent():
        api, correlation = int.from_bytes(request[4:6], "big"), int.from_bytes(request[8:12], "big")
        if correlation not in scene.answered:
            scene.answered.add(correlation)
            answers = {0: produced, 1: fetched, 12: heartbeat_answer}
            scene.pair.broker_sends(answers[api](correlation, throttle_ms=number % 3 * 40))  # type: ignore[operator]
            return


@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(1, 1_000)), max_size=30), st.booleans())
def test_each_nanosecond_is_in_one_state(steps: list[tuple[str, int]], limited: bool) -> None:
    specs = ["client-id=etl,producer_byte_rate=1000,consumer_byte_rate=500"] if limited else []
    scene = Scene(*specs)
    scene.pair.client_sends(heartbeat(0))
    for number, (step, wait) in enumerate(steps, 1):
        STEPS[step](scene, number if step != "wait" else wait)
    spent_ms = sum(scene.spent().values())
    assert spent_ms == pytest.approx((scene.world.clock() - scene.began_ns) / MS)
    scene.pair.hang_up()
    assert sum(scene.spent().values()) == pytest.approx(spent_ms)
