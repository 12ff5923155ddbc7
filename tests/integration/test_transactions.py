"""Transactions that limits hold: they commit within their timeout, and end with Kafka's own errors above it.

A limit holds the records of a transaction, never refuses them, so the bytes of a transaction ÷ the rate must stay below
`transaction.timeout.ms`.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from deploy.local.cluster import KafkaCluster
from tests.integration.numbered_producers import PARTITIONS
from tests.integration.proxy_process import ProxyProcess
from tests.integration.test_noisy_topics import values_of
from tests.integration.transactional_producers import RECORD_BYTES, TRANSACT, Transactions

RATE = 200_000
TIMEOUT_MS = 10_000
#: Seven seconds of the rate.
RECORDS = 7 * RATE // RECORD_BYTES
#: After the coordinator has aborted a transaction; in librdkafka its records expire first.


def create_topics(cluster: KafkaCluster, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for created in admin.create_topics([NewTopic(topic, PARTITIONS) for topic in topics]).values():
        created.result(30)


def committed_values(cluster: KafkaCluster, topic: str) -> list[int]:
    """The numbers of all records of committed transactions, sorted; each partition must have its own in order."""
    found: list[int] = []
    for partition in range(PARTITIONS):
        values = values_of(cluster, topic, partition, **{"isolation.level": "read_committed"})
        assert values == sorted(values)
        found += values
    return sorted(found)


def expected_values(done: Transactions, records: list[int]) -> list[int]:
    """The numbers of all records of transactions whose commit succeeded."""
    firsts = [0, *accumulate(records)]
    return [
        n
        for first, count in zip(firsts, records, strict=False)
        if first in done.committed
        for n in range(first, first + count)
    ]


@pytest.mark.alone
@pytest.mark.parametrize("transactions", [1, pytest.param(8, marks=pytest.mark.nightly)])
@pytest.mark.timeout(300)
def test_transactions_that_need_most_of_their_timeout_commit(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str], transactions: int
) -> None:
    """Each library under a limit of its topic with `action=reject`, and under one of its client id."""
    names = {
        (library, limit): unique_name(f"{library}-{limit}") for library in TRANSACT for limit in ("topic", "client")
    }
    create_topics(kafka_cluster, *names.values())
    quotas = [
        f"topic={name},bytes_in_rate={RATE},burst_seconds=0.1,action=reject"
        if limit == "topic"
        else f"client-id={name},producer_byte_rate={RATE},burst_seconds=0.1"
        for (_, limit), name in names.items()
    ]
    records = [RECORDS] * transactions
    flags = [part for quota in quotas for part in ("--quota", quota)]
    began = time.monotonic()
    with ProxyProcess(kafka_cluster.bootstrap_servers, *flags) as proxy, ThreadPoolExecutor(len(names)) as threads:
        running = {
            key: threads.submit(TRANSACT[key[0]], proxy.bootstrap_servers, name, name, records, TIMEOUT_MS)
            for key, name in names.items()
        }
        done = {key: each.result() for key, each in running.items()}
        seconds = time.monotonic() - began
        for name in names.values():
            assert proxy.metric("throttled_total", client_id=name, mode="reject") == 0
            assert proxy.metric("throttled_total", client_id=name) > 0
    assert {key: each.errors for key, each in done.items()} == {key: [] for key in done}
    for key, name in names.items():
        assert committed_values(kafka_cluster, name) == list(range(transactions * RECORDS)), key
    assert seconds > transactions * 6, "the limits have held each transaction for most of its timeout"


@pytest.mark.timeout(180)
def test_a_transaction_that_needs_longer_fails_as_at_a_slow_broker(unique_name: Callable[[str], str]) -> None:
    """The coordinator aborts it. Its records are never read, and the next transaction of the producer commits."""
    timeout_ms, seconds_needed = 3_000, 8
    records = [10, seconds_needed * RATE // RECORD_BYTES, 10]
    names = {library: unique_name(library) for library in TRANSACT}
    overrides = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    with KafkaCluster(1, overrides=overrides) as cluster:
        create_topics(cluster, *names.values())
        quota = f"client-id=<default>,producer_byte_rate={RATE},burst_seconds=0.1"
        with ProxyProcess(cluster.bootstrap_servers, "--quota", quota) as proxy, ThreadPoolExecutor() as threads:
            running = {
                library: threads.submit(TRANSACT[library], proxy.bootstrap_servers, name, name, records, timeout_ms)
                for library, name in names.items()
            }
            done = {library: each.result() for library, each in running.items()}
        for library, each in done.items():
            print(library, each)
            assert each.committed == [0, records[0] + records[1]]
            assert [error for error in each.errors if error.startswith("commit: ")]
            assert committed_values(cluster, names[library]) == expected_values(each, records)
