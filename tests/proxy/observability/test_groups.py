"""How often groups rebalance and who joins them: requests of several clients, on a clock of the test."""

from typing import Any

from protocol.group_requests import GroupEvent
from proxy.observability.groups import MAX_GROUPS, Groups

SECOND = 1_000_000_000
STABLE, FLAPPING = ("ANONYMOUS", "stable"), ("ANONYMOUS", "flapping")


def found(groups: Groups, now_ns: int, name: tuple[str, str] = STABLE) -> dict[str, Any]:
    (row,) = groups.of_client(name, now_ns)
    return row


def test_each_generation_is_a_rebalance_however_many_members_state_it() -> None:
    groups = Groups()
    for number in range(1, 41):
        now_ns = 2 * number * SECOND
        groups.seen(GroupEvent("team", 0, joins=True), FLAPPING, f"10.0.0.7:{number}", now_ns, is_join=True)
        groups.seen(GroupEvent("team", 0, joins=False), STABLE, "10.0.0.8:1", now_ns, is_join=True)
        for name in (STABLE, FLAPPING):
            groups.seen(GroupEvent("team", 100 + number, joins=False), name, "10.0.0.8:1", now_ns, is_join=False)
    row = found(groups, now_ns)
    assert (row["group"], row["rebalances_60s"]) == ("team", 30)
    assert row["joined_60s"] == {"flapping from 10.0.0.7": 30}
    assert row["rejoined_60s"] == {"stable from 10.0.0.8": 30}
    row = found(groups, now_ns + 30 * SECOND)
    assert row["rebalances_60s"] == 15
    assert groups.of_client(STABLE, now_ns + 61 * SECOND) == []


def test_members_that_are_an_epoch_behind_are_no_rebalance() -> None:
    """KIP-848: members reach an epoch one after the other."""
    groups = Groups()
    for epoch in (5, 4, 5, 4, 5):
        groups.seen(GroupEvent("team", epoch, joins=False), STABLE, "10.0.0.8:1", SECOND, is_join=False)
    assert found(groups, 2 * SECOND)["rebalances_60s"] == 0


def test_a_group_that_begins_anew_does_not_count_backwards() -> None:
    groups = Groups()
    groups.seen(GroupEvent("team", 900, joins=False), STABLE, "10.0.0.8:1", SECOND, is_join=False)
    for epoch in (1, 2):
        groups.seen(GroupEvent("team", epoch, joins=False), STABLE, "10.0.0.8:1", 99 * SECOND, is_join=False)
    assert found(groups, 100 * SECOND)["rebalances_60s"] == 1


def test_names_from_the_wire_are_bounded() -> None:
    groups = Groups()
    for number in range(MAX_GROUPS + 50):
        groups.seen(GroupEvent(f"team-{number}", 1, joins=True), STABLE, "10.0.0.8:1", SECOND, is_join=True)
    assert len(groups.of_client(STABLE, SECOND)) == MAX_GROUPS
    for number in range(1_000):
        name = "ANONYMOUS", f"member-{number}"
        groups.seen(GroupEvent("team", 1, joins=True), name, "10.0.0.8:1", SECOND, is_join=True)
    assert not groups.of_client(name, SECOND)
