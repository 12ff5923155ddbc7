"""Who may connect: so many at a time, and so many a second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quotas.algorithms.algorithm import ALGORITHMS, SAMPLED_WINDOW, TOKEN_BUCKET, AlgorithmSettings
from quotas.connections import ConnectionQuotas, Verdict, WaitingConnection
from quotas.entity import DEFAULT, TOTAL, AnyEntity, Kind, Named
from quotas.entry import QuotaEntry
from quotas.limit_kinds import CONNECTION_CREATION_RATE, CONNECTIONS
from quotas.registry.registry import Registry

SECOND = 1_000_000_000
MS = 1_000_000
MAX_WAIT_NS = 8 * SECOND
IP, OTHER_IP = "10.0.0.1", "10.0.0.2"
ANY_IP = Named(Kind.IP, DEFAULT)
LISTENER = ("bootstrap", "19092")
NINETY_THREE = Named(Kind.LISTENER, "9093")
TWO_SAMPLES = AlgorithmSettings(window_num=2)


def quotas_of(
    *limits: tuple[AnyEntity, str, int],
    algorithm: str | None = None,
    max_wait_ns: int = MAX_WAIT_NS,
    max_waiting: int = 100,
    share: float = 1,
) -> ConnectionQuotas:
    registry = Registry(entries_of(limits, algorithm), settings=TWO_SAMPLES, share=share)
    return ConnectionQuotas(registry, max_wait_ns, max_waiting)


def entries_of(limits: Iterable[tuple[AnyEntity, str, int]], algorithm: str | None) -> list[QuotaEntry]:
    by_entity: dict[AnyEntity, dict[str, int]] = {}
    for entity, name, value in limits:
        by_entity.setdefault(entity, {})[name] = value
    return [QuotaEntry(entity, own, algorithm=algorithm) for entity, own in by_entity.items()]


def arrive(quotas: ConnectionQuotas, ip: str, listener: tuple[str, ...], now_ns: int) -> Verdict:
    """The verdict on a new connection. One above `connections` goes away again."""
    return quotas.over(ip, listener) or quotas.open(ip, listener, now_ns)


def queue(quotas: ConnectionQuotas, ip: str, listener: tuple[str, ...], now_ns: int) -> WaitingConnection:
    """A new connection that waits for a slot."""
    over = quotas.over(ip, listener)
    assert over is not None
    assert over.wait_ns
    waiting = WaitingConnection(ip, listener, over, now_ns)
    quotas.wait(waiting)
    return waiting


def test_without_limits_everybody_is_welcome() -> None:
    quotas = quotas_of()
    assert [arrive(quotas, IP, LISTENER, 0) for _ in range(100)] == [Verdict(True)] * 100
    assert quotas.open_now(TOTAL) == quotas.open_now(Named(Kind.IP, IP)) == 100


# ---- at a time


@pytest.mark.parametrize(
    ("configured", "named", "waits"),
    [
        (Named(Kind.IP, IP), Named(Kind.IP, IP), False),
        (ANY_IP, Named(Kind.IP, IP), False),
        (Named(Kind.LISTENER, "bootstrap"), Named(Kind.LISTENER, "bootstrap"), True),
        (Named(Kind.LISTENER, "19092"), Named(Kind.LISTENER, "19092"), True),
        (TOTAL, TOTAL, True),
    ],
)
def test_one_above_the_number_waits_for_a_slot_or_is_refused_at_once(
    configured: AnyEntity, named: AnyEntity, waits: bool
) -> None:
    quotas = quotas_of((configured, CONNECTIONS, 2))
    assert [arrive(quotas, IP, LISTENER, 0) for _ in range(2)] == [Verdict(True)] * 2
    refused = Verdict(False, MAX_WAIT_NS if waits else 0, CONNECTIONS, named, 2.0)
    assert arrive(quotas, IP, LISTENER, 0) == arrive(quotas, IP, LISTENER, 0) == refused
    quotas.close(IP, LISTENER)
    assert arrive(quotas, IP, LISTENER, 0) == Verdict(True)
    assert arrive(quotas, IP, LISTENER, 0) == refused


@pytest.mark.parametrize("configured", [Named(Kind.IP, IP), ANY_IP, Named(Kind.LISTENER, "bootstrap"), TOTAL])
def test_zero_connections_refuse_all_at_once(configured: AnyEntity) -> None:
    quotas = quotas_of((configured, CONNECTIONS, 0))
    verdict = arrive(quotas, IP, LISTENER, 0)
    assert (verdict.admitted, verdict.wait_ns, verdict.limit_value) == (False, 0, 0)
    assert quotas._open == {}


def test_the_address_is_named_before_the_listener_and_that_before_the_total() -> None:
    address, listener = Named(Kind.IP, IP), Named(Kind.LISTENER, "bootstrap")
    limits = [(address, CONNECTIONS, 1), (listener, CONNECTIONS, 1), (TOTAL, CONNECTIONS, 1)]
    for first in range(3):
        quotas = quotas_of(*limits[first:])
        arrive(quotas, IP, LISTENER, 0)
        assert arrive(quotas, IP, LISTENER, 0).entity == limits[first][0]


def test_a_default_is_so_many_for_each_address() -> None:
    quotas = quotas_of((ANY_IP, CONNECTIONS, 1))
    assert arrive(quotas, IP, LISTENER, 0) == arrive(quotas, OTHER_IP, LISTENER, 0) == Verdict(True)
    assert not arrive(quotas, IP, LISTENER, 0).admitted


def test_a_number_of_connections_is_not_scaled_by_the_share_and_a_rate_is() -> None:
    quotas = quotas_of((TOTAL, CONNECTIONS, 2), share=0.5)
    assert [arrive(quotas, IP, LISTENER, 0).admitted for _ in range(3)] == [True, True, False]
    quotas = quotas_of((TOTAL, CONNECTION_CREATION_RATE, 4), share=0.5)
    assert [arrive(quotas, IP, LISTENER, 0).limit_value for _ in range(3)] == [0, 0, 2]


def test_a_refused_connection_takes_no_part_in_the_rates() -> None:
    quotas = quotas_of((Named(Kind.IP, IP), CONNECTIONS, 1), (TOTAL, CONNECTION_CREATION_RATE, 2))
    assert arrive(quotas, IP, LISTENER, 0) == Verdict(True)
    assert [arrive(quotas, IP, LISTENER, 0).limit_name for _ in range(5)] == [CONNECTIONS] * 5
    assert arrive(quotas, OTHER_IP, LISTENER, 0) == Verdict(True)


def test_one_that_is_refused_for_its_rate_takes_no_slot() -> None:
    """Else an address over its rate could use up the slots of all others, with connections that are never served."""
    quotas = quotas_of((Named(Kind.IP, IP), CONNECTION_CREATION_RATE, 1), (TOTAL, CONNECTIONS, 20))
    admitted = sum(arrive(quotas, IP, LISTENER, 0).admitted for _ in range(100))
    assert quotas.open_now(TOTAL) == admitted < 12
    assert quotas.open_now(Named(Kind.IP, IP)) == 100
    assert arrive(quotas, OTHER_IP, LISTENER, 0) == Verdict(True)


def test_a_slot_goes_to_the_one_that_has_waited_longest_and_its_rate_is_counted_then() -> None:
    quotas = quotas_of(
        (TOTAL, CONNECTIONS, 2), (TOTAL, CONNECTION_CREATION_RATE, 2), algorithm=TOKEN_BUCKET, max_wait_ns=4 * SECOND
    )
    assert [arrive(quotas, IP, LISTENER, 0) for _ in range(2)] == [Verdict(True)] * 2
    waiting = [queue(quotas, OTHER_IP, listener, nth) for nth, listener in enumerate([LISTENER, ("9093",), LISTENER])]
    assert quotas.grant(SECOND) is None
    quotas.close(IP, LISTENER)
    assert quotas.grant(SECOND) is waiting[0]
    assert waiting[0].verdict == Verdict(True, SECOND), "it waited for the slot, its rate adds nothing"
    assert quotas.grant(SECOND) is None
    assert quotas.open_now(TOTAL) == 2
    quotas.close(OTHER_IP, LISTENER)
    assert quotas.grant(SECOND) is waiting[1]
    quotas.close(OTHER_IP, ("9093",))
    assert quotas.grant(SECOND) is waiting[2]
    assert waiting[2].verdict == Verdict(True, 1500 * MS - 2, CONNECTION_CREATION_RATE, TOTAL, 2)
    late = queue(quotas, OTHER_IP, LISTENER, SECOND)
    quotas.close(OTHER_IP, LISTENER, waiting[2])
    assert quotas.grant(5 * SECOND - 1) is late
    assert late.verdict.wait_ns == 4 * SECOND - 1


def test_one_that_has_no_time_left_for_its_rate_is_refused_and_the_slot_goes_on() -> None:
    quotas = quotas_of(
        (TOTAL, CONNECTIONS, 1),
        (Named(Kind.IP, OTHER_IP), CONNECTION_CREATION_RATE, 1),
        algorithm=TOKEN_BUCKET,
        max_wait_ns=2 * SECOND,
    )
    arrive(quotas, IP, LISTENER, 0)
    waiting = [queue(quotas, OTHER_IP, LISTENER, 0) for _ in range(3)] + [queue(quotas, IP, LISTENER, 0)]
    now_ns = 2 * SECOND - 5 * MS
    quotas.close(IP, LISTENER)
    assert quotas.grant(now_ns) is waiting[0]
    quotas.close(OTHER_IP, LISTENER, waiting[0])
    assert [quotas.grant(now_ns) for _ in range(4)] == [*waiting[1:], None]
    assert waiting[1].verdict == Verdict(False, 2 * SECOND, CONNECTION_CREATION_RATE, Named(Kind.IP, OTHER_IP), 1), (
        "closed when its longest wait ends"
    )
    assert waiting[3].verdict.admitted
    assert quotas.open_now(TOTAL) == 1


def test_waiting_connections_are_bounded_for_each_listener() -> None:
    quotas = quotas_of((TOTAL, CONNECTIONS, 1), max_waiting=2)
    arrive(quotas, IP, LISTENER, 0)
    first, _ = [queue(quotas, IP, LISTENER, 0) for _ in range(2)]
    assert arrive(quotas, IP, LISTENER, 0) == Verdict(False, 0, CONNECTIONS, TOTAL, 1)
    assert arrive(quotas, IP, ("9093",), 0).wait_ns == MAX_WAIT_NS
    quotas.close(IP, LISTENER, first)
    assert arrive(quotas, IP, LISTENER, 0).wait_ns == MAX_WAIT_NS


class Slots(RuleBasedStateMachine):
    """At most six of an address, two at listener 9093, so many in total, and two a second from the other address."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 3
        self.quotas = quotas_of(*self.limits(), algorithm=TOKEN_BUCKET, max_waiting=4)
        self.now_ns = 0
        self.served: list[WaitingConnection] = []
        self.queued: list[WaitingConnection] = []
        self.refused: list[WaitingConnection] = []

    def limits(self) -> list[tuple[AnyEntity, str, int]]:
        of_ip, of_listener = (ANY_IP, CONNECTIONS, 6), (NINETY_THREE, CONNECTIONS, 2)
        other = [(Named(Kind.IP, OTHER_IP), CONNECTIONS, 6), (Named(Kind.IP, OTHER_IP), CONNECTION_CREATION_RATE, 2)]
        return [of_ip, of_listener, *other, (TOTAL, CONNECTIONS, self.total)]

    @rule(ip=st.sampled_from([IP, OTHER_IP]), listener=st.sampled_from([LISTENER, ("9093",)]))
    def arrive(self, ip: str, listener: tuple[str, ...]) -> None:
        over = self.quotas.over(ip, listener)
        if over is None:
            verdict = self.quotas.open(ip, listener, self.now_ns)
            self.decided(WaitingConnection(ip, listener, verdict, self.now_ns))
        elif over.wait_ns:
            self.queued.append(queue(self.quotas, ip, listener, self.now_ns))

    def decided(self, connection: WaitingConnection) -> None:
        (self.served if connection.verdict.admitted else self.refused).append(connection)

    @rule(nth=st.integers(0, 9))
    def close(self, nth: int) -> None:
        if self.served:
            closed = self.served.pop(nth % len(self.served))
            self.quotas.close(closed.ip, closed.listener)
            self.grant()

    @rule(nth=st.integers(0, 9))
    def give_up(self, nth: int) -> None:
        waiting = self.queued or self.refused
        if waiting:
            gone = waiting.pop(nth % len(waiting))
            self.quotas.close(gone.ip, gone.listener, gone)

    @rule(tenths=st.integers(1, 9))
    def pass_time(self, tenths: int) -> None:
        self.now_ns += tenths * 100 * MS

    @rule(total=st.sampled_from([1, 3, 10]))
    def change(self, total: int) -> None:
        self.total = total
        self.quotas._registry.replace(entries_of(self.limits(), TOKEN_BUCKET), self.now_ns)
        self.grant()

    def grant(self) -> None:
        while (granted := self.quotas.grant(self.now_ns)) is not None:
            first = next(each for each in self.queued if each.listener == granted.listener)
            assert granted is first, "in the order of arrival"
            self.queued.remove(granted)
            self.decided(granted)
            assert not granted.verdict.admitted or len(self.served) <= self.total

    @invariant()
    def no_slot_is_idle_or_given_twice(self) -> None:
        of_listener = Counter(each.listener for each in self.served)
        assert of_listener["9093",] <= 2
        for each in self.queued:
            assert len(self.served) >= self.total or (each.listener == ("9093",) and of_listener["9093",] == 2)

    @invariant()
    def counts_are_those_of_the_connections(self) -> None:
        of_ip = Counter(each.ip for each in self.served + self.queued + self.refused)
        assert max(of_ip.values(), default=0) <= 6
        at_9093 = sum(each.listener == ("9093",) for each in self.served)
        counts = {Named(Kind.IP, IP): of_ip[IP], Named(Kind.IP, OTHER_IP): of_ip[OTHER_IP]}
        counts |= {NINETY_THREE: at_9093, TOTAL: len(self.served)}
        assert {owner: self.quotas.open_now(owner) for owner in counts} == counts

    def teardown(self) -> None:
        for each in self.served:
            self.quotas.close(each.ip, each.listener)
        for each in self.queued + self.refused:
            self.quotas.close(each.ip, each.listener, each)
        assert (self.quotas._open, self.quotas._queues) == ({}, {})


TestSlots = Slots.TestCase


# ---- a second


@pytest.mark.parametrize("entity", [Named(Kind.IP, IP), ANY_IP, Named(Kind.LISTENER, "19092"), TOTAL])
def test_seed_000_the_31st_connection_waits(entity: Named) -> None:
    """30/s, 2 samples of 1 s, one connection every 25 ms: the first window counts whole, so 30 pass in its second."""
    quotas = quotas_of((entity, CONNECTION_CREATION_RATE, 30))
    for event in range(30):
        assert arrive(quotas, IP, LISTENER, event * 25 * MS) == Verdict(True)
    owner = Named(Kind.IP, IP) if entity.kind is Kind.IP else entity
    verdict = arrive(quotas, IP, LISTENER, 750 * MS)
    assert verdict == Verdict(True, 283 * MS, CONNECTION_CREATION_RATE, owner, 30)  # until 31/30 s: 33 ms in the next
    assert arrive(quotas, IP, LISTENER, 1000 * MS) == replace(verdict, wait_ns=67 * MS)


def test_when_the_first_second_is_over_the_31st_waits_33_ms() -> None:
    quotas = quotas_of((TOTAL, CONNECTION_CREATION_RATE, 30))
    for event in range(30):
        assert arrive(quotas, IP, LISTENER, event * 25 * MS) == Verdict(True)
    assert arrive(quotas, IP, LISTENER, 1000 * MS).wait_ns == 33 * MS


def test_with_kafkas_rule_it_would_not() -> None:
    entry = QuotaEntry(TOTAL, {CONNECTION_CREATION_RATE: 30})
    registry = Registry([entry], settings=AlgorithmSettings(window_num=2, first_window=False))
    quotas = ConnectionQuotas(registry, MAX_WAIT_NS, 100)
    assert [arrive(quotas, IP, LISTENER, event * 25 * MS) for event in range(31)] == [Verdict(True)] * 31


def test_each_new_connection_waits_longer() -> None:
    quotas = quotas_of((TOTAL, CONNECTION_CREATION_RATE, 10), algorithm=TOKEN_BUCKET)
    waits = [arrive(quotas, IP, LISTENER, 0).wait_ns for _ in range(13)]
    assert waits == [0] * 10 + [100 * MS, 200 * MS, 300 * MS]
    assert arrive(quotas, IP, LISTENER, SECOND).wait_ns == 0


def test_the_longest_wait_of_address_listener_and_total_counts() -> None:
    listener = Named(Kind.LISTENER, "bootstrap")
    quotas = quotas_of(
        (ANY_IP, CONNECTION_CREATION_RATE, 2),
        (listener, CONNECTION_CREATION_RATE, 1),
        (TOTAL, CONNECTION_CREATION_RATE, 4),
        algorithm=TOKEN_BUCKET,
    )
    assert arrive(quotas, IP, LISTENER, 0) == Verdict(True)
    assert arrive(quotas, IP, LISTENER, 0) == Verdict(True, SECOND, CONNECTION_CREATION_RATE, listener, 1)
    assert arrive(quotas, IP, ("9093",), 0) == Verdict(
        True, SECOND // 2, CONNECTION_CREATION_RATE, Named(Kind.IP, IP), 2
    )
    assert arrive(quotas, OTHER_IP, ("9093",), 0) == Verdict(True)
    assert arrive(quotas, "10.0.0.3", ("9094",), 0) == Verdict(True, SECOND // 4, CONNECTION_CREATION_RATE, TOTAL, 4)


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, SAMPLED_WINDOW])
def test_a_connection_with_too_long_a_wait_is_refused_and_delays_no_other(algorithm: str) -> None:
    """A client that tries again and again must not push everybody's turn away, nor its own."""
    quotas = quotas_of(
        (Named(Kind.IP, IP), CONNECTION_CREATION_RATE, 1),
        (TOTAL, CONNECTION_CREATION_RATE, 100),
        algorithm=algorithm,
        max_wait_ns=2 * SECOND,
    )
    first_waits = [arrive(quotas, IP, LISTENER, 0).wait_ns for _ in range(2)]
    assert first_waits[0] == 0
    assert 0 < first_waits[1] <= 2 * SECOND
    turned_away = Verdict(False, 2 * SECOND, CONNECTION_CREATION_RATE, Named(Kind.IP, IP), 1)
    verdicts = [arrive(quotas, IP, LISTENER, 0) for _ in range(300)]
    beyond = verdicts[-1]
    assert beyond == turned_away
    admitted = sum(verdict.admitted for verdict in verdicts)
    assert admitted <= 1
    for number in range(98 - admitted):
        assert arrive(quotas, f"10.1.0.{number}", LISTENER, 0) == Verdict(True)
    assert arrive(quotas, OTHER_IP, LISTENER, 0).limit_name == CONNECTION_CREATION_RATE
    assert arrive(quotas, IP, LISTENER, 0) == turned_away
    assert arrive(quotas, IP, LISTENER, 4 * SECOND).admitted


@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS])
@given(gaps_ms=st.lists(st.integers(0, 700), max_size=60), rate=st.integers(1, 4))
def test_a_refusal_is_known_before_and_records_nothing(algorithm: str | None, gaps_ms: list[int], rate: int) -> None:
    limits = [(ANY_IP, CONNECTION_CREATION_RATE, rate), (TOTAL, CONNECTION_CREATION_RATE, 5)]
    quotas, others = (quotas_of(*limits, algorithm=algorithm, max_wait_ns=2 * SECOND) for _ in range(2))
    now_ns = 0
    for gap_ms in gaps_ms:
        now_ns += gap_ms * MS
        refused = quotas.refused(IP, LISTENER, now_ns)
        verdict = quotas.open(IP, LISTENER, now_ns)
        assert verdict == others.open(IP, LISTENER, now_ns)
        assert refused == (None if verdict.admitted else replace(verdict, wait_ns=0))


def test_a_default_rate_is_one_for_each_address() -> None:
    quotas = quotas_of((ANY_IP, CONNECTION_CREATION_RATE, 1))
    assert arrive(quotas, IP, LISTENER, 0) == arrive(quotas, OTHER_IP, LISTENER, 0) == Verdict(True)
    verdict = arrive(quotas, IP, LISTENER, 0)
    assert (verdict.entity, verdict.limit_value) == (Named(Kind.IP, IP), 1)


def test_a_clock_that_goes_back_shortens_no_wait() -> None:
    quotas = quotas_of((TOTAL, CONNECTION_CREATION_RATE, 1), algorithm=TOKEN_BUCKET)
    assert arrive(quotas, IP, LISTENER, 10 * SECOND) == Verdict(True)
    assert arrive(quotas, IP, LISTENER, 5 * SECOND).wait_ns == SECOND
    assert arrive(quotas, IP, LISTENER, 10 * SECOND).wait_ns == 2 * SECOND


# ---- when limits change


class Crowd:
    """Connections of one address, each with what it was told, and limits that change while they wait."""

    def __init__(
        self, *limits: tuple[AnyEntity, int], algorithm: str | None = TOKEN_BUCKET, max_wait_ns: int = MAX_WAIT_NS
    ) -> None:
        self.algorithm = algorithm
        self.rates = dict(limits)
        self.registry = Registry(self.entries(), settings=TWO_SAMPLES)
        self.quotas = ConnectionQuotas(self.registry, max_wait_ns, 100)
        self.held: list[WaitingConnection] = []

    def entries(self) -> list[QuotaEntry]:
        return [
            QuotaEntry(entity, {CONNECTION_CREATION_RATE: rate}, algorithm=self.algorithm)
            for entity, rate in self.rates.items()
        ]

    def come(self, count: int, now_ns: int = 0, ip: str = IP) -> None:
        verdicts = [arrive(self.quotas, ip, LISTENER, now_ns) for _ in range(count)]
        self.held += [WaitingConnection(ip, LISTENER, verdict, now_ns) for verdict in verdicts if verdict.wait_ns]

    def change(self, entity: AnyEntity, rate: int | None, now_ns: int = 0) -> list[Verdict]:
        self.rates.pop(entity, None)
        if rate is not None:
            self.rates[entity] = rate
        self.registry.replace(self.entries(), now_ns)
        return self.review(now_ns)

    def review(self, now_ns: int) -> list[Verdict]:
        verdicts = self.quotas.review(self.held, now_ns)
        for each, verdict in zip(self.held, verdicts, strict=True):
            each.verdict = verdict
        return verdicts


def waits_ms(verdicts: list[Verdict]) -> list[float]:
    return [verdict.wait_ns / MS for verdict in verdicts]


def test_at_a_higher_rate_each_waits_for_earlier_connections_only() -> None:
    crowd = Crowd((TOTAL, 10))
    crowd.come(14)
    assert waits_ms([each.verdict for each in crowd.held]) == [100, 200, 300, 400]
    verdicts = crowd.change(TOTAL, 20, 50 * MS)  # half a connection has been paid back
    assert waits_ms(verdicts) == [50 + 25, 50 + 75, 50 + 125, 50 + 175], "from when they came"
    assert verdicts[0] == Verdict(True, 75 * MS, CONNECTION_CREATION_RATE, TOTAL, 20)
    assert waits_ms(crowd.review(60 * MS)) == waits_ms(verdicts), "to ask once more changes nothing"


def test_at_a_lower_rate_no_wait_becomes_longer() -> None:
    crowd = Crowd((TOTAL, 10))
    crowd.come(13)
    verdicts = crowd.change(TOTAL, 1, 50 * MS)
    assert waits_ms(verdicts) == [100, 200, 300]
    assert {verdict.limit_value for verdict in verdicts} == {1}
    assert arrive(crowd.quotas, IP, LISTENER, 50 * MS).wait_ns == 3500 * MS, "who comes now has the new rate"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_without_the_limit_everybody_is_welcome_again(algorithm: str) -> None:
    crowd = Crowd((TOTAL, 1), algorithm=algorithm, max_wait_ns=1500 * MS)
    crowd.come(100)
    crowd.come(5, 6 * SECOND)  # after the first tick of an average
    assert False in [each.verdict.admitted for each in crowd.held]
    verdicts = crowd.change(TOTAL, None, 6 * SECOND + 10 * MS)
    assert all(verdict.admitted and verdict.limit_name is None for verdict in verdicts)
    ends = [each.since_ns + each.verdict.wait_ns for each in crowd.held]
    assert max(ends) <= 6 * SECOND + 10 * MS


def test_another_limit_still_waits_when_the_longest_is_removed() -> None:
    crowd = Crowd((ANY_IP, 2), (TOTAL, 4))
    crowd.come(6)
    assert waits_ms([each.verdict for each in crowd.held]) == [500, 1000, 1500, 2000]
    verdicts = crowd.change(ANY_IP, None)
    assert waits_ms(verdicts) == [0, 0, 250, 500]
    assert verdicts[3] == Verdict(True, 500 * MS, CONNECTION_CREATION_RATE, TOTAL, 4)


def test_a_new_limit_counts_waiting_connections() -> None:
    """As if they came now: they have not been served under any other."""
    crowd = Crowd((ANY_IP, 2))
    crowd.come(6)
    assert waits_ms(crowd.change(TOTAL, 2)) == [500, 1000, 1500, 2000], "no longer than they were told"
    assert waits_ms(crowd.review(0)) == [500, 1000, 1500, 2000]
    assert waits_ms(crowd.change(ANY_IP, None)) == [0, 0, 500, 1000], "each recorded in the total once"


@pytest.mark.parametrize("rate", [2, 4])
def test_who_was_to_be_turned_away_is_asked_for_anew_behind_the_others(rate: int) -> None:
    crowd = Crowd((TOTAL, 1), max_wait_ns=2 * SECOND)
    crowd.come(5)
    assert [each.verdict.admitted for each in crowd.held] == [True, True, False, False]
    verdicts = crowd.change(TOTAL, rate)
    assert waits_ms(verdicts) == [1000 / rate, 2000 / rate, 3000 / rate, 4000 / rate]
    assert all(verdict.admitted for verdict in verdicts)


def test_who_still_would_wait_too_long_is_turned_away_when_it_was_told_and_counts_for_nothing() -> None:
    crowd = Crowd((TOTAL, 1), max_wait_ns=2 * SECOND)
    crowd.come(6)
    verdicts = crowd.change(TOTAL, 2, 100 * MS)
    assert waits_ms(verdicts) == [550, 1050, 1550, 2000, 2000]
    assert [verdict.admitted for verdict in verdicts] == [True, True, True, False, False]
    assert verdicts[4] == Verdict(False, 2 * SECOND, CONNECTION_CREATION_RATE, TOTAL, 2)
    assert arrive(crowd.quotas, IP, LISTENER, 100 * MS).wait_ns == 1950 * MS, "behind three"


ARRIVALS = st.lists(st.tuples(st.integers(0, 900), st.integers(1, 6)), max_size=12)
"""Milliseconds since the ones before, and how many come at once."""


@given(ARRIVALS, st.integers(1, 20), st.integers(1, 40), st.integers(0, 1500))
def test_waits_after_a_change_are_those_of_a_bucket_in_plain_numbers(
    arrivals: list[tuple[int, int]], rate: int, new_rate: int, after_ms: int
) -> None:
    """The model: of each connection what it owed when it came, paid back at the old rate and then at the new one."""
    crowd = Crowd((TOTAL, rate), max_wait_ns=10**15)
    level, now_ns = Fraction(rate), 0
    owed: list[tuple[Fraction, int]] = []  # connections that were to be paid back, and when that began
    for pause_ms, count in arrivals:
        now_ns += pause_ms * MS
        level = min(Fraction(rate), level + Fraction(rate * pause_ms, 1000))
        crowd.come(count, now_ns)
        owed += [(nth - level, now_ns) for nth in range(1, count + 1) if nth > level]
        level -= count
    now_ns += after_ms * MS
    told = [each.verdict.wait_ns for each in crowd.held]
    assert told == [ceil(debt * SECOND / rate) for debt, _ in owed]
    expected = []
    for (debt, since_ns), told_ns in zip(owed, told, strict=True):
        left = max(Fraction(0), debt - Fraction(rate * (now_ns - since_ns), SECOND))
        expected.append(min(told_ns, now_ns - since_ns + ceil(left * SECOND / new_rate)))
    assert [verdict.wait_ns for verdict in crowd.change(TOTAL, new_rate, now_ns)] == expected


@given(
    st.sampled_from(ALGORITHMS),
    ARRIVALS,
    st.lists(
        st.tuples(
            st.integers(0, 3000),
            st.sampled_from([TOTAL, ANY_IP, Named(Kind.IP, IP), Named(Kind.LISTENER, "bootstrap")]),
            st.none() | st.integers(1, 40),
        ),
        max_size=6,
    ),
)
def test_no_change_makes_anybody_wait_longer_or_pass_those_before_it(
    algorithm: str, arrivals: list[tuple[int, int]], changes: list[tuple[int, AnyEntity, int | None]]
) -> None:
    crowd = Crowd((TOTAL, 3), (ANY_IP, 2), algorithm=algorithm, max_wait_ns=10**15)
    now_ns = 0
    for pause_ms, count in arrivals:
        now_ns += pause_ms * MS
        crowd.come(count, now_ns)
    in_order = _ends(crowd) == sorted(_ends(crowd))
    for pause_ms, entity, rate in changes:
        now_ns += pause_ms * MS
        before = _ends(crowd)
        crowd.change(entity, rate, now_ns)
        assert all(now <= told for now, told in zip(_ends(crowd), before, strict=True))
        if in_order:
            later = [end for end in _ends(crowd) if end > now_ns]
            assert later == sorted(later)
    for entity in (TOTAL, ANY_IP, Named(Kind.IP, IP), Named(Kind.LISTENER, "bootstrap")):
        crowd.change(entity, None, now_ns)
    assert all(end <= now_ns for end in _ends(crowd))


def _ends(crowd: Crowd) -> list[int]:
    return [each.since_ns + each.verdict.wait_ns for each in crowd.held]
