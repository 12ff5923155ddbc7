"""What operators see of a fleet: the page, the command's text, and the metrics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy.admin.exposition import TEXT, expose
from proxy.admin.fleet import FleetPage, text_of
from proxy.config.config import Config
from proxy.observability.metrics import Metrics
from tests.integration.proxy_process import sum_of
from tests.proxy.fleet.world import QUOTA, World, a_world, entry


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Two members, of which the second has a lower quota; both want more."""
    async with a_world() as made:
        for proxy in [await made.join(entry(rate)) for rate in (QUOTA, QUOTA // 2)]:
            proxy.wants = True
        await made.until(lambda: min(each.rate for each in made.proxies) > 0.2 * QUOTA, 3)
        await made.pass_seconds(1)
        yield made


def page(world: World) -> dict[str, Any]:
    response = FleetPage(world.proxies[0].fleet).respond()
    assert (response.status, response.content_type) == (200, "application/json; charset=utf-8")
    found: dict[str, Any] = json.loads(response.body)
    return found


async def test_the_page_has_members_with_their_caps_and_wants(world: World) -> None:
    found = page(world)
    assert (found["fleet"], found["joined"], found["members"], found["max_members"]) == ("team", True, 2, 10)
    assert found["refused_records"] == {"void": 0, "foreign": 0, "clashes": 0, "overflows": 0}
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


async def test_the_text_says_who_uses_how_much(world: World) -> None:
    lines = list(text_of(page(world)))
    assert lines[0] == "fleet team: 2 of at most 10 members"
    assert "has joined" in lines[1]
    assert "client-id:etl producer_byte_rate: 500,000/s for all, 100% claimed" in lines
    assert "  its own quota is 1,000,000/s: another member states a lower one" in lines
    assert [line.split()[0].partition("/")[0] for line in lines[-2:]] == ["pod-0", "pod-1"]
    assert lines[-2].endswith("(this proxy)")


async def test_no_name_is_a_command_to_a_terminal(world: World) -> None:
    found = page(world)
    found["limits"][0]["entity"] = "client-id:\x1b[2J"
    assert "\x1b" not in "".join(text_of(found))


async def test_metrics(world: World) -> None:
    proxy = world.proxies[0]
    text = (await expose(Metrics(Config()), TEXT, proxy.fleet)).decode()
    labels = {"limit": "producer_byte_rate", "entity": "client-id:etl"}
    assert sum_of(text, "fleet_quota", **labels) == QUOTA // 2
    assert sum_of(text, "fleet_claimed_ratio", **labels) == pytest.approx(1, rel=0.02)
    assert {
        name: sum_of(text, f"fleet_{name}")
        for name in ("joined", "members", "max_members", "shared_limits", "lower_quotas", "lapses_total")
    } == {"joined": 1, "members": 2, "max_members": 10, "shared_limits": 1, "lower_quotas": 1, "lapses_total": 0}
    assert sum_of(text, "fleet_delivery_seconds_count") == sum_of(text, "fleet_records_total", direction="sent")
    assert "fleet_" not in (await expose(Metrics(Config()), TEXT)).decode(), "without a fleet"


async def test_series_are_bounded() -> None:
    async with a_world() as world:
        proxy = await world.join(entry(), *(entry(client_id=f"c-{number}") for number in range(30)))
        for number in range(30):
            proxy.wanted += proxy.registry.resolve("alice", f"c-{number}").produce.limits
        await world.pass_seconds(2)
        metrics = Metrics(Config())
        metrics.entities.max_entities = 10
        text = (await expose(metrics, TEXT, proxy.fleet)).decode()
        assert text.count("kafka_quota_proxy_fleet_quota{") == 10
        found = json.loads(FleetPage(proxy.fleet).respond().body)
        assert len(found["limits"]) == 30
        assert all(limit["caps_ratio"] <= 1 for limit in found["limits"])


def test_without_a_fleet_there_is_no_page() -> None:
    assert FleetPage().respond().status == 404
