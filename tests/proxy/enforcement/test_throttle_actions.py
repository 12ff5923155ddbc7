"""From debt to throttle actions: what the client receives, what is held, and what is reported, by each mode."""

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.config.config import EnforcementOptions
from proxy.enforcement.delay import Delay
from proxy.enforcement.identity import Client, Identity
from proxy.enforcement.report import DEBT, DELAY, NOTIFY, PAUSE, SOFT, TOTAL, connection_status, throttle_status
from proxy.enforcement.throttle_actions import LONGEST_NOTICE_OF_SHARE_NS, Reply, ThrottleActions
from quotas.admission.limit import SOFT_NS, Limit
from quotas.algorithms.token_bucket import TokenBucket
from quotas.connections import ConnectionVerdict
from quotas.entity import Entity, EntityKind, Named
from quotas.limit_options import LimitOptions
from quotas.modes import MODES
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import lines_of, without_burst
from tests.proxy.streams.pair import World

pytestmark = pytest.mark.claim(
    "fleet",
    "a client that starts is told of the wait at the share that is being claimed; what counts is what it was told",
)

NS_PER_MS = 1_000_000
NS_PER_SECOND = 1_000_000_000
QUOTA = without_burst("client-id=etl,producer_byte_rate=1000,request_rate=10")
NAME = "producer_byte_rate"
WAIT_NS = 2 * NS_PER_SECOND


class Scene:
    """One client, its limit, and the throttle actions of a mode."""

    def __init__(self, mode: str = "auto", *, dry_run: bool = False, quota: Any = QUOTA) -> None:
        self.world = World([quota], enforcement=EnforcementOptions(throttle_mode=mode, dry_run=dry_run))
        self.actions: ThrottleActions = self.world.context.actions
        self.who = identity(self.world)
        self.limit = self.who.limits.produce.limits[0]
        self.now_ns = self.world.clock()

    def leaves_debt(
        self, reply: Reply = Reply.NOTICE, *, wait_ns: int = WAIT_NS, is_counted: bool = False
    ) -> Delay | None:
        """A data frame leaves debt."""
        who = self.who
        return self.actions.debt_left(who, who.client, self.limit, wait_ns, reply, self.now_ns, is_counted=is_counted)

    def finds_debt(self, size: int = 100) -> None:
        """A data frame finds debt for the first time."""
        who = self.who
        self.actions.found_debt(who, who.client, self.limit, WAIT_NS, size, ("rows",), self.now_ns)

    def is_held(self, reply: Reply = Reply.NOTICE) -> None:
        """A data frame waits, with 100 units in the queue."""
        self.actions.notify_held(self.who, self.limit, WAIT_NS, reply, 100, self.now_ns)

    def share(self) -> None:
        """The limit is a share of a fleet's, which is being claimed."""
        rate = self.limit.algorithm.rate
        whole = SimpleNamespace(wanted=int, share=rate, rate=1_000, fleet="etl", members=2)
        self.limit.whole = cast("Any", whole)

    @property
    def told_ms(self) -> tuple[int, int]:
        """The throttle times of data responses, and of others."""
        notices = self.who.notice, self.who.request_notice
        return notices[0].throttle_time_ms(self.now_ns), notices[1].throttle_time_ms(self.now_ns)

    @property
    def throttled(self) -> dict[tuple[str, str, str], int]:
        return self.world.throttled()


def identity(world: World, client_id: str = "etl", peer: str = "peer:1") -> Identity:
    who = Identity(world.config, world.registry, world.metrics.entities, peer)
    who.identify(client_id, 0)
    return who


#: What each mode does where a request leaves debt, by what its response can do: NOTICE, LATE, NONE.
ACTIONS = {
    (mode, reply): action
    for mode, actions in {
        "notify": (NOTIFY, NOTIFY, PAUSE),
        "delay": (DELAY, DELAY, PAUSE),
        "pause": (PAUSE, PAUSE, PAUSE),
        "auto": (NOTIFY, DELAY, PAUSE),
    }.items()
    for reply, action in zip(Reply, actions, strict=True)
}
each_measure = pytest.mark.parametrize(("mode", "reply"), ACTIONS)
is_dry_run = pytest.mark.parametrize("dry_run", [False, True])


# ---- data frames
@is_dry_run
@pytest.mark.parametrize("is_counted", [False, True])
@each_measure
def test_a_frame_that_leaves_debt(mode: str, reply: Reply, is_counted: bool, dry_run: bool) -> None:
    scene = Scene(mode, dry_run=dry_run)
    scene.limit.enqueue("other", 500)  # half a second of this limit
    delay = scene.leaves_debt(reply, is_counted=is_counted)
    measure = ACTIONS[mode, reply]
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
    one, other = scene.who.client, identity(scene.world, peer="b:2").client
    caplog.set_level(logging.WARNING)

    def line_at(seconds: float, client: Client = one) -> tuple[object, ...]:
        """A frame is held: of its line, what it has of the time before."""
        caplog.clear()
        report.held(client, limit, WAIT_NS, 0, (), start_ns + int(seconds * NS_PER_SECOND))
        [(name, fields)] = lines_of(caplog.records)
        assert name == "throttled"
        assert "suppressed" not in fields
        return tuple(fields.get(each) for each in ("held_seconds", "of", "connections"))

    assert line_at(0) == (None, None, None)
    for client, seconds, at in ((one, 2, 2), (other, 1.5, 2.5), (one, 1, 4.8)):  # until 2.5, and from 3.8 on
        report.released(client, limit, int(seconds * NS_PER_SECOND), start_ns + int(at * NS_PER_SECOND))
    assert line_at(5.1) == (3.5, 5.1, 2)
    assert line_at(15.1, other) == (0.0, 10.0, 1)
    report.throttled(one, limit, NOTIFY, DEBT, 5 * NS_PER_SECOND, 0, start_ns + 19 * NS_PER_SECOND)
    assert line_at(21.1) == (2.1, 6.0, 1), "of 5 s"
    assert line_at(31.1) == (2.9, 10.0, 1), "the rest"


def test_what_is_known_of_held_connections_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    report, limit = scene.world.report, scene.limit
    for number in range(1_500):
        client = Client(scene.world.registry, "", "", f"peer:{number}")
        other = Limit("request_rate", Entity(None, f"client-{number}"), TokenBucket(1))
        report.held(client, limit, 0, 0, (), scene.now_ns)
        report.still_held(client, other, 0, 0, "", scene.now_ns)
    assert len(report._held) <= 1_000
    assert max(len(each.peers) for each in report._held.values()) <= 1_000


@each_measure
def test_a_frame_that_is_held(mode: str, reply: Reply) -> None:
    """Responses to earlier requests contain the wait until it has passed: behind as much of each one that is queued,
    whatever that has announced.
    """
    scene = Scene(mode)
    scene.limit.enqueue("other", 50_000_000)
    scene.limit.enqueue("small", 30)
    scene.is_held(reply)
    assert scene.told_ms == (2_300 if ACTIONS[mode, reply] == NOTIFY else 0, 0)
    assert scene.throttled == {}


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("reply", [Reply.NOTICE, Reply.LATE])
def test_what_the_client_was_told_counts(reply: Reply, is_shared: bool, caplog: pytest.LogCaptureFixture) -> None:
    """And for how long its response was late: not the debt, which may be hours. Never long for a part of a fleet's
    limit: the client would send nothing meanwhile, and the part would go to others.
    """
    scene = Scene()
    if is_shared:
        scene.share()
    delay = scene.leaves_debt(reply, wait_ns=1_000 * NS_PER_SECOND)
    told_ms = LONGEST_NOTICE_OF_SHARE_NS // NS_PER_MS if is_shared else EnforcementOptions().max_throttle_ms
    assert (delay.throttle_time_ms if delay else scene.told_ms[0]) == told_ms
    if delay is not None:
        assert delay.until_ns == scene.now_ns + told_ms * NS_PER_MS
    [histogram] = scene.who.entity.throttles.values()
    assert histogram.sum_seconds == told_ms / 1_000
    [(_, line)] = lines_of(caplog.records)
    assert (line["throttle_ms"], line["debt_seconds"]) == (told_ms, 1_000)


def test_nor_does_one_that_is_held_or_a_control_request_wait_for_a_share_that_is_being_claimed() -> None:
    assert WAIT_NS > LONGEST_NOTICE_OF_SHARE_NS
    told_ms = LONGEST_NOTICE_OF_SHARE_NS // NS_PER_MS
    scene = Scene("notify")
    scene.share()
    scene.is_held()
    assert scene.told_ms == (told_ms, 0)
    scene.actions.on_requests_debt(scene.who, scene.limit, WAIT_NS, scene.now_ns, is_counted=False)
    assert scene.told_ms == (told_ms, told_ms)


def test_an_error_for_a_topic_is_no_notice_for_all() -> None:
    scene = Scene()
    topic = Named(EntityKind.TOPIC, "rows")
    scene.limit = Limit("bytes_in_rate", topic, scene.limit.algorithm, options=LimitOptions(rejects=True))
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


# ---- the soft mark
def soft(mode: str, burst_seconds: str, spent: int, reply: Reply = Reply.NOTICE, *, dry_run: bool = False) -> Scene:
    """1 MB/s, of whose burst so much is used up."""
    quota = parse_spec(f"client-id=etl,producer_byte_rate=1MB,burst_seconds={burst_seconds}")
    scene = Scene(mode, dry_run=dry_run, quota=quota)
    scene.limit.algorithm.record(spent, scene.now_ns)
    scene.actions.soft(scene.who, [scene.limit], reply, scene.now_ns)
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


@is_dry_run
@each_measure
def test_which_client_is_told_before_the_debt(mode: str, reply: Reply, dry_run: bool) -> None:
    """One that waits for it."""
    scene = soft(mode, "0.1", 100_000, reply, dry_run=dry_run)
    is_told = ACTIONS[mode, reply] == NOTIFY and reply is Reply.NOTICE and not dry_run
    assert (scene.told_ms, bool(scene.throttled)) == ((20 * is_told, 0), is_told)


def test_the_longest_of_several_waits_counts() -> None:
    scene = soft("auto", "0.1", 90_000)
    longer = soft("auto", "0.1", 100_000).limit
    scene.actions.soft(scene.who, [scene.limit, longer, scene.limit], Reply.NOTICE, scene.now_ns)
    assert scene.who.notice.until_ns == scene.now_ns + SOFT_NS
    longer.options = LimitOptions(mode=PAUSE)
    scene.actions.soft(scene.who, [scene.limit, longer], Reply.NOTICE, scene.now_ns)
    assert scene.world.metrics.entities.throttle_reasons[SOFT] == 3, "each request once"


# ---- control requests
@is_dry_run
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_counted", [False, True])
def test_debt_of_request_rate(mode: str, is_counted: bool, dry_run: bool) -> None:
    scene = Scene(mode, dry_run=dry_run)
    scene.actions.on_requests_debt(scene.who, scene.limit, WAIT_NS, scene.now_ns, is_counted=is_counted)
    is_quiet = mode == "pause"
    assert scene.told_ms == (0, 0 if is_quiet or dry_run else 2_000)
    assert scene.throttled == ({} if is_counted or is_quiet else {("etl", NAME, NOTIFY): 1})
    assert scene.world.metrics.entities.throttle_reasons[DEBT] == (not is_counted and not is_quiet)


# ---- reports
def test_throttled_connections_are_listed() -> None:
    scene = Scene()
    now_ns = scene.now_ns
    scene.limit.algorithm.record(4_000, now_ns)
    scene.limit.enqueue("other", 2_000)
    scene.limit.enqueue("its own", 100)
    who, noticed = identity(scene.world), identity(scene.world)
    noticed.notice.extend(scene.limit, now_ns + 2 * NS_PER_SECOND, DEBT)
    verdict = ConnectionVerdict(True, 3 * NS_PER_SECOND, limit_name="connection_creation_rate", limit_value=5)
    since_ns = now_ns - NS_PER_SECOND
    hold, delay = (scene.limit, since_ns, 100), Delay(scene.limit, since_ns, 3_000, is_shown=True)
    listed = {
        throttle_status(who, None, hold, "", now_ns): (PAUSE, NAME, DEBT, 1.0, 4.0 + 0.1),  # as much of the other one
        throttle_status(who, delay, hold, "", now_ns): (DELAY, NAME, DEBT, 1.0, 2.0),
        throttle_status(noticed, None, None, "", now_ns): (NOTIFY, NAME, DEBT, 0.0, 2.0),
        throttle_status(noticed, None, None, "memory", now_ns): (PAUSE, "max_buffered_bytes", "memory", 0.0, 0.0),
        connection_status(who.client, verdict, since_ns, now_ns): (PAUSE, "connection_creation_rate", DEBT, 1.0, 2.0),
    }
    for each, expected in listed.items():
        assert each is not None
        assert (each.mode, each.limit, each.reason, each.waited_seconds, each.remaining_seconds) == expected
    assert throttle_status(who, None, None, "", now_ns) is None
    assert connection_status(who.client, ConnectionVerdict(True, 0), since_ns, now_ns) is None


def test_a_connection_that_waits_is_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    verdict = ConnectionVerdict(True, 3 * NS_PER_SECOND, limit_name="connection_creation_rate", limit_value=5)
    scene.world.report.connection_waited(scene.who.client, verdict, scene.now_ns)
    assert scene.throttled == {("etl", "connection_creation_rate", PAUSE): 1}
    ((name, fields),) = lines_of(caplog.records)
    assert name == "throttled"
    assert (fields["limit"], fields["throttle_ms"]) == ("connection_creation_rate", 3_000)
