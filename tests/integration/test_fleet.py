"""Proxies that share one quota through a real topic: in sum they keep it, whatever happens to them and to the topic."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from deploy.local.cluster import KafkaCluster
from tests.integration.flood import Flood, create_topics
from tests.integration.proxy_process import ProxyProcess, eventually

QUOTA = 2_000_000
MAX_MEMBERS = 8
JOIN_SECONDS = 60.0
SECONDS = 4.0
FLOOR = QUOTA * 0.02 / MAX_MEMBERS
SHARE = QUOTA / MAX_MEMBERS


class Fleet:
    """Proxies with one quota on all bytes that are produced, each with a client that wants more."""

    def __init__(self, cluster: KafkaCluster, unique_name: Callable[[str], str]) -> None:
        self.cluster = cluster
        self.topic = unique_name("fleet")
        self.data_topic = unique_name("orders")
        create_topics(cluster, self.data_topic)
        self.stacks: dict[ProxyProcess, ExitStack] = {}

    @property
    def proxies(self) -> list[ProxyProcess]:
        return list(self.stacks)

    def join(self, *flags: str, floods: bool = True) -> ProxyProcess:
        quota = f"total=true,producer_byte_rate={QUOTA}"
        fleet = ("--fleet", "etl", "--fleet-topic", self.topic, "--fleet-max-members", str(MAX_MEMBERS))
        proxy = ProxyProcess(self.cluster.bootstrap_servers, *fleet, "--quota", quota, *flags)
        stack = self.stacks[proxy] = ExitStack()
        stack.enter_context(proxy)
        if floods:
            client_id = f"client-{len(self.stacks)}"
            stack.enter_context(Flood(proxy.bootstrap_servers, client_id, self.data_topic))
        return proxy

    def leave(self, proxy: ProxyProcess) -> None:
        """Its client, then itself."""
        self.stacks.pop(proxy).close()

    def kill(self, proxy: ProxyProcess) -> None:
        self.stacks.pop(proxy).pop_all()
        proxy.kill()

    def rates(self) -> list[float]:
        return [proxy.metric("quota_limit") for proxy in self.proxies]

    def allowed(self) -> float:
        """What all may use, read one after the other."""
        return sum(float(limit["allowed"]) for proxy in self.proxies for limit in page_of(proxy)["limits"])

    def passed(self) -> float:
        return sum(proxy.metric("bytes_total", direction="produce") for proxy in self.proxies)

    def wait_for_join(self) -> None:
        for proxy in self.proxies:
            eventually(partial(proxy.metric, "fleet_joined"), JOIN_SECONDS, "it has joined")

    def check(self, extra: float = 0) -> None:
        """All have their parts, and what passes is the quota."""
        most = QUOTA / len(self.proxies)
        eventually(lambda: min(self.rates()) > 0.9 * most, 30, "all have their parts")
        self.check_passed(extra)

    def check_passed(self, extra: float = 0) -> None:
        """What passes takes its time. Each number is up to a second old."""
        began, before, wanted = time.monotonic(), self.passed(), QUOTA * SECONDS
        eventually(lambda: self.passed() - before >= wanted, 10 * SECONDS, "clients go on")
        assert (time.monotonic() - began) * (1 + extra) >= SECONDS - 1.2
        assert self.allowed() <= QUOTA * (1 + extra)


@pytest.fixture
def fleet(kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]) -> Iterator[Fleet]:
    running = Fleet(kafka_cluster, unique_name)
    try:
        yield running
    finally:
        with ExitStack() as ending:
            for stack in running.stacks.values():
                ending.push(stack)


def page_of(proxy: ProxyProcess) -> dict[str, Any]:
    status, body = proxy.get("/fleet", "application/json")
    assert status == 200, body
    page: dict[str, Any] = json.loads(body)
    return page


def config_of(cluster: KafkaCluster, topic: str) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    [future] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in future.result(20).items()}


@pytest.mark.timeout(240)
def test_two_proxies_hold_one_quota_and_its_parts_go_where_they_are_wanted(fleet: Fleet) -> None:
    one, two = fleet.join(), fleet.join()
    fleet.wait_for_join()
    fleet.check()
    config = config_of(fleet.cluster, fleet.topic)
    assert (config["cleanup.policy"], config["message.timestamp.type"]) == ("delete", "LogAppendTime")
    assert fleet.proxies[0].metric("fleet_quota", entity="total") == QUOTA
    [held] = eventually(one.throttles, 20, "its client is held")
    assert (held["limit_value"], held["fleet"], held["fleet_members"]) == (QUOTA, "etl", 2)
    assert FLOOR < held["allowed_here"] < QUOTA
    line = next(each for each in one.events if each["event"] == "throttled")
    assert (line["limit_value"], line["fleet"]) == (QUOTA, "etl")
    third = fleet.join(floods=False)
    eventually(lambda: third.metric("fleet_joined"), JOIN_SECONDS, "a third one has joined")
    assert third.metric("fleet_members") == 3
    fleet.leave(two)
    eventually(lambda: one.metric("quota_limit") > 0.95 * QUOTA, 10, "what it gave back is used")


@pytest.mark.nightly  # the short form: tests/proxy/fleet, in virtual time
@pytest.mark.timeout(300)
def test_the_topic_away_stops_nobody_and_makes_nobody_unlimited(
    fleet: Fleet, unique_name: Callable[[str], str]
) -> None:
    """It is deleted while all use it. They create it again, as it has to be."""
    one, two = fleet.join(), fleet.join()
    fleet.wait_for_join()
    fleet.check()
    admin = AdminClient({"bootstrap.servers": fleet.cluster.bootstrap_servers})
    for done in admin.delete_topics([fleet.topic]).values():
        done.result(30)
    for proxy in (one, two):
        assert proxy.wait_for_event("fleet_away", 40)["fleet"] == "etl"
        assert proxy.get("/readyz", "text/plain")[0] == 200
        assert page_of(proxy)["limits"][0]["allowed"] <= SHARE
    fleet.wait_for_join()
    fleet.check()
    assert config_of(fleet.cluster, fleet.topic)["message.timestamp.type"] == "LogAppendTime"


@pytest.mark.timeout(120)
def test_a_topic_of_another_kind_is_refused_with_what_to_change(fleet: Fleet) -> None:
    admin = AdminClient({"bootstrap.servers": fleet.cluster.bootstrap_servers})
    new = NewTopic(fleet.topic, 3, config={"message.timestamp.type": "CreateTime"})
    for created in admin.create_topics([new]).values():
        created.result(30)
    proxy = fleet.join(floods=False)
    proxy.expected_errors.add("fleet_topic_refused")
    refused = proxy.wait_for_event("fleet_topic_refused", 30)
    assert "--add-config message.timestamp.type=LogAppendTime" in refused["message"]
    assert "3 partitions, and must have one" in refused["message"]
    assert proxy.metric("fleet_errors_total", reason="topic_differs") >= 1
    assert proxy.get("/readyz", "text/plain")[0] == 200


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_members_that_are_stopped_and_killed(fleet: Fleet) -> None:
    one, two, three, four = [fleet.join() for _ in range(4)]
    fleet.wait_for_join()
    fleet.check()
    os.kill(two.pid, signal.SIGSTOP)
    sums: list[float] = []

    def others_have_it() -> bool:
        sums.append(sum(page_of(proxy)["limits"][0]["allowed"] for proxy in (one, three, four)))
        return sums[-1] > 0.9 * QUOTA

    eventually(others_have_it, 25, "the part of the one that is stopped is used")
    assert max(sums) <= QUOTA
    os.kill(two.pid, signal.SIGCONT)
    assert page_of(two)["limits"][0]["allowed"] <= SHARE
    fleet.check()
    fleet.kill(three)
    eventually(lambda: fleet.allowed() > 0.95 * QUOTA, 25, "the part of the one that was killed is used")
    fleet.check()


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_restart_of_the_broker(kafka_cluster: KafkaCluster, fleet: Fleet) -> None:
    fleet.join()
    fleet.join()
    fleet.wait_for_join()
    fleet.check()
    kafka_cluster.stop_broker(1)

    def is_opened_again(proxy: ProxyProcess) -> bool:
        return any(each["event"] == "fleet_failed" and each["reason"] == "silent" for each in proxy.events)

    for proxy in fleet.proxies:
        eventually(partial(is_opened_again, proxy), 60, "it gives up its clients")
    kafka_cluster.start_broker(1)
    fleet.wait_for_join()
    eventually(lambda: fleet.allowed() > 0.95 * QUOTA, 60, "all as before")
    assert fleet.allowed() <= QUOTA
