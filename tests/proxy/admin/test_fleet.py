"""What operators see of a fleet: the page, the command's text, and the metrics."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.admin.exposition import TEXT, expose
from proxy.admin.fleet_page import FleetPage, text_of
from proxy.fleet import status
from proxy.internal_clients.failures import LogFailed
from proxy.observability.metrics import Metrics
from quotas.fleet.digest import LimitNames
from tests.integration.proxy_process import sum_of
from tests.proxy.fleet.members import QUOTA, Members, a_fleet, entry


@pytest.fixture
def world() -> Iterator[Members]:
    """Two members, of which the second has a lower quota; both want more."""
    with a_fleet() as made:
        for proxy in [made.join(entry(rate)) for rate in (QUOTA, QUOTA // 2)]:
            proxy.wants = True
        made.until(lambda: min(each.rate for each in made.proxies) > 0.2 * QUOTA, 3)
        made.pass_seconds(1)
        yield made


def page(world: Members) -> dict[str, Any]:
    response = FleetPage(world.proxies[0].fleet).respond()
    assert (response.status, response.content_type) == (200, "application/json; charset=utf-8")
    return dict(json.loads(response.body))


def test_the_page_has_members_with_their_caps_and_wants(world: Members) -> None:
    found = page(world)
    assert (found["fleet"], found["joined"], found["members"], found["max_members"]) == ("team", True, 2, 10)
    assert found["refused_records"] == {"void": 0, "foreign": 0, "clashes": 0, "overflows": 0, "missed": 0}
    [limit] = found["limits"]
    assert (limit["limit"], limit["entity"]) == ("producer_byte_rate", "client-id:etl")
    assert (limit["quota"], limit["configured"]) == (QUOTA // 2, QUOTA)
    assert limit["allowed"] == pytest.approx(QUOTA / 4, rel=0.03)
    assert (limit["fair_ratio"], limit["caps_ratio"]) == (0.5, pytest.approx(1, rel=0.02))
    assert 0 < limit["lease_seconds"] < 15
    assert {each["member"].partition("/")[0]: (each["here"], each["quota"]) for each in limit["members"]} == {
        "pod-0": (True, QUOTA),
        "pod-1": (False, QUOTA // 2),
    }
    assert [each["cap_ratio"] for each in limit["members"]] == pytest.approx([0.5, 0.5], rel=0.03)


def test_members_that_advertise_an_address_are_linked(world: Members) -> None:
    first, second = (proxy.fleet for proxy in world.proxies)
    first.member.facts["admin"], second.member.facts["admin"] = "127.0.0.1:19404", "10.0.0.7:19404"
    world.pass_seconds(3)
    names = [each.member.caps.name for each in (first, second)]
    assert page(world)["admin_addresses"] == [
        {"member": names[0], "admin": "127.0.0.1:19404", "here": True},
        {"member": names[1], "admin": "10.0.0.7:19404", "here": False},
    ]
    assert FleetPage(first).member == names[0]
    assert FleetPage(first).links() == [{"name": names[1], "url": "http://10.0.0.7:19404/"}]
    second.member.facts["admin"] = "javascript:alert(1)"
    world.pass_seconds(3)
    assert FleetPage(first).links() == []


def test_the_text_says_who_uses_how_much(world: Members) -> None:
    lines = list(text_of(page(world)))
    assert lines[0] == "fleet team: 2 of at most 10 members"
    assert "has joined" in lines[1]
    assert "client-id:etl producer_byte_rate: 500,000/s for all, 100% claimed" in lines
    [lowest] = [line for line in lines if line.startswith("  the lowest quota applies to all, that of pod-1/")]
    assert lowest.endswith("; here it is 1,000,000/s")
    members = {line.split()[0].partition("/")[0]: line for line in lines[-2:]}
    assert list(members) == ["pod-1", "pod-0"], "the one with the lowest quota comes first"
    assert members["pod-1"].endswith(" lowest quota")
    assert [name for name, line in members.items() if line.endswith("(this proxy)")] == ["pod-0"]


def test_the_member_that_holds_everyone_back_is_listed_whatever_else_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "MAX_MEMBERS", 2)
    monkeypatch.setattr(status, "MAX_LIMITS", 1)
    with a_fleet() as world:
        proxies = [
            world.join(entry(), entry(client_id="c-0"), entry(rate, "c-1"), entry(client_id="c-2"))
            for rate in (QUOTA, QUOTA, QUOTA, QUOTA // 10)
        ]
        for proxy in proxies:
            proxy.wants = True
            for number in range(3):
                proxy.wanted += proxy.registry.resolve("alice", f"c-{number}").produce.limits
        world.pass_seconds(5)
        for place, proxy in enumerate(proxies):
            [limit] = json.loads(FleetPage(proxy.fleet).respond().body)["limits"]
            assert limit["entity"] == "client-id:c-1"
            first, second = limit["members"]
            assert (first["quota"], first["lowest"], first["here"]) == (QUOTA // 10, True, place == 3)
            assert not second["lowest"]


def test_one_that_has_left_is_leaving_and_one_that_is_away_says_why(world: Members) -> None:
    one, two = world.proxies
    two.wants = False
    assert world.run(5, two.loop.create_task(two.fleet.close()).done)
    two.is_stopped = True
    world.pass_seconds(1)
    lines = list(text_of(page(world)))
    assert lines[0] == "fleet team: 1 of at most 10 members, 1 leaving"
    assert [line for line in lines if " leaving" in line and "pod-1/" in line]
    one.log.error = LogFailed("authorization", "not allowed to read \x1b")
    world.pass_seconds(20)
    line = list(text_of(page(world)))[1]
    assert "has not joined: not allowed to read" in line
    assert "\x1b" not in line


def test_metrics(world: Members) -> None:
    proxy = world.proxies[0]
    text = asyncio.run(expose(Metrics(), TEXT, proxy.fleet)).decode()
    labels = {"limit": "producer_byte_rate", "entity": "client-id:etl"}
    assert sum_of(text, "fleet_quota", **labels) == QUOTA // 2
    assert sum_of(text, "fleet_claimed_ratio", **labels) == pytest.approx(1, rel=0.02)
    assert {
        name: sum_of(text, f"fleet_{name}")
        for name in ("joined", "members", "max_members", "shared_limits", "lower_quotas", "lapses_total")
    } == {"joined": 1, "members": 2, "max_members": 10, "shared_limits": 1, "lower_quotas": 1, "lapses_total": 0}
    proxy.fleet.differences.compare(LimitNames(["client-id:etl producer_byte_rate"]))
    world.proxies[1].fleet.differences.compare(LimitNames())
    world.pass_seconds(3)
    text = asyncio.run(expose(Metrics(), TEXT, proxy.fleet)).decode()
    assert sum_of(text, "fleet_members_lacking_limits") == 1
    assert f"{world.proxies[1].member.caps.name} lacks client-id:etl producer_byte_rate" in text_of(page(world))
    assert sum_of(text, "fleet_delivery_seconds_count") == sum_of(text, "fleet_records_total", direction="sent")
    assert "fleet_" not in asyncio.run(expose(Metrics(), TEXT)).decode(), "without a fleet"


def test_series_are_bounded() -> None:
    with a_fleet() as world:
        proxy = world.join(entry(), *(entry(client_id=f"c-{number}") for number in range(30)))
        for number in range(30):
            proxy.wanted += proxy.registry.resolve("alice", f"c-{number}").produce.limits
        world.pass_seconds(2)
        metrics = Metrics()
        metrics.entities.max_entities = 10
        text = asyncio.run(expose(metrics, TEXT, proxy.fleet)).decode()
        assert text.count("kafka_quota_proxy_fleet_quota{") == 10
        found = json.loads(FleetPage(proxy.fleet).respond().body)
        assert len(found["limits"]) == 30
        assert all(limit["caps_ratio"] <= 1 for limit in found["limits"])


def test_without_a_fleet_there_is_no_page() -> None:
    assert FleetPage().respond().status == 404
