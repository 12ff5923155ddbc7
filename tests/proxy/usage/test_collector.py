"""From counters to records, at times that the test sets: whatever happens, the records add up to the counters."""

import gc
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.config.config import ObservabilityOptions, UsageOptions
from proxy.enforcement.identity import Identity
from proxy.observability.entities import ENTITY_IDLE_NS
from proxy.observability.labels import OTHER
from proxy.observability.tallies import Cell, EntityMetrics
from proxy.observability.throttle_tallies import EXPIRED_AT_ONCE
from proxy.observability.topic_traffic import TrafficByTopic
from proxy.usage.collector import IDLE_MS, SAMPLES_PER_SERIES, SNAPSHOT_MS, TOPIC_INTERVAL_MS, Collector
from proxy.usage.records import Origin
from proxy.usage.series import SERIES_IDLE_MS
from quotas.parsing.parse import parse_spec
from tests.pipeline.usage import published
from tests.proxy.streams.pair import World

START_MS = 1_767_614_400_000
NS_PER_MS = 1_000_000
CLIENTS = ["etl", "producer-1", "producer-2", "consumer-g-3;label.team=b", "x" * 300, "\x00", "other", ""]
TOPICS = ["orders", "flights", OTHER]

Record = dict[str, Any]


class Scene:
    """A proxy's counters, the collector, and the records that were taken. `begins`: with an idle record,
    as a process does.
    """

    def __init__(
        self, max_series: int = 100, max_entities: int = 100, quotas: tuple[str, ...] = (), *, begins: bool = False
    ) -> None:
        self.world = World(
            [parse_spec(quota) for quota in quotas],
            observability=ObservabilityOptions(max_metric_entities=max_entities),
            usage=UsageOptions(file=Path("unused"), max_series=max_series, labels=(("env", "test"),)),
        )
        self.now_ms = START_MS
        origin = Origin("pod-1", "run-1", "127.0.0.1:19092")
        entities, is_in_use = self.world.metrics.entities, self.world.registry.is_in_use
        self.collector = Collector(origin, self.world.config.usage, entities, is_in_use, self.now_ms)
        self.collector._has_begun = not begins
        #: All records, in order: those of series are in `taken`, the others in `idle`.
        self.written: list[Record] = []
        self.taken: list[Record] = []
        self.idle: list[Record] = []
        self.true = Counter[tuple[str, ...]]()

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.world.clock.now_ns += max(0, ms) * NS_PER_MS

    def client(self, client_id: str) -> EntityMetrics:
        return self.world.metrics.entities.of("ANONYMOUS", client_id)

    def count(self, client_id: str, direction: str, size: int, requests: int = 1) -> None:
        entity = self.client(client_id)
        for name, amount in ((f"{direction}_bytes", size), (f"{direction}_requests", requests)):
            setattr(entity, name, getattr(entity, name) + amount)
        self.true[direction, "bytes"] += size
        self.true[direction, "requests"] += requests

    def count_topic(self, client_id: str, topic: str, direction: str, size: int, messages: int) -> None:
        entity = self.client(client_id)
        if entity.topics is None:
            entity.topics = TrafficByTopic(Cell())
        traffic = entity.topics[topic]
        if direction == "produce":
            traffic.produce_bytes += size
            traffic.produce_messages += messages
        else:
            traffic.fetch_bytes += size

    def read(self, *, is_last: bool = False) -> None:
        for _ in self.collector.collect(self.now_ms, is_last=is_last):
            pass

    def take(self, most: int = 10**9) -> list[Record]:
        """Records of series."""
        new = [json.loads(record) for record in self.collector.take(most)]
        self.written += new
        self.idle += [record for record in new if record["kind"] == "idle"]
        of_series = [record for record in new if record["kind"] != "idle"]
        self.taken += of_series
        return of_series

    def report(self, after_ms: int = 0, *, is_last: bool = False) -> list[Record]:
        self.pass_time(after_ms)
        self.read(is_last=is_last)
        return self.take()


def series_of(record: Record) -> tuple[Any, ...]:
    fields = ("kind", "start_time_ms", "user", "client_id", "topic", "direction", "limit", "entity")
    return (*(record.get(field) for field in fields), *sorted(record["labels"].items()))


def totals(records: list[Record]) -> Counter[tuple[str, ...]]:
    """The last counters of the totals of all clients."""
    usage = (record for record in records if record["kind"] == "usage" and record["topic"] is None)
    last = {series_of(record): record for record in usage}
    found = Counter[tuple[str, ...]]()
    for record in last.values():
        for name in ("bytes", "requests"):
            found[record["direction"], name] += record[name]
    return found


COUNTERS = ("bytes", "requests", "messages", "throttled_ms", "delayed_bytes", "refused_bytes", "would_have_bytes")


def check_all(records: list[Record]) -> None:
    """What holds for all records of a process."""
    before: dict[tuple[Any, ...], Record] = {}
    for record in records:
        assert published.errors(record) == []
        assert record["start_time_ms"] <= record["time_ms"]
        assert record["kind"] != "usage" or record["has_total"]
        earlier = before.get(series_of(record))
        if earlier is not None:
            assert earlier["time_ms"] <= record["time_ms"]
            assert all((earlier.get(name) or 0) <= (record.get(name) or 0) for name in COUNTERS)
        before[series_of(record)] = record
    numbers = [record["seq"] for record in records]
    assert numbers == sorted(set(numbers))


AMOUNTS = st.integers(0, 10**7)
COUNTING = st.tuples(
    st.just("count"), st.sampled_from(CLIENTS), st.sampled_from(["produce", "fetch"]), AMOUNTS, st.integers(0, 3)
)
BY_TOPIC = st.tuples(
    st.just("topic"), st.sampled_from(CLIENTS[:3]), st.sampled_from(TOPICS), st.sampled_from(["produce", "fetch"]),
    st.integers(0, 1000), st.integers(0, 9),
)  # fmt: skip
STEPS = st.lists(
    st.one_of(
        COUNTING,
        COUNTING,
        BY_TOPIC,
        st.tuples(
            st.just("pass"), st.sampled_from([0, 1, 9_000, 70_000, SNAPSHOT_MS, SERIES_IDLE_MS, -30_000, -(10**7)])
        ),
        st.tuples(st.just("read")),
        st.tuples(st.just("read_with"), COUNTING),
        st.tuples(st.just("take"), st.integers(1, 20)),
        st.tuples(st.just("expire")),
        st.tuples(st.just("refuse")),
    ),
    max_size=60,
)


def run(scene: Scene, steps: list[tuple[Any, ...]]) -> None:
    for name, *operands in steps:
        match name:
            case "count":
                scene.count(*operands)
            case "topic":  # the frame is counted by its client, too: before, or later
                client_id, _, direction, size, _ = operands
                scene.count_topic(*operands)
                scene.count(client_id, direction, size + 90)
            case "pass":
                if operands[0] >= SNAPSHOT_MS:  # readings are not further apart, so none misses a client that expires
                    scene.read()
                scene.pass_time(operands[0])
            case "read":
                scene.read()
            case "read_with":  # sessions run between two steps of a reading
                reading = scene.collector.collect(scene.now_ms)
                with suppress(StopIteration):
                    next(reading)
                scene.count(*operands[0][1:])
                for _ in reading:
                    pass
            case "take":
                scene.take(operands[0])
            case "expire":
                scene.world.metrics.entities.expire(scene.world.clock())
            case "refuse":
                scene.collector.drop_all(0)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.sampled_from([2, 5, 1000]), st.sampled_from([1, 3, 100]))
def test_records_add_up_to_the_counters(steps: list[tuple[Any, ...]], max_series: int, max_entities: int) -> None:
    scene = Scene(max_series, max_entities)
    run(scene, steps)
    scene.report(1, is_last=True)
    check_all(scene.written)
    gaps = scene.written[-1]["seq"] + 1 - len(scene.written) if scene.written else 0
    assert gaps <= scene.collector.lost
    if not scene.collector.lost:
        assert totals(scene.taken) + Counter() == scene.true + Counter()
        assert gaps == 0
    assert len(scene.collector.series) <= max_series + 2


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_reading_has_what_is_new_and_only_what_changed(scene: Scene) -> None:
    scene.count("etl", "produce", 100)
    [record] = scene.report(10_000)
    assert record == {
        "schema": 1,
        "kind": "usage",
        "sidecar": "pod-1",
        "incarnation": "run-1",
        "seq": 0,
        "time_ms": START_MS + 10_000,
        "start_time_ms": START_MS,
        "listener": "127.0.0.1:19092",
        "labels": {"env": "test"},
        "user": "ANONYMOUS",
        "client_id": "etl",
        "final": False,
        "topic": None,
        "direction": "produce",
        "bytes": 100,
        "record_bytes": None,
        "requests": 1,
        "messages": None,
        "unanswered_requests": 0,
        "inspected_requests": 0,
        "idempotent_requests": 0,
        "uncompressed_requests": 0,
        "max_second_bytes": 100,
        "has_total": True,
    }
    assert scene.report(10_000) == []
    scene.count("etl", "produce", 7)
    scene.count("etl", "fetch", 9, requests=0)
    assert {each["direction"]: (each["bytes"], each["start_time_ms"]) for each in scene.report(10_000)} == {
        "produce": (107, START_MS),
        "fetch": (9, START_MS + 20_000),
    }
    assert [each["seq"] for each in scene.taken] == [0, 1, 2]


def test_all_series_are_sent_every_ten_minutes_and_at_the_end(scene: Scene) -> None:
    scene.count("etl", "produce", 100)
    scene.pass_time(10_000)
    assert len(scene.report()) == 1
    assert scene.report(SNAPSHOT_MS - 10_001) == []
    assert [each["bytes"] for each in scene.report(1)] == [100]
    assert scene.report(1) == []
    assert [(each["bytes"], each["final"]) for each in scene.report(is_last=True)] == [(100, True)]
    assert [each["final"] for each in scene.taken] == [False, False, True]


def test_after_the_bound_series_are_counted_together() -> None:
    scene = Scene(max_series=2)
    for number in range(5):
        scene.count(f"client{number}", "produce", 10**number)
        scene.count(f"client{number}", "fetch", 3)
    scene.report()
    found = {(each["client_id"], each["direction"]): each["bytes"] for each in scene.taken}
    assert found == {
        ("client0", "produce"): 1,
        ("client0", "fetch"): 3,
        (OTHER, "produce"): 11_110,
        (OTHER, "fetch"): 12,
    }


def test_the_series_without_topic_has_all_bytes_each_interval_and_topics_split_them_each_minute(scene: Scene) -> None:
    scene.count("etl", "produce", 1000)
    scene.count_topic("etl", "orders", "produce", 600, 6)
    scene.count_topic("etl", "flights", "produce", 300, 3)
    scene.count_topic("etl", "flights", "fetch", 70, 0)
    scene.pass_time(TOPIC_INTERVAL_MS)
    fields = ("topic", "direction", "bytes", "record_bytes", "requests", "messages")
    assert {tuple(each[name] for name in fields) for each in scene.report()} == {
        (None, "produce", 1000, None, 1, None),
        ("orders", "produce", 600, 600, 0, 6),
        ("flights", "produce", 300, 300, 0, 3),
        ("flights", "fetch", 70, 70, 0, None),
    }, "messages are counted where records are produced"
    scene.pass_time(10_000)
    scene.count("etl", "produce", 50)
    scene.count_topic("etl", "orders", "produce", 40, 1)
    assert [(each["topic"], each["bytes"]) for each in scene.report()] == [(None, 1050)], "what a kill now would leave"
    assert [(each["topic"], each["bytes"]) for each in scene.report(TOPIC_INTERVAL_MS - 10_000)] == [("orders", 640)]


# ---- what cannot be written
@pytest.mark.claim(
    "enforcement",
    "usage by topic has the records that the broker accepted, by partition, whatever the version, "
    "the splits and the requests in flight; counters never decrease",
)
def test_refused_records_never_make_a_counter_smaller(scene: Scene) -> None:
    """Refused after a reading, they stay counted until others take their place. Bytes are what passed."""
    found = []
    for passed, refused in [(3, 0), (0, 2), (1, 1), (4, 1), (2, 2), (1, 0)]:
        scene.pass_time(70_000)
        scene.count_topic("etl", "orders", "produce", 100 * passed, passed)
        topics = scene.client("etl").topics
        assert topics is not None
        topics["orders"].take_back(100 * refused, refused)
        scene.report()
        of_topic = [record for record in scene.taken if record["topic"] == "orders"]
        found.append(tuple(of_topic[-1][name] // 100 for name in ("bytes", "record_bytes")))
        assert of_topic[-1]["messages"] * 100 == of_topic[-1]["record_bytes"]
    assert found == [(3, 3), (3, 3), (4, 3), (8, 4), (10, 4), (11, 5)]
    check_all(scene.written)


def test_while_nothing_is_written_the_latest_of_each_hour_stays(scene: Scene) -> None:
    for _ in range(3 * 360):
        scene.count("etl", "produce", 1)
        scene.pass_time(10_000)
        scene.read()
    assert len(scene.collector.samples) == 4, "three hours and the beginning of one"
    assert [each["bytes"] for each in scene.take()] == [359, 719, 1079, 1080]
    assert scene.collector.lost == 0


def test_memory_is_bounded_and_what_is_lost_is_counted() -> None:
    scene = Scene(max_series=2)
    for _ in range(10):
        scene.count("etl", "produce", 1)
        scene.pass_time(SERIES_IDLE_MS)
        scene.read()
    assert len(scene.collector.samples) == 2 * SAMPLES_PER_SERIES
    assert scene.collector.lost == 4
    assert [each["seq"] for each in scene.take()] == [4, 5, 6, 7, 8, 9]
    assert totals(scene.taken) == scene.true


def test_a_clock_that_goes_back_by_more_begins_all_series_anew(scene: Scene) -> None:
    scene.count("etl", "produce", 100)
    scene.count_topic("etl", "orders", "produce", 60, 1)
    scene.report(10_000)
    scene.count("etl", "produce", 5)
    scene.report(-SERIES_IDLE_MS, is_last=True)
    check_all(scene.taken)
    assert {(each["topic"], each["start_time_ms"] - START_MS, each["bytes"]) for each in scene.taken} == {
        (None, 0, 100),
        ("orders", 0, 60),
        (None, 10_000 - SERIES_IDLE_MS, 5),
    }


def test_a_turn_does_not_grow_with_the_number_of_series() -> None:
    """In calls of functions, some of which compare keys whose hashes collide."""
    longest = []
    for number in (1_000, 3_000):
        scene = Scene(max_series=number, max_entities=number)
        turns: list[int] = []
        for is_last in (False, True):
            for nth in range(number):
                scene.count(f"client-{nth}", "produce", 1)
            scene.pass_time(10_000)
            turns += calls_by_step(scene.collector.collect(scene.now_ms, is_last=is_last))
        longest.append(max(turns))
    assert longest[1] < 1.1 * longest[0] < 5_000


def calls_by_step(steps: Iterator[None]) -> list[int]:
    counts = [0]

    def on_event(_frame: FrameType, event: str, _argument: object) -> None:
        counts[-1] += event == "call"

    gc.disable()  # its callbacks would be counted
    sys.setprofile(on_event)
    try:
        for _ in steps:
            counts += [0]
    finally:
        sys.setprofile(None)
        gc.enable()
    return counts


# ---- clients that come and go
def connected(scene: Scene) -> Identity:
    world = scene.world
    who = Identity(world.config, world.registry, world.metrics.entities, "peer:1")
    who.identify("etl", 0)
    return who


# ---- what limits did
class Limited(Scene):
    """With a client that has a limit."""

    def __init__(self) -> None:
        super().__init__(quotas=("client-id=etl,producer_byte_rate=1000",))
        self.who = connected(self)
        self.limit = self.who.limits.produce.limits[0]

    def exceed(self, size: int) -> None:
        self.world.report.exceeded(self.who.client, self.limit, size)

    def throttle(self, ns: int) -> None:
        self.world.report.throttled(self.who.client, self.limit, "notify", "soft", ns, 0, self.world.clock())


@pytest.fixture
def limited() -> Limited:
    return Limited()


def test_a_limit_has_a_series_for_each_client(limited: Limited) -> None:
    limited.exceed(500)
    limited.throttle(1_500_000)
    limited.world.report.refused(limited.who.client, limited.limit, 40)
    [record] = limited.report(10_000)
    assert published.errors(record) == []
    assert (
        record.items()
        >= {
            "kind": "throttle",
            "user": "ANONYMOUS",
            "client_id": "etl",
            "limit": "producer_byte_rate",
            "entity": "client-id:etl",
            "limit_value": 1000,
            "throttled_ms": 1,
            "delayed_bytes": 500,
            "refused_bytes": 40,
            "would_have_bytes": 0,
        }.items()
    )
    limited.throttle(1_500_000)
    assert [each["throttled_ms"] for each in limited.report(10_000)] == [3], "fractions add up"


def test_the_value_of_a_limit_is_the_present_one(limited: Limited) -> None:
    world = limited.world
    limited.exceed(1)
    limited.report()
    world.registry.replace([parse_spec("client-id=etl,producer_byte_rate=2000")], world.clock())
    world.registry.refresh(100)
    limited.who.refresh(world.clock())
    limited.exceed(1)
    assert [each["limit_value"] for each in limited.report()] == [2000]
    world.registry.replace([], world.clock())
    world.registry.refresh(100)
    assert [each["limit_value"] for each in limited.report(is_last=True)] == [None]


def test_a_limit_that_a_fleet_shares_has_the_value_of_all_and_the_part_of_this_process(limited: Limited) -> None:
    limited.limit.whole = SimpleNamespace(fleet="team", members=40, rate=50_000)
    limited.exceed(1)
    [record] = limited.report()
    assert published.errors(record) == []
    assert (record["limit_value"], record["fleet"], record["fleet_cap"]) == (50_000, "team", 1_000)
    limited.limit.whole = None
    limited.exceed(1)
    [record] = limited.report()
    assert record["limit_value"] == 1_000
    assert record.keys().isdisjoint({"fleet", "fleet_cap"})


def test_limits_after_the_bound_are_counted_together() -> None:
    scene = Scene(max_series=1)
    tallies = scene.world.metrics.entities.throttle_tallies
    assert tallies is not None
    for number in range(3):
        tallies.of("u", f"c{number}", "connections", "total", 5).throttled_ns += 10**6
    scene.report()
    found = {(each["user"], each["client_id"], each["entity"]): each for each in scene.taken}
    assert {key: (each["throttled_ms"], each["limit_value"]) for key, each in found.items()} == {
        ("u", "c0", "total"): (1, 5),
        (OTHER, OTHER, OTHER): (2, None),
    }


def test_tallies_that_count_nothing_for_an_hour_make_room_and_lose_nothing() -> None:
    """Those of many clients, some at a time; what counts goes on."""
    scene = Scene(max_series=3 * EXPIRED_AT_ONCE)
    entities, clock = scene.world.metrics.entities, scene.world.clock
    tallies = entities.throttle_tallies
    assert tallies is not None

    def count(client_id: str) -> None:
        tallies.of("u", client_id, "connections", "total", 5).throttled_ns += NS_PER_MS

    def expire() -> None:
        for _ in range(4):
            entities.expire(clock())

    for number in range(3 * EXPIRED_AT_ONCE):
        count(f"c{number}")
    count("one more")
    assert sum(tally.client_id == OTHER for tally in tallies) == 1
    scene.read()
    expire()
    count("c7")
    count("c8")
    clock.now_ns += ENTITY_IDLE_NS - 1
    count("c7")
    expire()
    assert len(list(tallies)) == 3 * EXPIRED_AT_ONCE + 1, "an hour is not over"
    clock.now_ns += 1
    expire()
    assert sorted(tally.client_id for tally in tallies) == ["c7", "c8"]
    clock.now_ns += ENTITY_IDLE_NS - 1
    expire()
    assert list(tallies) == []
    count("new")
    scene.report(10_000)
    found = {each["client_id"]: each["throttled_ms"] for each in scene.taken}
    assert (found["c7"], found["c8"], found[OTHER]) == (3, 2, 2), "of series, there is no room for another one"
    assert sum(each["throttled_ms"] for each in scene.taken) == 3 * EXPIRED_AT_ONCE + 5
    assert len(scene.collector._reader._tallies) == 1, "nothing is kept of those that are gone"


def test_a_series_of_a_client_or_a_limit_that_expired_begins_anew(limited: Limited) -> None:
    limited.count("etl", "produce", 100)
    limited.exceed(5)
    limited.report(10_000)
    for _ in range(8):
        limited.report(SNAPSHOT_MS)
    assert len(limited.collector.series) == 0
    limited.count("etl", "produce", 5)
    limited.exceed(7)
    throttle, usage = sorted(limited.report(10_000), key=lambda each: each["kind"])
    assert (usage["bytes"], usage["start_time_ms"]) == (5, limited.now_ms - 10_000)
    assert (throttle["delayed_bytes"], throttle["start_time_ms"]) == (7, limited.now_ms - 10_000)
    assert totals(limited.taken) == limited.true


# ---- the largest second, and idle records
def end_second(scene: Scene) -> None:
    scene.pass_time(1_000)
    for _ in scene.collector.end_second():
        pass


def peaks(records: list[Record]) -> dict[str, int | None]:
    return {record["direction"]: record["max_second_bytes"] for record in records}


def test_a_burst_is_seen_by_its_largest_second(scene: Scene) -> None:
    for size in (0, 5_000, 3_000, 0):
        scene.count("etl", "produce", size)
        end_second(scene)
    scene.count("etl", "fetch", 10)  # in a second that is not over
    assert peaks(scene.report()) == {"produce": 5_000, "fetch": 10}
    scene.count("etl", "produce", 100)
    end_second(scene)
    assert peaks(scene.report()) == {"produce": 100}
    assert peaks(scene.report(SNAPSHOT_MS)) == {"produce": 0, "fetch": 0}


def test_a_record_that_is_replaced_before_it_is_written_leaves_its_largest_second(scene: Scene) -> None:
    scene.count("etl", "produce", 5_000)
    end_second(scene)
    scene.read()
    scene.count("etl", "produce", 10)
    end_second(scene)
    assert peaks(scene.report()) == {"produce": 5_000}
    scene.count("etl", "produce", 10)
    end_second(scene)
    assert peaks(scene.report()) == {"produce": 10}


def test_seconds_of_several_clients_in_one_series_are_not_known() -> None:
    scene = Scene(max_series=1)
    for client_id in CLIENTS[:3]:
        scene.count(client_id, "produce", 10)
    records = scene.report()
    assert {record["client_id"]: record["max_second_bytes"] for record in records} == {"etl": 10, OTHER: None}


def test_a_process_begins_with_an_idle_record_and_writes_one_when_it_has_nothing_else() -> None:
    scene = Scene(begins=True)
    scene.report()
    (first,) = scene.idle
    assert (first["seq"], first["start_time_ms"], first["time_ms"], first["final"]) == (0, START_MS, START_MS, False)
    scene.count("etl", "produce", 10)
    scene.report(IDLE_MS - 1)
    scene.report(IDLE_MS - 1)
    assert scene.idle == [first], "the record of a series is one, too"
    scene.report(1)
    assert [record["time_ms"] for record in scene.idle] == [START_MS, START_MS + 2 * IDLE_MS - 1]
    scene.report(is_last=True)
    assert len(scene.idle) == 2, "its series end it"
    check_all(scene.written)
