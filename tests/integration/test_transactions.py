"""Transactions that limits hold: they commit within their timeout, and end with Kafka's own errors above it.

A limit holds the records of a transaction, never refuses them, so the bytes of a transaction ÷ the rate must stay below
`transaction.timeout.ms`.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.librdkafka import numbers_of
from tests.integration.proxy_process import ProxyProcess
from tests.integration.topics import create_topics
from tests.integration.transactional_producers import PARTITIONS, RECORD_BYTES, TRANSACT

pytestmark = [
    pytest.mark.claim("limits", "transactions commit while a limit needs less than their timeout"),
    pytest.mark.claim("enforcement", "transactions commit while a limit needs less than their timeout"),
]

RATE = 200_000
TIMEOUT_MS = 5_000
#: Of three transactions: two that need 1 and 0.5 s of the rate, and one between them that needs more than its timeout.
RECORDS = [RATE // RECORD_BYTES, 7 * RATE // RECORD_BYTES, RATE // 2 // RECORD_BYTES]


def committed_values(cluster: KafkaCluster, topic: str) -> list[int]:
    """The numbers of all records of committed transactions, sorted; each partition must have its own in order."""
    found: list[int] = []
    for partition in range(PARTITIONS):
        values = numbers_of(cluster, topic, partition, **{"isolation.level": "read_committed"})
        assert values == sorted(values)
        found += values
    return sorted(found)


@pytest.mark.timeout(250)
def test_transactions_commit_within_their_timeout_only(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    """Java under a limit of its client id, librdkafka under one of its topic with `action=reject`.

    The coordinator aborts the second transaction. Its records are never read, and the next one commits.
    """
    java, librdkafka = unique_name("java"), unique_name("librdkafka")
    names = {"java": java, "librdkafka": librdkafka}
    create_topics(kafka_cluster, *names.values(), partitions=PARTITIONS)
    quotas = (
        f"client-id={java},producer_byte_rate={RATE},burst_seconds=0.1",
        f"topic={librdkafka},bytes_in_rate={RATE},burst_seconds=0.1,action=reject",
    )
    with ProxyProcess(kafka_cluster.bootstrap_servers, quotas=quotas) as proxy, ThreadPoolExecutor() as threads:
        running = {
            library: threads.submit(TRANSACT[library], proxy.bootstrap_servers, name, name, RECORDS, TIMEOUT_MS)
            for library, name in names.items()
        }
        done = {library: each.result() for library, each in running.items()}
        for name in names.values():
            assert proxy.metric("throttled_total", client_id=name) > 0
            assert proxy.metric("throttled_total", client_id=name, mode="reject") == 0
    first, second, third = RECORDS
    expected = [*range(first), *range(first + second, first + second + third)]
    for library, each in done.items():
        assert each.committed == [0, first + second], each
        assert [error for error in each.errors if error.startswith("commit: ")], each
        assert committed_values(kafka_cluster, names[library]) == expected
