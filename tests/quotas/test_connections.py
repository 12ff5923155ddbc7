"""Who may connect: so many at a time, and so many a second."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.algorithms.algorithm import SAMPLED_WINDOW, TOKEN_BUCKET, AlgorithmSettings
from quotas.connections import WELCOME, ConnectionQuotas, Verdict
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
TWO_SAMPLES = AlgorithmSettings(window_num=2)


def quotas_of(
    *limits: tuple[AnyEntity, str, int], algorithm: str | None = None, max_wait_ns: int = MAX_WAIT_NS, share: float = 1
) -> ConnectionQuotas:
    entries = [QuotaEntry(entity, {name: value}, algorithm=algorithm) for entity, name, value in limits]
    return ConnectionQuotas(Registry(entries, settings=TWO_SAMPLES, share=share), max_wait_ns)


def test_without_limits_everybody_is_welcome() -> None:
    quotas = quotas_of()
    assert [quotas.opened(IP, LISTENER, 0) for _ in range(100)] == [WELCOME] * 100
    assert quotas.open_now(TOTAL) == quotas.open_now(Named(Kind.IP, IP)) == 100


# ---- at a time


@pytest.mark.parametrize(
    ("configured", "named"),
    [
        (Named(Kind.IP, IP), Named(Kind.IP, IP)),
        (ANY_IP, Named(Kind.IP, IP)),
        (Named(Kind.LISTENER, "bootstrap"), Named(Kind.LISTENER, "bootstrap")),
        (Named(Kind.LISTENER, "19092"), Named(Kind.LISTENER, "19092")),
        (TOTAL, TOTAL),
    ],
)
def test_one_beyond_those_at_a_time_is_refused_until_one_goes(configured: AnyEntity, named: AnyEntity) -> None:
    quotas = quotas_of((configured, CONNECTIONS, 2))
    assert [quotas.opened(IP, LISTENER, 0) for _ in range(2)] == [WELCOME] * 2
    refused = Verdict(False, 0, CONNECTIONS, named, 2.0)
    assert quotas.opened(IP, LISTENER, 0) == refused
    quotas.closed(IP, LISTENER)  # the refused one
    assert quotas.opened(IP, LISTENER, 0) == refused
    quotas.closed(IP, LISTENER)
    quotas.closed(IP, LISTENER)
    assert quotas.opened(IP, LISTENER, 0) == WELCOME


def test_the_address_is_named_before_the_listener_and_that_before_the_total() -> None:
    address, listener = Named(Kind.IP, IP), Named(Kind.LISTENER, "bootstrap")
    limits = [(address, CONNECTIONS, 1), (listener, CONNECTIONS, 1), (TOTAL, CONNECTIONS, 1)]
    for first in range(3):
        quotas = quotas_of(*limits[first:])
        quotas.opened(IP, LISTENER, 0)
        assert quotas.opened(IP, LISTENER, 0).entity == limits[first][0]


def test_a_default_is_so_many_for_each_address() -> None:
    quotas = quotas_of((ANY_IP, CONNECTIONS, 1))
    assert quotas.opened(IP, LISTENER, 0) == quotas.opened(OTHER_IP, LISTENER, 0) == WELCOME
    assert not quotas.opened(IP, LISTENER, 0).admitted


def test_a_number_of_connections_is_not_scaled_by_the_share_and_a_rate_is() -> None:
    quotas = quotas_of((TOTAL, CONNECTIONS, 2), share=0.5)
    assert [quotas.opened(IP, LISTENER, 0).admitted for _ in range(3)] == [True, True, False]
    quotas = quotas_of((TOTAL, CONNECTION_CREATION_RATE, 4), share=0.5)
    assert [quotas.opened(IP, LISTENER, 0).limit_value for _ in range(3)] == [0, 0, 2]


def test_a_refused_connection_takes_no_part_in_the_rates() -> None:
    quotas = quotas_of((Named(Kind.IP, IP), CONNECTIONS, 1), (TOTAL, CONNECTION_CREATION_RATE, 2))
    assert quotas.opened(IP, LISTENER, 0) == WELCOME
    assert [quotas.opened(IP, LISTENER, 0).limit_name for _ in range(5)] == [CONNECTIONS] * 5
    assert quotas.opened(OTHER_IP, LISTENER, 0) == WELCOME


def test_one_that_is_served_though_it_was_refused_takes_part_in_the_rates() -> None:
    quotas = quotas_of(
        (Named(Kind.IP, IP), CONNECTIONS, 1), (TOTAL, CONNECTION_CREATION_RATE, 2), algorithm=TOKEN_BUCKET
    )
    assert quotas.opened(IP, LISTENER, 0) == WELCOME
    assert quotas.opened(IP, LISTENER, 0).limit_name == CONNECTIONS
    assert quotas.created(IP, LISTENER, 0) == WELCOME
    over = Verdict(True, SECOND // 2, CONNECTION_CREATION_RATE, TOTAL, 2)
    assert quotas.created(IP, LISTENER, 0) == over
    assert quotas.open_now(TOTAL) == 2, "they were counted when they came"


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([IP, OTHER_IP]), st.sampled_from([LISTENER, ("9093",)]))))
def test_the_counts_are_those_of_the_connections_that_are_open(events: list[tuple[bool, str, tuple[str, ...]]]) -> None:
    quotas = quotas_of((ANY_IP, CONNECTIONS, 3), (TOTAL, CONNECTIONS, 4))
    is_open: list[tuple[str, tuple[str, ...]]] = []
    for comes, ip, listener in events:
        if comes:
            is_open.append((ip, listener))
            verdict = quotas.opened(ip, listener, 0)
            of_ip = sum(each == ip for each, _ in is_open)
            assert verdict.admitted == (of_ip <= 3 and len(is_open) <= 4)
        elif (ip, listener) in is_open:
            is_open.remove((ip, listener))
            quotas.closed(ip, listener)
    owners = Counter(
        owner for ip, listener in is_open for owner in (Named(Kind.IP, ip), Named(Kind.LISTENER, listener[0]), TOTAL)
    )
    for owner in (Named(Kind.IP, IP), Named(Kind.IP, OTHER_IP), Named(Kind.LISTENER, "9093"), TOTAL):
        assert quotas.open_now(owner) == owners[owner]
    for ip, listener in is_open:
        quotas.closed(ip, listener)
    assert quotas._open == {}


# ---- a second


@pytest.mark.parametrize("entity", [Named(Kind.IP, IP), ANY_IP, Named(Kind.LISTENER, "19092"), TOTAL])
def test_seed_000_the_31st_connection_waits(entity: Named) -> None:
    """30/s, 2 samples of 1 s, one connection every 25 ms: the first window counts whole, so 30 pass in its second."""
    quotas = quotas_of((entity, CONNECTION_CREATION_RATE, 30))
    for event in range(30):
        assert quotas.opened(IP, LISTENER, event * 25 * MS) == WELCOME
    owner = Named(Kind.IP, IP) if entity.kind is Kind.IP else entity
    verdict = quotas.opened(IP, LISTENER, 750 * MS)
    assert verdict == Verdict(True, 283 * MS, CONNECTION_CREATION_RATE, owner, 30)  # until 31/30 s: 33 ms in the next
    assert quotas.opened(IP, LISTENER, 1000 * MS) == verdict._replace(wait_ns=67 * MS)


def test_when_the_first_second_is_over_the_31st_waits_33_ms() -> None:
    quotas = quotas_of((TOTAL, CONNECTION_CREATION_RATE, 30))
    for event in range(30):
        assert quotas.opened(IP, LISTENER, event * 25 * MS) == WELCOME
    assert quotas.opened(IP, LISTENER, 1000 * MS).wait_ns == 33 * MS


def test_with_kafkas_rule_it_would_not() -> None:
    entry = QuotaEntry(TOTAL, {CONNECTION_CREATION_RATE: 30})
    registry = Registry([entry], settings=AlgorithmSettings(window_num=2, first_window=False))
    quotas = ConnectionQuotas(registry, MAX_WAIT_NS)
    assert [quotas.opened(IP, LISTENER, event * 25 * MS) for event in range(31)] == [WELCOME] * 31


def test_each_of_a_crowd_waits_a_little_longer() -> None:
    quotas = quotas_of((TOTAL, CONNECTION_CREATION_RATE, 10), algorithm=TOKEN_BUCKET)
    waits = [quotas.opened(IP, LISTENER, 0).wait_ns for _ in range(13)]
    assert waits == [0] * 10 + [100 * MS, 200 * MS, 300 * MS]
    assert quotas.opened(IP, LISTENER, SECOND).wait_ns == 0


def test_the_longest_wait_of_address_listener_and_total_counts() -> None:
    listener = Named(Kind.LISTENER, "bootstrap")
    quotas = quotas_of(
        (ANY_IP, CONNECTION_CREATION_RATE, 2),
        (listener, CONNECTION_CREATION_RATE, 1),
        (TOTAL, CONNECTION_CREATION_RATE, 4),
        algorithm=TOKEN_BUCKET,
    )
    assert quotas.opened(IP, LISTENER, 0) == WELCOME
    assert quotas.opened(IP, LISTENER, 0) == Verdict(True, SECOND, CONNECTION_CREATION_RATE, listener, 1)
    assert quotas.opened(IP, ("9093",), 0) == Verdict(
        True, SECOND // 2, CONNECTION_CREATION_RATE, Named(Kind.IP, IP), 2
    )
    assert quotas.opened(OTHER_IP, ("9093",), 0) == WELCOME
    assert quotas.opened("10.0.0.3", ("9094",), 0) == Verdict(True, SECOND // 4, CONNECTION_CREATION_RATE, TOTAL, 4)


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, SAMPLED_WINDOW])
def test_who_would_wait_too_long_is_turned_away_and_takes_no_part_in_what_others_wait(algorithm: str) -> None:
    """A client that tries again and again must not push everybody's turn away, nor its own."""
    quotas = quotas_of(
        (Named(Kind.IP, IP), CONNECTION_CREATION_RATE, 1),
        (TOTAL, CONNECTION_CREATION_RATE, 100),
        algorithm=algorithm,
        max_wait_ns=2 * SECOND,
    )
    first_waits = [quotas.opened(IP, LISTENER, 0).wait_ns for _ in range(2)]
    assert first_waits[0] == 0
    assert 0 < first_waits[1] <= 2 * SECOND
    turned_away = Verdict(False, 2 * SECOND, CONNECTION_CREATION_RATE, Named(Kind.IP, IP), 1)
    verdicts = [quotas.opened(IP, LISTENER, 0) for _ in range(300)]
    beyond = verdicts[-1]
    assert beyond == turned_away
    admitted = sum(verdict.admitted for verdict in verdicts)
    assert admitted <= 1
    for number in range(98 - admitted):
        assert quotas.opened(f"10.1.0.{number}", LISTENER, 0) == WELCOME
    assert quotas.opened(OTHER_IP, LISTENER, 0).limit_name == CONNECTION_CREATION_RATE
    assert quotas.opened(IP, LISTENER, 0) == turned_away
    assert quotas.opened(IP, LISTENER, 4 * SECOND).admitted


def test_a_default_rate_is_one_for_each_address() -> None:
    quotas = quotas_of((ANY_IP, CONNECTION_CREATION_RATE, 1))
    assert quotas.opened(IP, LISTENER, 0) == quotas.opened(OTHER_IP, LISTENER, 0) == WELCOME
    verdict = quotas.opened(IP, LISTENER, 0)
    assert (verdict.entity, verdict.limit_value) == (Named(Kind.IP, IP), 1)


def test_a_clock_that_goes_back_lets_nobody_in_sooner() -> None:
    quotas = quotas_of((TOTAL, CONNECTION_CREATION_RATE, 1), algorithm=TOKEN_BUCKET)
    assert quotas.opened(IP, LISTENER, 10 * SECOND) == WELCOME
    assert quotas.opened(IP, LISTENER, 5 * SECOND).wait_ns == SECOND
    assert quotas.opened(IP, LISTENER, 10 * SECOND).wait_ns == 2 * SECOND
