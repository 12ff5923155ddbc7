"""From debt to measures: what the client receives, what is held, and what is reported, by each mode."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.config.config import EnforcementOptions
from proxy.enforcement.delay import Delay
from proxy.enforcement.identity import Client, Identity
from proxy.enforcement.measures import MOST_TOLD_OF_PART_NS, Measures, Reply
from proxy.enforcement.report import DEBT, DELAY, NOTIFY, PAUSE, SOFT, TOTAL, connection_status, throttle_status
from quotas.admission.decision import Decision
from quotas.admission.limit import SOFT_NS, Limit
from quotas.algorithms.token_bucket import TokenBucket
from quotas.connections import Verdict
from quotas.entity import Entity
from quotas.modes import MODES
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import lines_of, without_burst
from tests.proxy.streams.pair import World

NS_PER_MS = 1_000_000
NS_PER_SECOND = 1_000_000_000
QUOTA = without_burst("client-id=etl,producer_byte_rate=1000,request_rate=10")
NAME = "producer_byte_rate"
WAIT_NS = 2 * NS_PER_SECOND


class Scene:
    """One client, its limit, and the measures of a mode."""

    def __init__(self, mode: str = "auto", *, dry_run: bool = False, quota: Any = QUOTA) -> None:
        self.world = World([quota], enforcement=EnforcementOptions(throttle_mode=mode, dry_run=dry_run))
        self.measures: Measures = self.world.context.measures
        self.who = identity(self.world)
        self.limit = self.who.limits.produce.limits[0]
        self.now_ns = self.world.clock()

    def decision(self) -> Decision:
        return Decision(True, WAIT_NS, self.limit, (self.limit,))

    def leaves_debt(
        self, reply: Reply = Reply.NOTICE, *, wait_ns: int = WAIT_NS, is_counted: bool = False
    ) -> Delay | None:
        """A data frame leaves debt."""
        who = self.who
        return self.measures.debt_left(who, who.client, self.limit, wait_ns, reply, self.now_ns, is_counted=is_counted)

    def finds_debt(self, size: int = 100) -> None:
        """A data frame finds debt for the first time."""
        who = self.who
        self.measures.found_debt(who, who.client, self.limit, WAIT_NS, size, ("rows",), self.now_ns)

    def is_held(self, reply: Reply = Reply.NOTICE) -> None:
        """A data frame waits, with 100 units in the queue."""
        self.measures.notify_held(self.who, self.limit, WAIT_NS, reply, 100, self.now_ns)

    @property
    def told_ms(self) -> tuple[int, int]:
        """The throttle times of data responses, and of others."""
        notices = self.who.notice, self.who.request_notice
        return notices[0].throttle_time_ms(self.now_ns), notices[1].throttle_time_ms(self.now_ns)

    @property
    def throttled(self) -> dict[tuple[str, str, str], int]:
        return self.world.throttled()


def identity(world: World, client_id: str = "etl") -> Identity:
    who = Identity(world.config, world.registry, world.metrics.entities, "peer:1")
    who.identify(client_id, 0)
    return who


#: What each mode does where a request leaves debt, by what its response can do.
MEASURES = {
    ("notify", Reply.NOTICE): NOTIFY,
    ("notify", Reply.LATE): NOTIFY,
    ("notify", Reply.NONE): PAUSE,
    ("delay", Reply.NOTICE): DELAY,
    ("delay", Reply.LATE): DELAY,
    ("delay", Reply.NONE): PAUSE,
    ("pause", Reply.NOTICE): PAUSE,
    ("pause", Reply.LATE): PAUSE,
    ("pause", Reply.NONE): PAUSE,
    ("auto", Reply.NOTICE): NOTIFY,
    ("auto", Reply.LATE): DELAY,
    ("auto", Reply.NONE): PAUSE,
}


def test_each_mode_has_a_measure_for_each_response() -> None:
    assert set(MEASURES) == {(mode, reply) for mode in MODES for reply in Reply}


each_measure = pytest.mark.parametrize(("mode", "reply"), MEASURES)
is_dry_run = pytest.mark.parametrize("dry_run", [False, True])


# ---- data frames


@is_dry_run
@pytest.mark.parametrize("is_counted", [False, True])
@each_measure
def test_a_frame_that_leaves_debt(mode: str, reply: Reply, is_counted: bool, dry_run: bool) -> None:
    scene = Scene(mode, dry_run=dry_run)
    scene.limit.enqueue("other", 500)  # half a second of this limit
    delay = scene.leaves_debt(reply, is_counted=is_counted)
    measure = MEASURES[mode, reply]
    assert scene.told_ms == (2_500 if measure == NOTIFY and not dry_run else 0, 0)
    assert (delay is not None) == (measure == DELAY and not dry_run)
    if delay is not None:
        assert (delay.limit, delay.until_ns) == (scene.limit, scene.now_ns + 2_500 * NS_PER_MS)
        assert delay.is_shown == (reply is Reply.LATE), "other clients would wait for it again"
    assert scene.throttled == ({} if is_counted or measure == PAUSE else {("etl", NAME, measure): 1})


@is_dry_run
@pytest.mark.parametrize("size", [0, 100])
def test_a_frame_that_finds_debt(size: int, dry_run: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Held: logged when that begins, and counted at its end. In a dry run it passes, and is counted at once. Its bytes
    count as excess as soon as they are known: not those of a response that has not arrived.
    """
    scene = Scene(dry_run=dry_run)
    caplog.set_level(logging.WARNING)
    scene.finds_debt(size)
    ((name, fields),) = lines_of(caplog.records)
    assert (name, fields["mode"]) == ("would_throttle" if dry_run else "throttled", PAUSE)
    assert fields.get("topics") == (None if dry_run else "rows")
    assert scene.throttled == ({("etl", NAME, PAUSE): 1} if dry_run else {})
    assert scene.who.entity.excess == ({NAME: size} if size else {})
    assert scene.told_ms == (0, 0)
    scene.world.report.released(scene.who.client, scene.limit, 3 * NS_PER_SECOND, scene.now_ns)
    assert scene.who.entity.throttles[NAME, PAUSE].sum_seconds == pytest.approx(5 if dry_run else 3)


def test_a_line_has_the_time_held_since_the_one_before(caplog: pytest.LogCaptureFixture) -> None:
    """By any of its connections: holds that overlap count once, and a notice up to now."""
    scene = Scene("notify")
    report, limit, start_ns = scene.world.report, scene.limit, scene.now_ns
    one, other = (
        scene.who.client,
        Identity(scene.world.config, scene.world.registry, scene.world.metrics.entities, "b:2"),
    )
    other.identify("etl", 0)
    caplog.set_level(logging.WARNING)

    def line_at(seconds: float, client: Client = one) -> tuple[object, ...]:
        """A frame is held: of its line, what it has of the time before."""
        caplog.clear()
        report.held(client, limit, WAIT_NS, (), start_ns + int(seconds * NS_PER_SECOND))
        [(name, fields)] = lines_of(caplog.records)
        assert name == "throttled"
        assert "suppressed" not in fields
        return tuple(fields.get(each) for each in ("held_seconds", "of", "connections"))

    assert line_at(0) == (None, None, None)
    for client, seconds, at in ((one, 2, 2), (other.client, 1.5, 2.5), (one, 1, 4.8)):  # until 2.5, and from 3.8 on
        report.released(client, limit, int(seconds * NS_PER_SECOND), start_ns + int(at * NS_PER_SECOND))
    assert line_at(5.1) == (3.5, 5.1, 2)
    assert line_at(15.1, other.client) == (0.0, 10.0, 1)
    report.throttled(one, limit, NOTIFY, DEBT, 5 * NS_PER_SECOND, 0, start_ns + 19 * NS_PER_SECOND)
    assert line_at(21.1) == (2.1, 6.0, 1), "of 5 s"
    assert line_at(31.1) == (2.9, 10.0, 1), "the rest"


def test_what_is_known_of_held_connections_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    report, limit = scene.world.report, scene.limit
    for number in range(1_500):
        client = Client(scene.world.registry, "", "", f"peer:{number}")
        other = Limit("request_rate", Entity(None, f"client-{number}"), TokenBucket(1))
        report.held(client, limit, 0, (), scene.now_ns)
        report.still_held(client, other, 0, 0, "", scene.now_ns)
    assert len(report._held) <= 1_000
    assert max(len(each.peers) for each in report._held.values()) <= 1_000


@each_measure
def test_a_frame_that_is_held(mode: str, reply: Reply) -> None:
    """Responses to earlier requests contain the wait until it has passed: behind those that are queued."""
    scene = Scene(mode)
    scene.limit.enqueue("other", 500)
    scene.is_held(reply)
    assert scene.told_ms == (2_600 if MEASURES[mode, reply] == NOTIFY else 0, 0)
    assert scene.throttled == {}


def test_a_part_of_a_fleets_limit_is_no_reason_to_wait_for_long() -> None:
    """Or the client sends nothing meanwhile, and the part goes to others."""
    scene = Scene("notify")
    scene.limit.whole = cast("Any", SimpleNamespace(wanted=int, share=scene.limit.algorithm.rate))
    scene.is_held()
    assert scene.told_ms == (MOST_TOLD_OF_PART_NS // NS_PER_MS, 0)
    assert WAIT_NS > MOST_TOLD_OF_PART_NS


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("reply", [Reply.NOTICE, Reply.LATE])
def test_what_counts_is_what_the_client_was_told(
    reply: Reply, is_shared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """And for how long its response was late: not the debt, which may be hours."""
    scene = Scene()
    if is_shared:
        scene.limit.whole = cast("Any", SimpleNamespace(
            wanted=int, share=scene.limit.algorithm.rate, rate=1_000, fleet="etl", members=2
        ))  # fmt: skip
    delay = scene.leaves_debt(reply, wait_ns=1_000 * NS_PER_SECOND)
    told_ms = MOST_TOLD_OF_PART_NS // NS_PER_MS if is_shared else EnforcementOptions().max_throttle_ms
    assert (delay.throttle_time_ms if delay else scene.told_ms[0]) == told_ms
    [histogram] = scene.who.entity.throttles.values()
    assert histogram.sum_seconds == told_ms / 1_000
    [(_, line)] = lines_of(caplog.records)
    assert (line["throttle_ms"], line["debt_seconds"]) == (told_ms, 1_000)


def test_neither_does_a_control_request_wait_for_a_share_that_is_being_claimed() -> None:
    scene = Scene()
    scene.limit.whole = cast("Any", SimpleNamespace(
        wanted=int, share=scene.limit.algorithm.rate, rate=1_000, fleet="etl", members=2
    ))  # fmt: skip
    scene.measures.on_requests_debt(scene.who, scene.decision(), scene.now_ns, is_counted=False)
    assert scene.told_ms == (0, MOST_TOLD_OF_PART_NS // NS_PER_MS)


def test_an_error_for_a_topic_is_no_notice_for_all() -> None:
    scene = Scene()
    scene.limit.rejects = True
    scene.is_held()
    assert scene.told_ms == (0, 0)


def test_data_that_finds_debt_during_a_notice_is_counted() -> None:
    scene = Scene()
    scene.finds_debt()
    assert scene.who.entity.data_during_notice == 0, "there was no notice"
    scene.is_held()
    scene.finds_debt()
    assert scene.who.entity.data_during_notice == 1
    scene.now_ns = scene.who.notice.until_ns
    scene.finds_debt()
    assert scene.who.entity.data_during_notice == 1, "the notice was over"


def test_the_limit_of_the_whole_proxy_is_a_reason() -> None:
    scene = Scene(quota=without_burst("total,producer_byte_rate=1000"))
    scene.leaves_debt()
    assert scene.who.notice.reason == TOTAL
    assert scene.world.metrics.entities.throttle_reasons[TOTAL] == 1


def test_a_change_applies_at_once(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene("auto")
    scene.measures.change("delay", enforces=False)
    assert scene.leaves_debt() is None
    scene.measures.change("delay", enforces=True)
    assert scene.leaves_debt() is not None
    ((name, fields),) = lines_of(caplog.records)
    assert (name, fields["mode"]) == ("would_throttle", DELAY)


def test_a_delay_is_bounded() -> None:
    scene = Scene("delay")
    delay = scene.leaves_debt(Reply.LATE, wait_ns=60 * NS_PER_SECOND)
    assert delay is not None
    assert (delay.throttle_time_ms, delay.until_ns) == (5_000, scene.now_ns + 5 * NS_PER_SECOND)


def test_a_debt_is_that_of_the_frame_s_client() -> None:
    """Though the connection has another client id by the time that its response arrives."""
    scene = Scene()
    before = scene.who.client
    scene.who.identify("another", 0)
    scene.measures.debt_left(scene.who, before, scene.limit, WAIT_NS, Reply.NOTICE, scene.now_ns, is_counted=False)
    assert scene.throttled == {("etl", NAME, NOTIFY): 1}


@pytest.mark.parametrize("mode", MODES)
def test_a_limit_with_its_own_mode(mode: str) -> None:
    scene = Scene("auto")
    for reply in Reply:
        scene.limit.mode = mode
        assert scene.measures.mode_of(scene.limit, reply) == MEASURES[mode, reply]
        scene.limit.mode = None
        assert scene.measures.mode_of(scene.limit, reply) == MEASURES["auto", reply]


# ---- the soft mark


def soft(mode: str, burst_seconds: str, spent: int, reply: Reply = Reply.NOTICE, *, dry_run: bool = False) -> Scene:
    """1 MB/s, of whose burst so much is used up."""
    quota = parse_spec(f"client-id=etl,producer_byte_rate=1MB,burst_seconds={burst_seconds}")
    scene = Scene(mode, dry_run=dry_run, quota=quota)
    scene.limit.algorithm.record(spent, scene.now_ns)
    scene.measures.soft(scene.who, [scene.limit], reply, scene.now_ns)
    return scene


@pytest.mark.parametrize(
    ("burst_seconds", "spent", "told_ms"),
    [("0.1", 79_000, 0), ("0.1", 81_000, 1), ("0.1", 100_000, 20), ("0.03", 25_000, 10), ("10", 100_000, 0)],
)
def test_a_notice_comes_before_the_debt(burst_seconds: str, spent: int, told_ms: int) -> None:
    """With less than 20 ms of the rate left, at most half of the burst: the wait until there is as much again."""
    scene = soft("auto", burst_seconds, spent)
    assert scene.told_ms == (told_ms, 0)
    assert scene.world.metrics.entities.throttle_reasons[SOFT] == (told_ms > 0)
    assert scene.throttled == ({("etl", NAME, NOTIFY): 1} if told_ms else {})


@pytest.mark.parametrize(
    ("mode", "reply", "dry_run"),
    [
        ("pause", Reply.NOTICE, False),
        ("delay", Reply.NOTICE, False),
        ("notify", Reply.LATE, False),
        ("notify", Reply.NONE, False),
        ("notify", Reply.NOTICE, True),
    ],
)
def test_no_notice_before_the_debt(mode: str, reply: Reply, dry_run: bool) -> None:
    scene = soft(mode, "0.1", 100_000, reply, dry_run=dry_run)
    assert scene.told_ms == (0, 0)
    assert scene.throttled == {}


def test_the_longest_of_several_waits_counts() -> None:
    scene = soft("auto", "0.1", 90_000)
    longer = soft("auto", "0.1", 100_000).limit
    scene.measures.soft(scene.who, [scene.limit, longer, scene.limit], Reply.NOTICE, scene.now_ns)
    assert scene.who.notice.until_ns == scene.now_ns + SOFT_NS
    longer.mode = PAUSE
    scene.measures.soft(scene.who, [scene.limit, longer], Reply.NOTICE, scene.now_ns)
    assert scene.world.metrics.entities.throttle_reasons[SOFT] == 3, "each request once"


# ---- control requests


@is_dry_run
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_counted", [False, True])
def test_debt_of_request_rate(mode: str, is_counted: bool, dry_run: bool) -> None:
    scene = Scene(mode, dry_run=dry_run)
    scene.measures.on_requests_debt(scene.who, scene.decision(), scene.now_ns, is_counted=is_counted)
    is_quiet = mode == "pause"
    assert scene.told_ms == (0, 0 if is_quiet or dry_run else 2_000)
    assert scene.throttled == ({} if is_counted or is_quiet else {("etl", NAME, NOTIFY): 1})
    assert scene.world.metrics.entities.throttle_reasons[DEBT] == (not is_counted and not is_quiet)


@pytest.mark.parametrize("mode", MODES)
def test_without_debt_of_request_rate_there_is_no_measure(mode: str) -> None:
    scene = Scene(mode)
    scene.measures.on_requests_debt(scene.who, Decision(True, 0, None, ()), scene.now_ns, is_counted=False)
    assert (scene.told_ms, scene.throttled) == ((0, 0), {})


# ---- reports


def test_throttled_connections_are_listed() -> None:
    scene = Scene()
    now_ns = scene.now_ns
    scene.limit.algorithm.record(4_000, now_ns)
    who, noticed = identity(scene.world), identity(scene.world)
    noticed.notice.extend(scene.limit, now_ns + 2 * NS_PER_SECOND, DEBT)
    verdict = Verdict(True, 3 * NS_PER_SECOND, limit_name="connection_creation_rate", limit_value=5)
    since_ns = now_ns - NS_PER_SECOND
    hold = scene.limit, since_ns, 100
    listed = [
        throttle_status(who, None, hold, "", now_ns),
        throttle_status(who, Delay(scene.limit, since_ns, 3_000, is_shown=True), hold, "", now_ns),
        throttle_status(noticed, None, None, "", now_ns),
        throttle_status(noticed, None, None, "memory", now_ns),
        connection_status(who.client, verdict, since_ns, now_ns),
    ]
    assert [
        each and (each.mode, each.limit, each.reason, each.waited_seconds, each.remaining_seconds) for each in listed
    ] == [
        (PAUSE, NAME, DEBT, 1.0, 4.0),
        (DELAY, NAME, DEBT, 1.0, 2.0),
        (NOTIFY, NAME, DEBT, 0.0, 2.0),
        (PAUSE, "max_buffered_bytes", "memory", 0.0, 0.0),
        (PAUSE, "connection_creation_rate", DEBT, 1.0, 2.0),
    ]
    assert throttle_status(who, None, None, "", now_ns) is None
    assert connection_status(who.client, Verdict(True, 0), since_ns, now_ns) is None


def test_the_remaining_time_includes_the_queue() -> None:
    scene = Scene()
    scene.limit.algorithm.record(4_000, scene.now_ns)
    for number in range(4):
        scene.limit.enqueue(number, 2_000)
    hold = scene.limit, scene.now_ns, 2_000
    listed = [throttle_status(scene.who, None, hold, "", scene.now_ns) for _ in range(4)]
    assert [each and each.remaining_seconds for each in listed] == [4.0 + 3 * 2.0] * 4


def test_a_connection_that_waits_is_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    verdict = Verdict(True, 3 * NS_PER_SECOND, limit_name="connection_creation_rate", limit_value=5)
    scene.world.report.connection_waited(scene.who.client, verdict, scene.now_ns)
    assert scene.throttled == {("etl", "connection_creation_rate", PAUSE): 1}
    ((name, fields),) = lines_of(caplog.records)
    assert name == "throttled"
    assert (fields["limit"], fields["throttle_ms"]) == ("connection_creation_rate", 3_000)
