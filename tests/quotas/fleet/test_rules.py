"""One conversation for each rule of the protocol, in which the uses add up to at most WHOLE, and to more without it."""

from collections.abc import Callable
from typing import Final

import pytest

from quotas.fleet.caps import Caps
from quotas.fleet.parameters import WHOLE
from tests.quotas.fleet import mutants
from tests.quotas.fleet.table import HALF, Table

pytestmark = pytest.mark.claim("fleet", "the parts in use never add up to more than the limit")

Script = Callable[[type[Caps]], Table]


def a_double_arrives_late(make: type[Caps]) -> Table:
    """The cap of 0 is appended again after the claim that superseded it."""
    table = Table(make)
    table.states(0, 0)
    table.states(0, WHOLE)
    table.append(table.log[0])
    table.states(1, WHOLE)
    table.all_read()
    return table


def a_cut_is_read_before_its_author_reads_it(make: type[Caps]) -> Table:
    table = Table(make)
    table.states(0, WHOLE)
    table.all_read()
    table.states(0, 0)
    table.states(1, WHOLE)
    table.reads(1)
    return table


def a_claim_is_read_back_while_a_cut_is_under_way(make: type[Caps]) -> Table:
    """Two records in flight; the second lowers the cap again, and another member has already read it."""
    table = Table(make)
    table.states(0, WHOLE)
    table.states(0, 0)
    table.states(1, WHOLE)
    table.reads(1)
    table.reads(0, most=1)
    return table


def two_claim_at_once(make: type[Caps]) -> Table:
    table = Table(make)
    table.states(0, 0)
    table.states(1, 0)
    table.all_read()
    table.sends(0, WHOLE)
    table.sends(1, WHOLE)
    return table


def a_record_is_read_back_late(make: type[Caps]) -> Table:
    """Member 0 reads its claim after 11 s; by then others may have dropped it."""
    table = Table(make)
    table.states(0, WHOLE)
    table.reads(1)
    table.wait(12)
    table.states(1, WHOLE)
    table.reads(1)
    table.reads(0, most=1)
    return table


def a_renewal_is_read_after_the_end_of_the_lease(make: type[Caps]) -> Table:
    """Member 0 renews in time, but its renewal is appended after member 1 has dropped it and claimed all."""
    table = Table(make)
    table.states(0, WHOLE)
    table.all_read()
    table.wait(9)
    renewal = table.sends(0, WHOLE)
    table.wait(3)
    table.states(1, WHOLE)
    table.append(renewal)
    table.reads(1)
    table.reads(0)
    return table


def a_member_falls_silent(make: type[Caps]) -> Table:
    """Member 1 takes over after 12 s, when the lease of 10 s is over."""
    table = Table(make)
    table.states(0, WHOLE)
    table.all_read()
    table.wait(12)
    table.states(1, WHOLE)
    table.reads(1)
    return table


def a_member_is_silent_for_less_than_its_lease(make: type[Caps]) -> Table:
    table = Table(make)
    table.states(0, WHOLE)
    table.all_read()
    table.wait(9)
    table.states(1, WHOLE)
    table.all_read()
    return table


def a_clock_is_slow(make: type[Caps]) -> Table:
    """By the clock of member 0 its lease ends a second later than by that of member 1."""
    table = Table(make)
    table.states(0, WHOLE)
    table.all_read()
    table.seats[0].behind_ns = 1_000_000_000
    table.wait(10.5)
    table.states(1, WHOLE)
    table.all_read()
    return table


def a_reader_pauses_with_a_claim_under_way(make: type[Caps]) -> Table:
    """Member 1 reads late: what it reads next after 12 s was written in time, after its own claim."""
    table = Table(make)
    table.states(0, WHOLE)
    table.all_read()
    table.wait(5)
    table.states(1, WHOLE)
    table.states(0, WHOLE)
    table.reads(0)
    table.wait(8)
    table.reads(1, most=1)
    return table


def one_joins_that_has_not_read_all(make: type[Caps]) -> Table:
    """Member 0 holds everything; member 1 begins at the end of the log."""
    table = Table(make)
    table.states(0, WHOLE)
    table.all_read()
    table.begins(1, is_covered=False)
    table.states(1, WHOLE)
    table.all_read()
    return table


def one_begins_again_and_finds_what_it_sent_before(make: type[Caps]) -> Table:
    """Member 0 has given up its cap, reads the log again, and comes to the claim before."""
    table = Table(make)
    table.states(0, WHOLE)
    table.states(0, 0)
    table.states(1, WHOLE)
    table.all_read()
    table.begins(0, is_covered=True)
    table.reads(0, most=1)
    return table


BROKEN_BY: Final[dict[type[Caps], Script]] = {
    mutants.DoublesValid: a_double_arrives_late,
    mutants.CutStatedFirst: a_cut_is_read_before_its_author_reads_it,
    mutants.UnreadIgnored: a_claim_is_read_back_while_a_cut_is_under_way,
    mutants.RaisedAtOnce: two_claim_at_once,
    mutants.LeaseFromReading: a_record_is_read_back_late,
    mutants.LeaseRenewedFirst: a_renewal_is_read_after_the_end_of_the_lease,
    mutants.LeaseForEver: a_member_falls_silent,
    mutants.ShortSilence: a_member_is_silent_for_less_than_its_lease,
    mutants.NoMargin: a_clock_is_slow,
    mutants.DroppedByReading: a_reader_pauses_with_a_claim_under_way,
    mutants.JoinsAtOnce: one_joins_that_has_not_read_all,
    mutants.LeaseFromBefore: one_begins_again_and_finds_what_it_sent_before,
}


@pytest.mark.parametrize("script", BROKEN_BY.values(), ids=lambda script: script.__name__)
def test_the_uses_are_at_most_the_whole(script: Script) -> None:
    uses = script(Caps).uses()
    assert sum(uses) <= WHOLE


@pytest.mark.pure
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.__name__)
def test_they_are_more_without_the_rule(mutant: type[Caps]) -> None:
    uses = BROKEN_BY[mutant](mutant).uses()
    assert sum(uses) > WHOLE


def test_a_claim_stands_until_others_make_room() -> None:
    """S3: two deliveries to move credit, whoever is late."""
    table = Table()
    table.states(0, WHOLE)
    table.all_read()
    table.states(1, HALF)
    table.all_read()
    assert table.uses() == [WHOLE, 0]
    table.states(0, HALF)
    assert table.uses() == [HALF, 0]
    table.reads(1)
    assert table.uses() == [HALF, HALF]
