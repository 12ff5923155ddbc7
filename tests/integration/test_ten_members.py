"""Ten proxies of a fleet with a quota in a topic, while what they need fails: some of them, both topics, their rights.

`tests/proxy/fleet` has most of it in virtual time, `test_fleet` and `test_quotas_topic` one failure at a time.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AclBinding, AclBindingFilter, AclPermissionType, OffsetSpec, ResourceType
from confluent_kafka.admin import AclOperation as Right
from confluent_kafka.admin import ResourcePatternType as Pattern

from demo.moving_client import now_ns
from deploy.local.cluster import KafkaCluster
from deploy.local.granted import grants_of, most_granted
from deploy.local.security import Security
from tests.conftest import UniqueName
from tests.integration.flood import Flood
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.test_own_login import properties
from tests.integration.test_quotas_topic import PRODUCED, Command
from tests.integration.topics import admin_of, create_topics, delete_topic

MEMBERS, MAX_MEMBERS = 10, 12
QUOTA, RAISED, LOWERED = 600_000, 900_000, 300_000
RECORD_BYTES: Final = 500
"""At its floor of 500 to 1,500 B/s, a member passes one in a second."""
DEADLINE_SECONDS = 90.0
LEASE_NS = 16_000_000_000
MOST_STALLED_SECONDS = 10.0
PROTOCOL, USER = "SASL_PLAINTEXT", "User:etl"


class Progress:
    """The longest time in which nothing of a flood was acknowledged, looked at all the time."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}
        self._seen: dict[Flood, tuple[int, float]] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def follow(self, flood: Flood) -> None:
        self._seen[flood] = flood.records(), time.monotonic()

    def leave_out(self, flood: Flood) -> None:
        self._seen.pop(flood, None)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.05):
            now = time.monotonic()
            for flood, (records, since) in list(self._seen.items()):
                if flood.records() > records:
                    self._seen[flood] = flood.records(), now
                self.longest[flood.client_id] = max(self.longest.get(flood.client_id, 0.0), now - since)


class Members:
    """The proxies by name, each with a producer that wants more. Clients need no login, the proxies' own clients do."""

    def __init__(self, cluster: KafkaCluster, client_file: Path, unique_name: UniqueName) -> None:
        self.cluster = cluster
        self.topic, self.fleet_topic, self.data_topic = map(unique_name, ("quotas", "fleet", "orders"))
        self.proxies: dict[str, ProxyProcess] = {}
        self.floods: dict[str, Flood] = {}
        self.killed: list[tuple[ProxyProcess, Flood]] = []
        self.progress = Progress()
        self.command = Command(cluster, self.topic, self.fleet_topic)
        self._file = client_file
        create_topics(cluster, self.data_topic)

    def start(self, *names: str) -> None:
        flags = ["--fleet", "jobs", "--fleet-topic", self.fleet_topic, "--fleet-max-members", f"{MAX_MEMBERS}"]
        flags += ["--fleet-fallback", "floor", "--quotas-topic", self.topic, "--log-level", "debug"]
        flags += ["--own-client-config", str(self._file)]
        started = {name: ProxyProcess(self.cluster.bootstrap_servers, *flags, "--sidecar-name", name) for name in names}
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ProxyProcess.start, started.values()))
        self.proxies |= started
        for name, proxy in started.items():
            flood = Flood(proxy.bootstrap_servers, name, self.data_topic, record_bytes=RECORD_BYTES, acks="all")
            self.floods[name] = flood
            flood.__enter__()
            self.progress.follow(flood)

    def kill(self, name: str) -> None:
        proxy, flood = self.proxies.pop(name), self.floods.pop(name)
        self.progress.leave_out(flood)
        proxy.kill()
        flood.__exit__(None, None, None)
        self.killed.append((proxy, flood))

    def __enter__(self) -> Members:
        self.progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        with ExitStack() as ending:
            ending.push(self.progress)
            for name in self.proxies:
                ending.push(self.proxies[name])
                ending.push(self.floods[name])
            ending.pop_all().__exit__(*error)

    def limits(self) -> set[float]:
        """What the topic allows all members together, as each applies it."""
        return {limit_of(proxy) for proxy in self.proxies.values()}

    def allowed(self, but: str = "") -> float:
        """What all but one might use now."""
        return sum(proxy.metric("quota_limit") for name, proxy in self.proxies.items() if name != but)

    def wait_until_used(self, rate: int, but: str = "") -> None:
        eventually(lambda: self.allowed(but) > 0.9 * rate, DEADLINE_SECONDS, "all of the limit is used")

    def wait_for_join(self) -> None:
        for name, proxy in self.proxies.items():
            eventually(partial(proxy.metric, "fleet_joined"), DEADLINE_SECONDS, f"{name} has joined")

    def wait_for(self, event: str, **fields: str) -> None:
        """All of them have logged it."""
        for proxy in self.proxies.values():
            proxy.wait_for_event(event, DEADLINE_SECONDS, **fields)

    def set(self, rate: int) -> None:
        """One command, until it is in force at all."""
        first = self.command("set", "total=true", f"{PRODUCED}={rate}", "--timeout", "60s")[0]
        count = len(self.proxies)
        assert first.startswith(f"# in force at {count} of {count} members after"), first
        eventually(lambda: self.limits() == {rate}, 30, "those that were killed count no more")

    def set_in_vain(self, rate: int, *names: str) -> None:
        """One command, which names those that cannot apply it: as missing, or as silent if the machine is slow."""
        lines = self.command("set", "total=true", f"{PRODUCED}={rate}", "--timeout", "4s", code=None)
        named = [line.rpartition(": ")[2].partition("/")[0] for line in lines if ": pod-" in line]
        assert named == sorted(names), lines

    def check_sum(self, since_ns: int, most: int) -> None:
        """By what each has logged: never above the limit, with --fleet-fallback=floor."""
        logs = [proxy.events for proxy in (*self.proxies.values(), *(proxy for proxy, _ in self.killed))]
        total, at_ns = most_granted((each for log in logs for each in grants_of(list(log)).values()), since_ns)
        assert 0 < total <= most + 1, f"{total} at {at_ns}"

    def check_nothing_lost(self) -> None:
        """All that was acknowledged is in the topic, and clients of proxies that lived noticed nothing."""
        assert {name: flood.problems for name, flood in self.floods.items() if flood.problems} == {}
        acknowledged = sum(each.records() for each in (*self.floods.values(), *(flood for _, flood in self.killed)))
        place = TopicPartition(self.data_topic, 0)
        admin = admin_of(self.cluster)
        [end] = admin.list_offsets({place: OffsetSpec.latest()}).values()
        assert end.result(20).offset >= acknowledged > 0


def limit_of(proxy: ProxyProcess) -> float:
    rows = proxy.page("/limits")
    return float(next((row.get("fleet_value", 0) for row in rows if row["limit"] == PRODUCED), 0))


@pytest.fixture
def cluster(security: Security) -> Iterator[KafkaCluster]:
    """Brokers and tests, without a login, may do all."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    overrides = {"authorizer.class.name": authorizer, "super.users": "User:ANONYMOUS"}
    with KafkaCluster(1, overrides=overrides, security=security) as running:
        yield running


class Rights:
    """What the proxies' own user may do."""

    def __init__(self, cluster: KafkaCluster, *topics: str) -> None:
        self._admin = admin_of(cluster)
        self._topics = topics

    def give(self) -> None:
        allowed = [
            AclBinding(ResourceType.TOPIC, topic, Pattern.LITERAL, USER, "*", right, AclPermissionType.ALLOW)
            for topic in self._topics
            for right in (Right.READ, Right.WRITE, Right.DESCRIBE_CONFIGS, Right.CREATE)
        ]
        for given in self._admin.create_acls(allowed).values():
            given.result(20)

    def take(self) -> None:
        anything = (ResourceType.TOPIC, None, Pattern.ANY, USER, None, Right.ANY, AclPermissionType.ANY)
        [taken] = self._admin.delete_acls([AclBindingFilter(*anything)]).values()
        assert len(taken.result(20)) == 4 * len(self._topics)


@pytest.mark.nightly  # the short forms: tests/proxy/fleet, test_quotas_topic
@pytest.mark.claim("fleet", "a proxy is stopped, killed")
@pytest.mark.claim("fleet", "ten proxies under SIGSTOP, SIGKILL, deleted topics and lost rights keep one limit")
@pytest.mark.timeout(900)
def test_ten_proxies_keep_the_limit_of_the_topic_whatever_fails(
    cluster: KafkaCluster, security: Security, tmp_path: Path, unique_name: UniqueName
) -> None:
    file = properties(tmp_path, security, PROTOCOL, "SCRAM-SHA-512")
    with file.open("a") as settings:
        settings.write(f"\nbootstrap.servers={cluster.secure_addresses(PROTOCOL)}\n")
    with Members(cluster, file, unique_name) as members:
        rights = Rights(cluster, members.topic, members.fleet_topic)
        rights.give()
        members.command("set", "total=true", f"{PRODUCED}={QUOTA}", "burst_seconds=0.1")
        members.start(*(f"pod-{number}" for number in range(MEMBERS)))
        members.wait_for_join()
        since_ns = now_ns()
        members.wait_until_used(QUOTA)
        members.check_sum(since_ns, QUOTA)
        members.set(RAISED)
        check_one_that_is_stopped(members)
        check_one_that_is_killed(members)
        check_topics_that_are_deleted(members)
        check_rights_that_are_lost(members, rights)
        members.check_sum(since_ns, RAISED)
        members.check_nothing_lost()
        print(members.progress.longest)
        assert max(members.progress.longest.values()) < MOST_STALLED_SECONDS


def check_one_that_is_stopped(members: Members) -> None:
    stopped, flood = members.proxies["pod-3"], members.floods["pod-3"]
    members.progress.leave_out(flood)
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        ended_ns = now_ns() + LEASE_NS  # until then it might use its share of the higher limit, if it ran
        members.set_in_vain(LOWERED, "pod-3")
        eventually(lambda: now_ns() > ended_ns, 60, "its lease has ended")
        members.wait_until_used(LOWERED, but="pod-3")
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    eventually(lambda: members.limits() == {LOWERED}, 30, "it has applied what it missed")
    members.progress.follow(flood)
    members.wait_for_join()
    members.check_sum(ended_ns, LOWERED)


def check_one_that_is_killed(members: Members) -> None:
    members.kill("pod-5")
    members.start("pod-10")
    members.wait_for_join()
    members.set(QUOTA)
    members.wait_until_used(QUOTA)


def check_topics_that_are_deleted(members: Members) -> None:
    delete_topic(members.cluster, members.fleet_topic)
    members.wait_for("fleet_topic_changed", reason="topic_missing")
    members.wait_for_join()
    members.set(RAISED)
    delete_topic(members.cluster, members.topic)
    members.wait_for("quotas_topic_failed", reason="topic_missing")
    assert members.limits() == {RAISED}, "what was read last"
    members.set(QUOTA)


def check_rights_that_are_lost(members: Members, rights: Rights) -> None:
    rights.take()
    members.wait_for("quotas_topic_failed", reason="authorization")
    members.set_in_vain(LOWERED, *members.proxies)
    members.wait_for("fleet_away")
    assert members.limits() == {QUOTA}, "what was read last"
    rights.give()
    members.wait_for_join()
    eventually(lambda: members.limits() == {LOWERED}, 30, "they read again")
