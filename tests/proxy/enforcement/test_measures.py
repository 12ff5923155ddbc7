"""From debt to measures: what the client receives, what is held, and what is reported, by each mode."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from proxy.config.config import EnforcementOptions
from proxy.enforcement.data_frame import DataFrame
from proxy.enforcement.holds import Delay
from proxy.enforcement.identity import Identity
from proxy.enforcement.measures import Measures, Reply
from proxy.enforcement.report import DEBT, DELAY, NOTIFY, PAUSE, REJECT, SOFT, TOTAL, connection_status, throttle_status
from quotas.admission.decision import Decision
from quotas.admission.limit import SOFT_NS, Limit
from quotas.connections import Verdict
from quotas.modes import MODES
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import lines_of, without_burst
from tests.proxy.streams.pair import World

NS_PER_MS = 1_000_000
NS_PER_SECOND = 1_000_000_000
QUOTA = without_burst("client-id=etl,producer_byte_rate=1000,request_rate=10")
NAME = "producer_byte_rate"


class Scene:
    """One client, its limit, and the measures of a mode."""

    def __init__(self, mode: str = "auto", *, dry_run: bool = False, quota: Any = QUOTA) -> None:
        self.world = World([quota], enforcement=EnforcementOptions(throttle_mode=mode, dry_run=dry_run))
        self.measures: Measures = self.world.context.measures
        self.who = identity(self.world)
        self.limit = self.who.limits.produce.limits[0]
        self.now_ns = self.world.clock()

    def decision(self, wait_ns: int = 2 * NS_PER_SECOND, *, admitted: bool = True) -> Decision:
        return Decision(admitted, wait_ns, self.limit, (self.limit,))

    def after(self, reply: Reply = Reply.NOTICE, *, wait_ns: int = 2 * NS_PER_SECOND, was_held: bool = False) -> Any:
        """A data frame leaves debt."""
        decision = self.decision(wait_ns)
        return self.measures.after(self.who, self.who.client, decision, reply, self.now_ns, was_held=was_held)

    def on_debt(self, reply: Reply = Reply.NOTICE, *, again: bool = False) -> bool:
        """A data frame of 100 units finds debt."""
        decision = self.decision(admitted=False)
        return self.measures.on_debt(self.who, decision, reply, 100, self.now_ns, again=again)

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


def held_by(limit: Limit, units: int = 100, since_ns: int = 0) -> DataFrame:
    frame = DataFrame(units, answered=True)
    frame.hold(limit, units, since_ns)
    return frame


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
@pytest.mark.parametrize("was_held", [False, True])
@each_measure
def test_a_frame_that_leaves_debt(mode: str, reply: Reply, was_held: bool, dry_run: bool) -> None:
    scene = Scene(mode, dry_run=dry_run)
    scene.limit.enqueue("other", 500)  # half a second of this limit
    delay = scene.after(reply, was_held=was_held)
    measure = MEASURES[mode, reply]
    assert scene.told_ms == (2_500 if measure == NOTIFY and not dry_run else 0, 0)
    assert (delay is not None) == (measure == DELAY and not dry_run)
    if delay is not None:
        assert (delay.limit, delay.until_ns) == (scene.limit, scene.now_ns + 2_500 * NS_PER_MS)
        assert delay.is_shown == (reply is Reply.LATE), "other clients would wait for it again"
    assert scene.throttled == ({} if was_held or measure == PAUSE else {("etl", NAME, measure): 1})


@is_dry_run
@each_measure
def test_a_frame_that_finds_debt(mode: str, reply: Reply, dry_run: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Held: logged when that begins, and counted at its end. In a dry run it passes, and is counted at once."""
    scene = Scene(mode, dry_run=dry_run)
    caplog.set_level(logging.WARNING)
    for again in (False, True):
        assert scene.on_debt(reply, again=again) != dry_run
    ((name, fields),) = lines_of(caplog.records)
    assert (name, fields["mode"]) == ("would_throttle" if dry_run else "throttled", PAUSE)
    assert scene.throttled == ({("etl", NAME, PAUSE): 1} if dry_run else {})
    assert scene.told_ms == (2_100 if MEASURES[mode, reply] == NOTIFY and not dry_run else 0, 0), "for this frame, too"
    scene.world.report.released(scene.who.client, scene.limit, 3 * NS_PER_SECOND, scene.now_ns)
    assert scene.who.entity.throttles[NAME, PAUSE].sum_seconds == pytest.approx(5 if dry_run else 3)


def test_an_error_for_a_topic_is_no_notice_for_all() -> None:
    scene = Scene()
    scene.limit.rejects = True
    assert scene.on_debt()
    assert scene.told_ms == (0, 0)


def test_data_that_finds_debt_during_a_notice_is_counted() -> None:
    """Each frame once, however often it is held, and if it was on its way, too."""
    scene = Scene()
    scene.on_debt()
    assert scene.who.entity.data_during_notice == 0, "there was no notice"
    scene.on_debt(again=True)
    assert scene.who.entity.data_during_notice == 0
    scene.on_debt()
    assert scene.who.entity.data_during_notice == 1
    scene.now_ns = scene.who.notice.until_ns
    scene.on_debt()
    assert scene.who.entity.data_during_notice == 1, "the notice was over"


def test_the_limit_of_the_whole_proxy_is_a_reason() -> None:
    scene = Scene(quota=without_burst("total,producer_byte_rate=1000"))
    scene.after()
    assert scene.who.notice.reason == TOTAL
    assert scene.world.metrics.entities.throttle_reasons[TOTAL] == 1


def test_a_change_applies_at_once(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene("auto")
    scene.measures.change("delay", enforces=False)
    assert scene.after() is None
    scene.measures.change("delay", enforces=True)
    assert scene.after() is not None
    ((name, fields),) = lines_of(caplog.records)
    assert (name, fields["mode"]) == ("would_throttle", DELAY)


def test_a_delay_is_bounded() -> None:
    scene = Scene("delay")
    delay = scene.after(Reply.LATE, wait_ns=60 * NS_PER_SECOND)
    assert (delay.throttle_time_ms, delay.until_ns) == (5_000, scene.now_ns + 5 * NS_PER_SECOND)


def test_a_debt_is_that_of_the_frame_s_client() -> None:
    """Though the connection has another client id by the time that its response arrives."""
    scene = Scene()
    before = scene.who.client
    scene.who.identify("another", 0)
    scene.measures.after(scene.who, before, scene.decision(), Reply.NOTICE, scene.now_ns, was_held=False)
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


@is_dry_run
@pytest.mark.parametrize("mode", [NOTIFY, REJECT])
def test_a_notice_for_one_response(mode: str, dry_run: bool) -> None:
    scene = Scene(dry_run=dry_run)
    until_ns = scene.measures.notice_until_ns(scene.who.client, scene.decision(), mode, scene.now_ns)
    assert until_ns == (0 if dry_run else scene.now_ns + 2 * NS_PER_SECOND)
    assert scene.told_ms == (0, 0)
    assert scene.throttled == {("etl", NAME, mode): 1}


@pytest.mark.parametrize("mode", MODES)
def test_without_a_limit_there_is_no_measure(mode: str) -> None:
    scene = Scene(mode)
    nothing = Decision(True, 0, None, ())
    assert scene.measures.after(scene.who, scene.who.client, nothing, Reply.NOTICE, 0, was_held=False) is None
    assert not scene.measures.on_debt(scene.who, nothing, Reply.NOTICE, 0, 0, again=False)
    scene.measures.on_requests_debt(scene.who, nothing, scene.now_ns, is_counted=False)
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
    listed = [
        throttle_status(who, held_by(scene.limit, since_ns=since_ns), "", now_ns),
        throttle_status(who, Delay(scene.limit, since_ns, 3_000, is_shown=True), "", now_ns),
        throttle_status(noticed, None, "", now_ns),
        throttle_status(noticed, None, "memory", now_ns),
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
    assert throttle_status(who, None, "", now_ns) is None
    assert connection_status(who.client, Verdict(True, 0), since_ns, now_ns) is None


def test_the_remaining_time_includes_the_queue() -> None:
    scene = Scene()
    scene.limit.algorithm.record(4_000, scene.now_ns)
    frames = [held_by(scene.limit, 2_000, scene.now_ns) for _ in range(4)]
    for frame in frames:
        scene.limit.enqueue(frame, frame.units)
    listed = [throttle_status(scene.who, frame, "", scene.now_ns) for frame in frames]
    assert [each and each.remaining_seconds for each in listed] == [4.0 + 3 * 2.0] * 4


def test_a_connection_that_waits_is_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    verdict = Verdict(True, 3 * NS_PER_SECOND, limit_name="connection_creation_rate", limit_value=5)
    scene.world.report.connection_waited(scene.who.client, verdict, scene.now_ns)
    assert scene.throttled == {("etl", "connection_creation_rate", PAUSE): 1}
    ((name, fields),) = lines_of(caplog.records)
    assert name == "throttled"
    assert (fields["limit"], fields["throttle_ms"]) == ("connection_creation_rate", 3_000)
