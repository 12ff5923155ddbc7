"""The disk guard before real brokers: one whose disk is above marks in free bytes that no disk has, and three on small
disks of their own.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.topics import create_topics

FULL = "900000TB..800000TB"


@pytest.mark.claim("limits", "disk_guard")
@pytest.mark.claim("operate", "a full disk stops producers, not consumers, and every page says which disk")
@pytest.mark.timeout(120)
def test_producers_get_a_storage_error_that_they_retry(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    topic = unique_name("disk-guard")
    create_topics(kafka_cluster, topic)
    errors: list[KafkaError | None] = []
    direct = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    direct.produce(topic, b"before")
    assert direct.flush(30) == 0
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--disk-guard", FULL) as proxy:
        settings = {"bootstrap.servers": proxy.bootstrap_servers, "client.id": "etl"}
        producer = Producer({**settings, "request.timeout.ms": 2_000, "message.timeout.ms": 8_000})
        producer.produce(topic, b"one", on_delivery=lambda error, _: errors.append(error))
        producer.poll(0)
        eventually(lambda: refused(proxy), 60, "a request is refused")
        page = proxy.get("/explain", "text/plain")[1]
        assert f"The disk guard {FULL}: broker 1 at " in page
        assert "It stops all producers" in page
        [row] = [each for each in proxy.page("/limits") if each["limit"] == "disk_guard"]
        assert row["source"] == "--disk-guard"
        assert proxy.page("/config")["disk_guard"]["state"] == "full"
        consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])
        assert consumer.poll(30).value() == b"before"
        consumer.commit(asynchronous=False)
        consumer.close()
        producer.flush(30)
        [error] = errors
        assert error is not None
        assert error.code() == KafkaError._MSG_TIMED_OUT, "it has retried as long as its user lets it"


@contextmanager
def broker_with_a_small_disk() -> Iterator[KafkaCluster]:
    """One broker, its disk in memory."""
    try:
        cluster = KafkaCluster(1, overrides={"log.index.size.max.bytes": "65536"}, disk_bytes=300_000_000).start()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"a disk of its own for the broker cannot be mounted here, which only root may do: {error}")
    with cluster:
        yield cluster


def fill(cluster: KafkaCluster, percent: int) -> None:
    """Make the disk this full, with a file that brokers ignore."""
    disk, path = os.statvfs(cluster.data_path(1)), cluster.data_path(1) / "filler"
    with path.open("ab") as file:
        missing = (disk.f_blocks * percent // 100 - (disk.f_blocks - disk.f_bavail)) * disk.f_frsize
        size = file.tell() + missing
        file.truncate(min(size, file.tell()))
        os.posix_fallocate(file.fileno(), 0, size)


def guard_of(proxy: ProxyProcess) -> dict[str, Any]:
    return dict(proxy.page("/config")["disk_guard"])


@pytest.mark.claim("operate", "the lowest factor of a fleet applies to all its members within 10 s")
@pytest.mark.timeout(240)
def test_the_lowest_factor_of_a_fleet_applies_to_all_its_members(unique_name: UniqueName) -> None:
    fleet = ("--fleet", "disks", "--fleet-topic", unique_name("fleet"))
    with broker_with_a_small_disk() as cluster:
        fill(cluster, 50)
        create_topics(cluster, "flood")
        servers = cluster.bootstrap_servers
        with (
            ProxyProcess(servers, "--disk-guard", "40%..60%", *fleet) as strict,
            ProxyProcess(servers, "--disk-guard", "90%..95%", *fleet) as lax,
        ):
            eventually(lambda: strict.metric("fleet_joined") and lax.metric("fleet_joined"), 60, "they are a fleet")
            eventually(lambda: guard_of(lax)["factor"] < 1, 10, "half of the room of the other one is left")
            assert guard_of(lax)["factor"] == pytest.approx(0.5, abs=0.05)
            assert guard_of(lax)["state"] == guard_of(strict)["state"] == "slowing"
            fill(cluster, 62)
            eventually(lambda: guard_of(strict)["state"] == "full", 20, "it has read the disk again")
            eventually(lambda: guard_of(lax)["state"] == "full", 10, "and so does the other one")
            delivered: list[KafkaError | None] = []
            producer = Producer({"bootstrap.servers": lax.bootstrap_servers, "request.timeout.ms": 2_000})
            producer.produce("flood", b"one", on_delivery=lambda error, _: delivered.append(error))
            eventually(lambda: producer.poll(0) or refused(lax), 30, "a request is refused")
            assert "a disk is nearly full, by another member of the fleet" in lax.get("/explain", "text/plain")[1]
            fill(cluster, 20)
            assert producer.flush(60) == 0
            assert delivered == [None]


@pytest.mark.claim("operate", "an open transaction ends while producers are stopped, and a later one waits")
@pytest.mark.timeout(240)
def test_an_open_transaction_ends_at_hard_and_the_next_one_is_retried() -> None:
    with broker_with_a_small_disk() as cluster:
        fill(cluster, 45)  # between the marks, where disks are read every 5 s
        create_topics(cluster, "ledger")
        with ProxyProcess(cluster.bootstrap_servers, "--disk-guard", "40%..60%") as proxy:
            settings = {"bootstrap.servers": proxy.bootstrap_servers, "transactional.id": "ledger"}
            producer = Producer({**settings, "request.timeout.ms": 2_000})
            producer.init_transactions(60)
            producer.begin_transaction()
            producer.produce("ledger", b"before")
            assert producer.flush(30) == 0
            fill(cluster, 61)
            eventually(lambda: guard_of(proxy)["state"] == "full", 20, "it has read the disk again")
            began = time.monotonic()
            producer.produce("ledger", b"at HARD")
            producer.commit_transaction(30)
            assert time.monotonic() - began < 5, "neither its records nor its end were held"
            assert not refused(proxy)
            producer.begin_transaction()
            producer.produce("ledger", b"after")
            commit = threading.Thread(target=producer.commit_transaction, args=(100,))
            commit.start()
            eventually(lambda: refused(proxy) >= 2, 60, "it is refused, and comes again")
            fill(cluster, 20)
            commit.join(90)
            assert not commit.is_alive()
        reading = {"bootstrap.servers": cluster.bootstrap_servers, "isolation.level": "read_committed"}
        consumer = Consumer({**reading, "group.id": "ledger", "enable.partition.eof": True})
        consumer.assign([TopicPartition("ledger", 0, 0)])
        found = []
        while (message := consumer.poll(30)) is not None and not message.error():
            found.append(message.value())
        consumer.close()
        assert found == [b"before", b"at HARD", b"after"], "each once"


def refused(proxy: ProxyProcess) -> float:
    return proxy.metric("disk_guard_refused_total")


@pytest.mark.nightly  # as root, because it mounts disks
@pytest.mark.timeout(1500)
def test_no_small_disk_passes_hard_under_a_flood() -> None:
    """In each scenario of `bench.disk_guard`; without the guard, brokers stop."""
    bench = [sys.executable, "-m", "bench.disk_guard"]
    done = subprocess.run(bench, capture_output=True, text=True, timeout=1400, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
    [unguarded] = [line for line in done.stdout.splitlines() if line.startswith("| even load | off |")]
    assert not unguarded.endswith("| none |")
