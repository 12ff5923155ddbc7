"""From debt to measures: who the client is, what it is told, what is held, and what is reported, by each mode."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.config import EnforcementOptions, QuotaOptions
from proxy.enforcement.holds import Delay, Hold, Holds
from proxy.enforcement.identity import ANONYMOUS, Identity, Notice, throttle_time_ms
from proxy.enforcement.policies.policy import Policy, Reply
from proxy.enforcement.policies.table import DRY_RUN, policy_of
from proxy.enforcement.report import DEBT, DELAY, NOTIFY, PAUSE, REJECT, Waiting, waiting_clients
from quotas.admission.decision import Decision
from quotas.admission.limit import Limit, Ticket
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
    """One client, its limit, and the policy of a mode."""

    def __init__(self, mode: str = "auto", **options: Any) -> None:
        self.world = World([QUOTA], enforcement=EnforcementOptions(dry_run=mode == "dry-run"), **options)
        self.policy: Policy = policy_of(mode, self.world.report)
        self.who = identity(self.world)
        self.limit = self.who.limits.produce.limits[0]
        self.now_ns = self.world.clock()

    def decision(self, wait_ns: int = 2 * NS_PER_SECOND, *, admitted: bool = True) -> Decision:
        return Decision(admitted, wait_ns, self.limit, (self.limit,))

    @property
    def throttled(self) -> dict[tuple[str, str, str], int]:
        return self.world.throttled()


def identity(world: World, client_id: str = "etl") -> Identity:
    who = Identity(world.config, world.registry, world.metrics.entities, "peer:1")
    who.identify(client_id, 0)
    return who


def hold_of(limit: Limit, size: int = 100, since_ns: int = 0) -> Hold:
    return Hold(limit, size, size, Ticket(), since_ns, answered=True)


# ---- policies


def test_each_mode_has_a_policy() -> None:
    world = World()
    assert {name: policy_of(name, world.report).enforces for name in (*MODES, DRY_RUN)} == {
        "auto": True,
        "notify": True,
        "delay": True,
        "pause": True,
        "dry-run": False,
    }


#: What each mode does where a request passes and leaves debt, by what its response can do.
MEASURES = {
    ("notify", Reply.NOTICE): NOTIFY,
    ("notify", Reply.LATE): NOTIFY,
    ("notify", Reply.NONE): None,
    ("delay", Reply.NOTICE): DELAY,
    ("delay", Reply.LATE): DELAY,
    ("delay", Reply.NONE): None,
    ("pause", Reply.NOTICE): None,
    ("pause", Reply.LATE): None,
    ("pause", Reply.NONE): None,
    ("auto", Reply.NOTICE): NOTIFY,
    ("auto", Reply.LATE): DELAY,
    ("auto", Reply.NONE): None,
}


def test_each_mode_has_a_measure_for_each_response() -> None:
    assert set(MEASURES) == {(mode, reply) for mode in MODES for reply in Reply}


@pytest.mark.parametrize("was_held", [False, True])
@pytest.mark.parametrize(("mode", "reply"), MEASURES)
def test_a_request_that_leaves_debt(mode: str, reply: Reply, was_held: bool) -> None:
    scene = Scene(mode)
    scene.limit.enqueue("other", 500)  # half a second of this limit
    delay = scene.policy.leaves_debt(scene.who, scene.decision(), reply, scene.now_ns, was_held=was_held)
    measure = MEASURES[mode, reply]
    assert scene.who.notice.throttle_time_ms(scene.now_ns) == (2_500 if measure == NOTIFY else 0)
    assert (delay is not None) == (measure == DELAY)
    if delay is not None:
        assert (delay.limit, delay.until_ns) == (scene.limit, scene.now_ns + 2_500 * NS_PER_MS)
        assert delay.is_shown == (reply is Reply.LATE), "other clients would wait for it again"
    assert scene.who.request_notice.until_ns == 0
    assert scene.throttled == ({} if was_held or measure is None else {("etl", NAME, measure): 1})


def test_a_delay_is_bounded() -> None:
    scene = Scene("delay")
    decision = scene.decision(60 * NS_PER_SECOND)
    delay = scene.policy.leaves_debt(scene.who, decision, Reply.LATE, scene.now_ns, was_held=False)
    assert delay is not None
    assert (delay.throttle_time_ms, delay.until_ns) == (5_000, scene.now_ns + 5 * NS_PER_SECOND)


@pytest.mark.parametrize("mode", ["auto", *MODES])
def test_a_limit_with_its_own_mode(mode: str) -> None:
    """The mode of the limit in debt counts, else that of the proxy."""
    scene = Scene("auto")
    scene.limit.mode = mode
    assert scene.policy.of(scene.limit) is scene.policy.modes[mode]
    scene.limit.mode = None
    assert scene.policy.of(scene.limit) is scene.policy
    assert scene.policy.of(None) is scene.policy
    dry_run = scene.policy.modes[DRY_RUN]
    scene.limit.mode = mode
    assert dry_run.of(scene.limit) is dry_run


@pytest.mark.parametrize("mode", MODES)
class TestEachMode:
    def test_holds(self, mode: str, caplog: pytest.LogCaptureFixture) -> None:
        """Counted when the hold ends; logged when it begins, and not again."""
        scene = Scene(mode)
        caplog.set_level(logging.WARNING)
        for again in (False, True):
            assert scene.policy.holds(
                scene.who, scene.decision(admitted=False), Reply.NOTICE, 0, scene.now_ns, again=again
            )
        assert scene.throttled == {}
        assert [fields["mode"] for _, fields in lines_of(caplog.records)] == [PAUSE]

    @pytest.mark.parametrize("is_counted", [False, True])
    def test_overdraws_requests(self, mode: str, is_counted: bool) -> None:
        scene = Scene(mode)
        scene.policy.overdraws_requests(scene.who, scene.decision(), scene.now_ns, is_counted=is_counted)
        is_quiet = mode == "pause"
        assert scene.who.request_notice.throttle_time_ms(scene.now_ns) == (0 if is_quiet else 2_000)
        assert scene.who.notice.until_ns == 0
        assert scene.throttled == ({} if is_counted or is_quiet else {("etl", NAME, NOTIFY): 1})

    @pytest.mark.parametrize("reported", [NOTIFY, REJECT])
    def test_notice_until(self, mode: str, reported: str) -> None:
        scene = Scene(mode)
        until_ns = scene.policy.notice_until_ns(scene.who, scene.decision(), reported, scene.now_ns)
        assert until_ns == scene.now_ns + 2 * NS_PER_SECOND
        assert scene.who.notice.until_ns == 0, "it is for one response"
        assert scene.throttled == {("etl", NAME, reported): 1}

    def test_released(self, mode: str) -> None:
        scene = Scene(mode)
        hold = hold_of(scene.limit, since_ns=scene.now_ns - 3 * NS_PER_SECOND)
        scene.policy.released(scene.who, hold, scene.now_ns)
        assert scene.throttled == {("etl", NAME, PAUSE): 1}
        histogram = scene.who.entity.throttles[NAME, PAUSE]
        assert histogram.sum_seconds == pytest.approx(3)


class TestDryRun:
    def test_holds(self) -> None:
        scene = Scene("dry-run")
        assert not scene.policy.holds(
            scene.who, scene.decision(admitted=False), Reply.NOTICE, 0, scene.now_ns, again=False
        )
        assert scene.throttled == {("etl", NAME, PAUSE): 1}
        untouched(scene)

    def test_leaves_debt(self) -> None:
        scene = Scene("dry-run")
        scene.policy.leaves_debt(scene.who, scene.decision(), Reply.NOTICE, scene.now_ns, was_held=False)
        assert scene.throttled == {("etl", NAME, NOTIFY): 1}
        untouched(scene)

    def test_a_request_counts_once(self) -> None:
        scene = Scene("dry-run")
        scene.policy.leaves_debt(scene.who, scene.decision(), Reply.NOTICE, scene.now_ns, was_held=False)
        scene.policy.leaves_debt(scene.who, scene.decision(), Reply.NOTICE, scene.now_ns, was_held=True)
        assert scene.throttled == {("etl", NAME, NOTIFY): 1}

    @pytest.mark.parametrize("is_counted", [False, True])
    def test_overdraws_requests(self, is_counted: bool) -> None:
        scene = Scene("dry-run")
        scene.policy.overdraws_requests(scene.who, scene.decision(), scene.now_ns, is_counted=is_counted)
        assert scene.throttled == ({} if is_counted else {("etl", NAME, NOTIFY): 1})
        untouched(scene)

    def test_notice_until(self) -> None:
        scene = Scene("dry-run")
        assert scene.policy.notice_until_ns(scene.who, scene.decision(), REJECT, scene.now_ns) == 0
        assert scene.throttled == {("etl", NAME, REJECT): 1}
        untouched(scene)

    def test_its_lines_say_would(self, caplog: pytest.LogCaptureFixture) -> None:
        scene = Scene("dry-run")
        scene.policy.holds(scene.who, scene.decision(admitted=False), Reply.NOTICE, 0, scene.now_ns, again=False)
        assert [name for name, _ in lines_of(caplog.records)] == ["would_throttle"]


def untouched(scene: Scene) -> None:
    """Nothing that a client could notice has changed."""
    assert scene.who.notice.until_ns == scene.who.request_notice.until_ns == 0
    assert scene.limit.debt_ns(scene.now_ns) == 0
    assert not scene.limit.waiters.waiting


@pytest.mark.parametrize("mode", [*MODES, DRY_RUN])
def test_without_a_limit_there_is_no_notice(mode: str) -> None:
    scene = Scene(mode)
    nothing = Decision(True, 0, None, ())
    scene.policy.leaves_debt(scene.who, nothing, Reply.NOTICE, scene.now_ns, was_held=False)
    scene.policy.overdraws_requests(scene.who, nothing, scene.now_ns, is_counted=False)
    assert scene.throttled == {}
    untouched(scene)


# ---- notices


@given(st.integers(-5_000_000_000, 50_000_000_000), st.integers(1, 30_000))
def test_a_throttle_time_is_rounded_up_and_bounded(wait_ns: int, most_ms: int) -> None:
    told_ms = throttle_time_ms(wait_ns, most_ms * NS_PER_MS)
    assert 0 <= told_ms <= most_ms
    if 0 < wait_ns <= most_ms * NS_PER_MS:
        assert (told_ms - 1) * NS_PER_MS < wait_ns <= told_ms * NS_PER_MS


def test_a_notice_keeps_the_longer_wait_and_ends() -> None:
    scene = Scene()
    notice = Notice(5_000)
    other = scene.who.limits.requests.limits[0]
    notice.extend(scene.limit, 3 * NS_PER_SECOND, DEBT)
    notice.extend(other, 2 * NS_PER_SECOND, DEBT)
    assert notice.limit is scene.limit
    notice.extend(other, 9 * NS_PER_SECOND, DEBT)
    assert notice.limit is other
    assert notice.throttle_time_ms(NS_PER_SECOND) == 5_000
    assert notice.throttle_time_ms(9 * NS_PER_SECOND - 1) == 1
    assert notice.throttle_time_ms(9 * NS_PER_SECOND) == 0
    assert notice.until_ns == 0


KINDS = [
    "client-id=etl,producer_byte_rate=100",
    "client-id=etl,consumer_byte_rate=100",
    "client-id=etl,request_rate=1",
    "client-id=etl,controller_mutation_rate=1",
    "user=ANONYMOUS,producer_ids_rate=2",
    "topic=rows,bytes_in_rate=100",
    "topic=rows,messages_in_rate=1",
    "total,producer_byte_rate=100",
    "total,messages_in_rate=1",
]


@pytest.mark.parametrize("spec", KINDS)
def test_a_reload_keeps_the_notice_of_any_limit_that_stays(spec: str) -> None:
    world = World([without_burst(spec)])
    who = identity(world)
    world.registry.topic("rows", world.clock())
    (limit,) = world.registry.limits_in_use()
    now_ns = world.clock()
    limit.algorithm.record(1_000, now_ns)
    debt_ns = limit.debt_ns(now_ns)
    assert debt_ns > NS_PER_SECOND
    who.notice.extend(limit, now_ns + debt_ns, DEBT)
    world.registry.replace([without_burst(spec), parse_spec("client-id=other,request_rate=7")], now_ns)
    assert who.generation != world.registry.generation
    who.refresh(now_ns)
    assert who.notice.until_ns == now_ns + debt_ns
    world.registry.replace([], now_ns)
    who.refresh(now_ns)
    assert who.notice.until_ns == 0, "a limit that is gone asks for nothing"


def test_a_raised_rate_shortens_a_notice_and_a_lower_one_does_not_prolong_it() -> None:
    scene = Scene()
    now_ns = scene.now_ns
    scene.limit.algorithm.record(4_000, now_ns)
    scene.who.notice.extend(scene.limit, now_ns + 4 * NS_PER_SECOND, DEBT)
    for rate, seconds in ((2_000, 2), (500, 2)):
        scene.world.registry.replace([without_burst(f"client-id=etl,producer_byte_rate={rate}")], now_ns)
        scene.who.refresh(now_ns)
        assert scene.who.notice.until_ns == now_ns + seconds * NS_PER_SECOND


# ---- identity


def test_a_client_is_unknown_until_its_first_request() -> None:
    world = World([QUOTA])
    who = Identity(world.config, world.registry, world.metrics.entities, "peer:1")
    assert (who.user, who.client_id, who.wire_client_id) == (ANONYMOUS, "", None)
    assert not who.limits.produce.limits
    world.registry.replace([], world.clock())
    who.refresh(world.clock())
    assert who.wire_client_id is None
    who.identify("etl", 0)
    assert (who.client_id, who.entity.client_id) == ("etl", "etl")


def test_a_client_counts_its_sessions() -> None:
    world = World([QUOTA])
    one, other = identity(world), identity(world)
    entity = one.entity
    assert (entity is other.entity, entity.sessions) == (True, 2)
    world.registry.replace([], world.clock())
    one.refresh(world.clock())
    assert entity.sessions == 2
    one.identify("another", 0)
    assert (entity.sessions, one.entity.sessions) == (1, 1)
    for _ in range(2):
        other.leave()
        other.refresh(world.clock())
    assert entity.sessions == 0


def test_a_fixed_client_id_and_principal_replace_what_clients_say() -> None:
    world = World(QuotaOptions(entries=(QUOTA,), client_id="etl", principal="alice"))
    who = identity(world, "whatever")
    assert (who.user, who.client_id, who.wire_client_id) == ("alice", "etl", "whatever")
    assert who.limits.produce.limits


# ---- holds


def test_holds_are_served_in_turn_when_the_debt_is_paid() -> None:
    scene = Scene()
    holds, limit, now_ns = Holds(), scene.limit, scene.now_ns
    limit.algorithm.record(1_000, now_ns)
    first, second = hold_of(limit), hold_of(limit)
    holds.add(first, 0)
    holds.add(second, 0)
    assert list(holds.limits) == list(holds.changed) == [limit]
    assert holds.next(limit, now_ns) is None
    assert holds.due_ns(limit, now_ns) == NS_PER_SECOND
    now_ns += NS_PER_SECOND
    assert holds.next(limit, now_ns) is first
    assert list(holds.limits) == [limit]
    assert holds.next(limit, now_ns) is second
    assert holds.limits == {}
    assert holds.next(limit, now_ns) is None
    assert holds.due_ns(limit, now_ns) is None


@given(st.lists(st.sampled_from(["add", "remove", "next", "all"]), max_size=40))
def test_limits_with_waiters_are_known(events: list[str]) -> None:
    scene = Scene()
    holds, limit = Holds(), scene.limit
    held: list[Hold] = []
    for each in events:
        if each == "add":
            held.append(hold_of(limit, 100 + len(held)))
            holds.add(held[-1], 0)
        elif each == "remove" and held:
            holds.remove(held.pop(len(held) // 2))
            assert limit in holds.changed or held
        elif each == "next":
            served = holds.next(limit, scene.now_ns)
            assert (served is None) == (not held)
            if served is not None:
                held.remove(served)
        elif each == "all":
            assert set(map(id, holds.take_all(limit))) == set(map(id, held))
            held.clear()
        assert bool(holds.limits) == bool(held)
        assert limit.waiters.waiting == len(held)
        assert limit.waiters.queued == sum(hold.units for hold in held)


def test_what_a_ticket_was_charged_is_given_back_and_told() -> None:
    scene = Scene()
    holds, limit = Holds(), scene.limit
    ticket = Ticket()
    ticket.turn = limit
    ticket.claim(500, scene.now_ns)
    assert limit.debt_ns(scene.now_ns) == NS_PER_SECOND // 2
    holds.add(hold_of(limit), 0)
    holds.changed.clear()
    holds.give_up(ticket, scene.now_ns)
    assert limit.debt_ns(scene.now_ns) == 0
    assert list(holds.changed) == [limit]


def test_credit_for_a_limit_without_waiters_changes_nothing() -> None:
    scene = Scene()
    holds = Holds()
    holds.credit_returned((scene.limit,))
    assert holds.changed == {}


# ---- reports


def test_what_waits_is_listed() -> None:
    scene = Scene()
    now_ns = scene.now_ns
    scene.limit.algorithm.record(4_000, now_ns)
    held, delayed, noticed, idle = (identity(scene.world) for _ in range(4))
    noticed.notice.extend(scene.limit, now_ns + 2 * NS_PER_SECOND, DEBT)
    verdict = Verdict(True, 3 * NS_PER_SECOND, limit_name="connection_creation_rate", limit_value=5)
    listed = waiting_clients(
        [
            Waiting(held, hold=hold_of(scene.limit, since_ns=now_ns - NS_PER_SECOND)),
            Waiting(delayed, delay=Delay(scene.limit, now_ns - NS_PER_SECOND, 3_000, is_shown=True)),
            Waiting(noticed),
            Waiting(idle),
            Waiting(idle, verdict=verdict, since_ns=now_ns - NS_PER_SECOND),
        ],
        now_ns,
    )
    assert [(each.mode, each.limit, each.waited_seconds, each.remaining_seconds) for each in listed] == [
        (PAUSE, NAME, 1.0, 4.0),
        (DELAY, NAME, 1.0, 2.0),
        (NOTIFY, NAME, 0.0, 2.0),
        (PAUSE, "connection_creation_rate", 1.0, 2.0),
    ]


def test_the_remaining_time_includes_the_queue() -> None:
    scene = Scene()
    scene.limit.algorithm.record(4_000, scene.now_ns)
    holds = [hold_of(scene.limit, since_ns=scene.now_ns) for _ in range(4)]
    for hold in holds:
        hold.units = 2_000
        scene.limit.enqueue(hold, hold.units)
    listed = waiting_clients([Waiting(identity(scene.world), hold=hold) for hold in holds], scene.now_ns)
    assert [each.remaining_seconds for each in listed] == [4.0 + 3 * 2.0] * 4


def test_a_connection_that_waits_is_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    verdict = Verdict(True, 3 * NS_PER_SECOND, limit_name="connection_creation_rate", limit_value=5)
    scene.world.report.connection_waited(scene.who, verdict, scene.now_ns)
    assert scene.throttled == {("etl", "connection_creation_rate", PAUSE): 1}
    ((name, fields),) = lines_of(caplog.records)
    assert name == "throttled"
    assert (fields["limit"], fields["throttle_ms"]) == ("connection_creation_rate", 3_000)
