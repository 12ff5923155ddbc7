"""Proxies that share one quota through a real topic: in sum they keep it, whatever happens to them and to the topic."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from demo.moving_client import now_ns
from deploy.local.cluster import KafkaCluster
from deploy.local.granted import grants_of, most_granted
from deploy.local.tools import program_command
from tests.conftest import UniqueName
from tests.integration.flood import Flood
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.topics import admin_of, config_of, create_topics, delete_topic, set_config

pytestmark = [
    pytest.mark.claim(
        "fleet", "two proxies and a real topic hold one quota; the topic is deleted; one of another kind is refused"
    ),
    pytest.mark.claim("fleet", "what is in the topic is never decompressed, and a few records at a time are read"),
    pytest.mark.claim(
        "fleet",
        "a client that starts is told of the wait at the share that is being claimed; what counts is what it was told",
    ),
    pytest.mark.claim("fleet", "the broker is away for longer than all leases"),
    pytest.mark.claim("fleet", "records of the topic are deleted, or it is made anew with fewer"),
]

QUOTA = 2_000_000
MAX_MEMBERS = 8
JOIN_SECONDS = 60.0
SECONDS = 4.0
OVERDUE_SECONDS = 15.0
"""Without history, a member waits 15.6 s until all leases that it may have missed are over."""
FLOOR = QUOTA * 0.02 / MAX_MEMBERS
SHARE = QUOTA / MAX_MEMBERS


class Fleet:
    """Proxies with one quota on all bytes that are produced, each with a client that wants more.

    ever: all that were members, those that have gone, too.
    """

    def __init__(self, cluster: KafkaCluster, unique_name: UniqueName) -> None:
        self.cluster = cluster
        self.topic = unique_name("fleet")
        self.data_topic = unique_name("orders")
        create_topics(cluster, self.data_topic)
        self.stacks: dict[ProxyProcess, ExitStack] = {}
        self.ever: list[ProxyProcess] = []

    @property
    def proxies(self) -> list[ProxyProcess]:
        return list(self.stacks)

    def join(self, *flags: str, floods: bool = True) -> ProxyProcess:
        quota = f"total=true,producer_byte_rate={QUOTA}"
        fleet = ("--fleet", "etl", "--fleet-topic", self.topic, "--fleet-max-members", str(MAX_MEMBERS))
        flags = (*fleet, "--quota", quota, "--log-level", "debug", *flags)
        proxy = ProxyProcess(self.cluster.bootstrap_servers, *flags)
        self.ever.append(proxy)
        stack = self.stacks[proxy] = ExitStack()
        stack.enter_context(proxy)
        if floods:
            stack.enter_context(Flood(proxy.bootstrap_servers, f"client-{len(self.ever)}", self.data_topic))
        return proxy

    def leave(self, proxy: ProxyProcess) -> None:
        """Its client, then itself."""
        self.stacks.pop(proxy).close()

    def rates(self) -> list[float]:
        return [proxy.metric("quota_limit") for proxy in self.proxies]

    def check_sum(self, since_ns: int, away: int = 0) -> None:
        """What all might use at each moment since then, by their logs: never above the quota, but by the shares of
        those that are away, or have not joined yet, while others are not.
        """
        grants = (each for proxy in self.ever for each in grants_of(list(proxy.events)).values())
        most, at_ns = most_granted(grants, since_ns)
        assert QUOTA / 2 < most <= QUOTA + away * SHARE + 1, f"{most} at {at_ns}"

    def passed(self) -> float:
        return sum(proxy.metric("bytes_total", direction="produce") for proxy in self.proxies)

    def wait_for_join(self) -> None:
        for proxy in self.proxies:
            eventually(partial(proxy.metric, "fleet_joined"), JOIN_SECONDS, "it has joined")

    def check(self) -> int:
        """All have their parts, and what passes is the quota. Returns since when."""
        most = QUOTA / len(self.proxies)
        eventually(lambda: min(self.rates()) > 0.9 * most, 30, "all have their parts")
        since_ns = now_ns()
        self.check_passed()
        self.check_sum(since_ns)
        return since_ns

    def check_passed(self) -> None:
        """What passes takes its time. Each number is up to a second old."""
        began, before, wanted = time.monotonic(), self.passed(), QUOTA * SECONDS
        eventually(lambda: self.passed() - before >= wanted, 10 * SECONDS, "clients go on")
        assert time.monotonic() - began >= SECONDS - 1.2


@pytest.fixture
def fleet(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> Iterator[Fleet]:
    running = Fleet(kafka_cluster, unique_name)
    try:
        yield running
    finally:
        with ExitStack() as ending:
            for stack in running.stacks.values():
                ending.push(stack)


def most_memory_kb(proxy: ProxyProcess) -> int:
    """The largest that it ever was."""
    [size] = re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{proxy.pid}/status").read_text())
    return int(size)


def allowed(proxy: ProxyProcess) -> float:
    """What it may use now. While nobody has stated anything, /fleet lists no limit."""
    limits = proxy.page("/fleet")["limits"]
    return float(limits[0]["allowed"]) if limits else proxy.metric("quota_limit")


def delete_records(fleet: Fleet) -> None:
    """All that are in the fleet's topic now."""
    admin = admin_of(fleet.cluster)
    for deleted in admin.delete_records([TopicPartition(fleet.topic, 0, OFFSET_END)]).values():
        deleted.result(30)


def is_made(fleet: Fleet) -> bool:
    """Whether its topic is made anew by this call: the one that is being deleted may still be there."""
    new = NewTopic(fleet.topic, 1, config={"message.timestamp.type": "LogAppendTime"})
    admin = admin_of(fleet.cluster)
    error = admin.create_topics([new])[fleet.topic].exception(30)
    assert error is None or error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS, error
    return error is None


def check_all_members(proxy: ProxyProcess, clients: set[str]) -> None:
    """From one of three members, a user sees the clients of all; a browser finds the way to the others."""

    def of_all(command: str) -> Any:
        program = Path(sys.executable).with_name("kafka-quota-proxy")
        arguments = (command, "--proxy", proxy.admin_address, "--fleet", "etl", "--json")
        return json.loads(subprocess.run([program, *arguments], check=True, capture_output=True).stdout)

    def joined() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = of_all("fleet")["members"]
        return found if [each["joined"] for each in found] == [True] * 3 else []

    members = eventually(joined, 60, "all answer")
    shown = of_all("explain")
    assert {row["client_id"]: row["members"] for row in shown["clients"]} == dict.fromkeys(clients, 1)
    assert shown["unanswered"] == []
    others = [each["member"] for each in members if each["address"] != proxy.admin_address]
    assert sorted(each["name"] for each in proxy.page("/answer")["members"]) == sorted(others)


@pytest.mark.claim("fleet", "one table over all members, with clients summed, and who did not answer")
@pytest.mark.timeout(240)
def test_two_proxies_hold_one_quota_and_its_parts_go_where_they_are_wanted(fleet: Fleet) -> None:
    one, two = fleet.join(), fleet.join()
    fleet.wait_for_join()
    since_ns = fleet.check()
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
    check_all_members(one, {"client-1", "client-2"})
    fleet.leave(two)
    eventually(lambda: one.metric("quota_limit") > 0.95 * QUOTA, 10, "what it gave back is used")
    fleet.check_sum(since_ns, away=1)  # the third one, until it has joined


@pytest.mark.nightly  # the short form: tests/proxy/fleet, in virtual time
@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_remade", [False, True], ids=["deleted", "made anew with fewer records"])
def test_the_topic_away_stops_nobody_and_makes_nobody_unlimited(fleet: Fleet, is_remade: bool) -> None:
    """It is deleted while all use it. They create it again, as it has to be, unless somebody else is faster."""
    one, two = fleet.join(), fleet.join()
    fleet.wait_for_join()
    since_ns = fleet.check()
    delete_topic(fleet.cluster, fleet.topic)
    if is_remade:
        eventually(partial(is_made, fleet), 30, "the topic is made anew")
    for proxy in (one, two):
        if is_remade:
            reason = proxy.wait_for_event("fleet_topic_changed", 30)["reason"]
            assert reason in {"out_of_range", "behind", "topic_missing"}  # the last one between both
        else:
            assert proxy.wait_for_event("fleet_away", 40)["fleet"] == "etl"
            assert proxy.get("/readyz", "text/plain")[0] == 200
            assert allowed(proxy) <= SHARE
    fleet.wait_for_join()
    fleet.check()
    fleet.check_sum(since_ns, away=1)  # both, but not while the other is not
    assert config_of(fleet.cluster, fleet.topic)["message.timestamp.type"] == "LogAppendTime"


@pytest.mark.timeout(120)
def test_a_topic_of_another_kind_is_refused_with_what_to_change(fleet: Fleet) -> None:
    create_topics(fleet.cluster, fleet.topic, partitions=3, config={"message.timestamp.type": "CreateTime"})
    proxy = fleet.join(floods=False)
    proxy.expected_errors.add("fleet_topic_refused")
    refused = proxy.wait_for_event("fleet_topic_refused", 30)
    assert "--add-config message.timestamp.type=LogAppendTime" in refused["message"]
    assert "3 partitions, and must have one" in refused["message"]
    assert proxy.metric("fleet_errors_total", reason="topic_differs") >= 1
    assert proxy.get("/readyz", "text/plain")[0] == 200


@pytest.mark.timeout(180)
def test_what_others_write_stops_no_member(fleet: Fleet) -> None:
    """100 MB of spaces are 10 kB in a compressed batch, which the topic refuses, or members skip."""
    proxy = fleet.join()
    fleet.wait_for_join()
    spaces, failures = b" " * 100_000_000, []
    names = {"compression.type": "zstd", "message.max.bytes": len(spaces) + 1_000, "linger.ms": 0}

    def write() -> None:
        producer = Producer({"bootstrap.servers": fleet.cluster.bootstrap_servers, **names})
        producer.produce(fleet.topic, spaces, on_delivery=lambda error, _: failures.append(error))
        assert producer.flush(60) == 0

    write()
    assert failures.pop().code() == KafkaError.MSG_SIZE_TOO_LARGE
    set_config(fleet.cluster, fleet.topic, "compression.type", "producer")
    before = most_memory_kb(proxy)
    write()
    assert failures.pop() is None
    eventually(lambda: proxy.metric("fleet_refused_records_total", reason="void") >= 1, 30, "it was skipped")
    assert most_memory_kb(proxy) - before < 50_000, "nothing was decompressed"
    fleet.check()


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_restart_of_the_broker(kafka_cluster: KafkaCluster, fleet: Fleet) -> None:
    fleet.join()
    fleet.join()
    fleet.wait_for_join()
    since_ns = fleet.check()
    kafka_cluster.stop_broker(1)

    def is_opened_again(proxy: ProxyProcess) -> bool:
        return any(each["event"] == "fleet_failed" and each["reason"] == "silent" for each in proxy.events)

    for proxy in fleet.proxies:
        eventually(partial(is_opened_again, proxy), 60, "it gives up its clients")
    kafka_cluster.start_broker(1)
    fleet.wait_for_join()
    eventually(lambda: sum(map(allowed, fleet.proxies)) > 0.95 * QUOTA, 60, "all as before")
    fleet.check_sum(since_ns, away=1)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_records_that_are_deleted_are_missed_by_those_who_have_not_read_them(fleet: Fleet) -> None:
    one, two = fleet.join(), fleet.join()
    fleet.wait_for_join()
    since_ns = fleet.check()
    delete_records(fleet)
    fleet.check()
    assert not any(each["event"] == "fleet_topic_changed" for proxy in (one, two) for each in proxy.events)
    os.kill(two.pid, signal.SIGSTOP)
    written = one.metric("fleet_records_total", direction="read")
    eventually(lambda: one.metric("fleet_records_total", direction="read") > written + 2, 20, "more is written")
    delete_records(fleet)
    os.kill(two.pid, signal.SIGCONT)
    assert two.wait_for_event("fleet_topic_changed", 30)["reason"] == "out_of_range"
    eventually(lambda: allowed(two) <= SHARE, 10, "it knows nothing of the others")
    third = fleet.join(floods=False)
    events = third.wait_for_event("fleet", 10), third.wait_for_event("fleet_joined", JOIN_SECONDS)
    started, joined = (datetime.fromisoformat(each["ts"]) for each in events)
    assert (joined - started).total_seconds() > OVERDUE_SECONDS, "who was there before is not in the topic"
    fleet.leave(third)
    fleet.wait_for_join()
    fleet.check()
    fleet.check_sum(since_ns, away=2)


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["3.9.1", "4.3.1"])
def test_a_java_producer_that_starts_has_its_share_from_its_first_seconds_on(fleet: Fleet, version: str) -> None:
    """Beside a member at rest, on a starved JVM. Java sends nothing for as long as it is told to wait: at the floor of
    5 kB/s its first batch was a debt of 20 s. `tests/proxy/fleet/test_slow_start.py` has this in virtual time.
    """
    proxy, _ = (fleet.join(floods=False) for _ in range(2))
    fleet.wait_for_join()
    seconds, record = 5, 10_000
    arguments = ("produce", proxy.bootstrap_servers, "etl", fleet.data_topic, "1", f"{seconds}")
    flood = program_command(version, Path(__file__).with_name("JavaFlood.java"), *arguments)
    done = subprocess.run(["nice", "-n", "10", *flood], capture_output=True, timeout=200, check=True, text=True)
    records, errors = done.stdout.splitlines()
    assert int(errors) == 0
    passed = record * sum(json.loads(records))
    assert 0.7 * QUOTA * seconds < passed < QUOTA * (seconds + 0.5)
    told = [line for line in proxy.events if line["event"] == "throttled" and line["mode"] == "notify"]
    assert all(line["throttle_ms"] <= 100 for line in told)
    times = proxy.metric("throttle_seconds_sum", mode="notify"), proxy.metric("throttle_seconds_count", mode="notify")
    assert times[0] <= 0.1 * times[1], "what it was told, not the debts"
