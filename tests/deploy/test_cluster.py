"""Real brokers: ready when they say so, bounced on their own ports and data, gone without a trace."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from deploy.local import probe
from deploy.local.cluster import KafkaCluster, new_cluster_id
from deploy.local.errors import BrokerFailed, PlaygroundError
from deploy.local.tools import tool_command
from tests.deploy.processes import has_ended_within, processes_naming

# Starts a cluster, prints where one of its logs is, then waits for ever.
HOLDER = """
import signal
from deploy.local.cluster import KafkaCluster
with KafkaCluster(1) as cluster:
    print(cluster.log_path(1), flush=True)
    signal.pause()
"""


def test_a_broker_answers_where_it_says(kafka_cluster: KafkaCluster) -> None:
    host, port = kafka_cluster.node_addresses[1]
    assert host == "127.0.0.2"
    assert kafka_cluster.bootstrap_servers == f"{host}:{port}"
    assert probe.known_brokers(host, port, timeout_seconds=10) == {1: (host, port)}


def test_each_of_three_brokers_has_an_address_of_its_own(kafka_cluster3: KafkaCluster) -> None:
    addresses = kafka_cluster3.node_addresses
    assert {node: host for node, (host, _) in addresses.items()} == {1: "127.0.0.2", 2: "127.0.0.3", 3: "127.0.0.4"}
    for host, port in addresses.values():
        assert probe.known_brokers(host, port, timeout_seconds=10) == addresses


@pytest.mark.parametrize("graceful", [True, False])
async def test_a_restarted_broker_has_its_port_and_data(
    kafka_cluster3: KafkaCluster, unique_name: Callable[[str], str], graceful: bool
) -> None:
    topic = unique_name("bounce")
    create = ["--bootstrap-server", kafka_cluster3.bootstrap_servers, "--create", "--topic", topic]
    create += ["--replica-assignment", "2:1:3"]  # broker 2 leads
    await run_tool("org.apache.kafka.tools.TopicCommand", *create)
    producer = AIOKafkaProducer(bootstrap_servers=kafka_cluster3.bootstrap_servers, acks="all")
    async with producer:
        await producer.send_and_wait(topic, b"kept")
    address = kafka_cluster3.node_addresses[2]

    kafka_cluster3.stop_broker(2, graceful=graceful)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)
    kafka_cluster3.start_broker(2)

    assert kafka_cluster3.node_addresses[2] == address
    assert probe.answers_api_versions(*address, timeout_seconds=10)
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=kafka_cluster3.bootstrap_servers, auto_offset_reset="earliest", group_id=None
    )
    async with consumer:
        assert (await consumer.getone()).value == b"kept"


async def test_share_groups_work(kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]) -> None:
    topic, group = unique_name("shared"), unique_name("share-group")
    to_cluster = ["--bootstrap-server", kafka_cluster.bootstrap_servers]
    async with AIOKafkaProducer(bootstrap_servers=kafka_cluster.bootstrap_servers) as producer:
        await producer.send_and_wait(topic, b"for one of many")
    from_start = ["--alter", "--entity-type", "groups", "--entity-name", group]
    from_start += ["--add-config", "share.auto.offset.reset=earliest"]
    await run_tool("kafka.admin.ConfigCommand", *to_cluster, *from_start)
    consume = [*to_cluster, "--topic", topic, "--group", group, "--max-messages", "1", "--timeout-ms", "60000"]
    printed = await run_tool("org.apache.kafka.tools.consumer.ConsoleShareConsumer", *consume)
    assert printed.strip() == "for one of many"


async def run_tool(class_name: str, *arguments: str) -> str:
    """What the tool prints on stdout; its end is waited for, and must be a good one."""
    command = await asyncio.to_thread(tool_command, class_name, *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    printed, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, class_name
    return printed.decode()


def test_kafka_3_9_and_an_address_of_somebody_else() -> None:
    told: list[tuple[int, int]] = []

    def advertised(node: int, port: int) -> tuple[str, int]:
        told.append((node, port))
        return "127.0.0.9", 9999

    with KafkaCluster(1, "3.9.1", advertised=advertised) as cluster:
        host, port = cluster.node_addresses[1]
        assert told == [(1, port)]
        assert cluster.bootstrap_servers == "127.0.0.9:9999"
        assert probe.known_brokers(host, port, timeout_seconds=10) == {1: ("127.0.0.9", 9999)}


def test_nothing_is_left_after_the_end() -> None:
    with KafkaCluster(1) as cluster:
        directory = cluster.log_path(1).parents[1]
        processes = processes_naming(str(directory))
        assert len(processes) == 2  # Java and its leash
    assert not directory.exists()
    assert all(has_ended_within(process, 0) for process in processes)
    cluster.close()  # once more does no harm


def test_nothing_is_left_when_the_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        directory = Path(parent.stdout.readline().strip()).parents[1]
        processes = processes_naming(str(directory))
        assert len(processes) == 2
        parent.send_signal(signal.SIGKILL)
    assert all(has_ended_within(process, 30) for process in processes)
    assert not directory.exists()


def test_a_broker_that_ends_while_starting_is_quoted() -> None:
    cluster = KafkaCluster(1, overrides={"authorizer.class.name": "no.such.Authorizer"})
    with pytest.raises(BrokerFailed, match=r"(?s)broker 1 ended while starting.*no\.such\.Authorizer"):
        cluster.start()


def test_a_setting_that_kafka_refuses_is_quoted() -> None:
    with pytest.raises(BrokerFailed, match=r"(?s)cannot be formatted.*process\.roles"):
        KafkaCluster(1, overrides={"process.roles": "spectator"}).start()


def test_a_broker_that_never_answers_is_given_up_and_ended(tmp_path: Path) -> None:
    cluster = KafkaCluster(1, start_timeout_seconds=0.0)
    with pytest.raises(BrokerFailed, match="did not answer ApiVersions in time"):
        cluster.start()
    assert cluster.node_addresses  # known, although it is gone
    assert not any(broker_answers(address) for address in cluster.node_addresses.values())


def broker_answers(address: tuple[str, int]) -> bool:
    return probe.answers_api_versions(*address, timeout_seconds=1)


def test_wait_ends_when_a_broker_does() -> None:
    with KafkaCluster(1) as cluster:
        for process in processes_naming(str(cluster.log_path(1).parent)):
            subprocess.run(["kill", "-KILL", str(process)], check=False)
        with pytest.raises(BrokerFailed, match="broker 1 ended"):
            cluster.wait()


def test_no_cluster_id_looks_like_an_option() -> None:
    ids = {new_cluster_id() for _ in range(2_000)}  # without care one in 64 would
    assert not any(each.startswith("-") for each in ids)
    assert {len(each) for each in ids} == {22}


@pytest.mark.parametrize(
    ("brokers", "version", "message"), [(2, "4.3.1", "1 or 3 brokers, not 2"), (1, "4.4.0", r"no Kafka 4\.4\.0")]
)
def test_what_there_is_not(brokers: int, version: str, message: str) -> None:
    with pytest.raises(PlaygroundError, match=message):
        KafkaCluster(brokers, version)
