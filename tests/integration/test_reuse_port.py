"""Two processes on the same ports, with one limit between them: one is restarted under load."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest

from demo.proxy_process import reserve_port
from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.java_tools import perf_producer
from tests.integration.librdkafka import records_in
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.test_connection_age import RECORDS, produce_with_librdkafka
from tests.integration.topics import create_topics

HOST = "127.0.0.1"
PRODUCERS = 6


@pytest.mark.claim(
    "enforcement", "one of several processes with one port that drains loses no connection that waits to be accepted"
)
@pytest.mark.nightly
@pytest.mark.timeout(200)
def test_one_of_two_processes_is_restarted_under_load(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    """No record is lost or doubled, and both processes have had a part of the connections."""
    topic, fleet = unique_name("shared"), unique_name("fleet")
    create_topics(kafka_cluster, topic)
    (listen, first), (broker, second) = reserve_port(HOST), reserve_port(HOST)
    shared = ["--reuse-port", "--listen", f"{HOST}:{listen}", "--broker-ports", f"{broker}-{broker}"]
    shared += ("--fleet", fleet, "--fleet-max-members", "2", "--quota", "client-id=rdkafka,producer_byte_rate=100MB")
    servers = kafka_cluster.bootstrap_servers
    with ExitStack() as stack, ProxyProcess(servers, *shared) as stays, ProxyProcess(servers, *shared) as restarts:
        for reserved in (*first, *second):
            stack.callback(reserved.close)
        for each in (stays, restarts):
            eventually(partial(each.metric, "fleet_joined"), 60, "it has joined")
        with ThreadPoolExecutor() as threads:
            made = [
                threads.submit(produce_with_librdkafka, stays.bootstrap_servers, topic, **{"enable.idempotence": True})
                for _ in range(PRODUCERS)
            ]
            run_java = partial(perf_producer, records=RECORDS, size=100, throughput=1_000)
            java = threads.submit(run_java, stays.bootstrap_servers, topic, "acks=all")
            for each in (stays, restarts):
                eventually(partial(each.metric, "bytes_total"), 30, "it has a part of the connections")
            restarts.stop()
            restarts.start()
            assert [producer.result() for producer in made] == [[]] * PRODUCERS
            assert java.result().returncode == 0
    assert records_in(kafka_cluster, topic) == (PRODUCERS + 1) * RECORDS
