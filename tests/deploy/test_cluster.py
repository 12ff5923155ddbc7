"""Real brokers: ready when they say so, bounced on their own ports and data, gone without a trace."""

import subprocess

import pytest

from deploy.local import probe
from deploy.local.cluster import KafkaCluster
from deploy.local.errors import BrokerFailed
from tests.deploy.processes import has_ended_within, processes_naming


def test_kafka_3_9_behind_an_address_of_somebody_else_ends_without_a_trace() -> None:
    """`test_command.py` has one that ends by itself; this one is killed."""
    told: list[tuple[int, int]] = []

    def advertised(node: int, port: int) -> tuple[str, int]:
        told.append((node, port))
        return "127.0.0.9", 9999

    with KafkaCluster(1, "3.9.1", advertised=advertised) as cluster:
        host, port = cluster.node_addresses[1]
        assert told == [(1, port)]
        assert cluster.bootstrap_servers == "127.0.0.9:9999"
        assert probe.known_brokers(host, port, timeout_seconds=10) == {1: ("127.0.0.9", 9999)}
        directory = cluster.log_path(1).parents[1]
        processes = processes_naming(str(directory))
        assert len(processes) == 2  # Java and its leash
        for process in processes:
            subprocess.run(["kill", "-KILL", str(process)], check=False)
        with pytest.raises(BrokerFailed, match="broker 1 ended"):
            cluster.wait()
    assert not directory.exists()
    assert all(has_ended_within(process, 30) for process in processes)
    cluster.close()  # once more does no harm
