"""Quotas in a real topic: changed by the command, in force at each proxy on open connections, kept while it is away."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from deploy.local.cluster import KafkaCluster
from deploy.local.tools import program_command
from tests.conftest import UniqueName
from tests.integration.flood import Flood
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.topics import config_of, create_topics, delete_topic

HERE = Path(__file__).parent
DEADLINE_SECONDS = 60.0
PRODUCED = "producer_byte_rate"


class Command:
    """`kafka-quota-proxy quotas`, for one topic."""

    def __init__(self, cluster: KafkaCluster, topic: str, fleet_topic: str) -> None:
        servers = ("--bootstrap-servers", cluster.bootstrap_servers)
        self._flags = (*servers, "--quotas-topic", topic, "--fleet-topic", fleet_topic)

    def __call__(self, *arguments: str, code: int | None = 0) -> list[str]:
        """The lines that it prints. `code`: None is any."""
        command = [str(Path(sys.executable).with_name("kafka-quota-proxy")), "quotas", *arguments, *self._flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
        assert code in {None, done.returncode}, (arguments, done.stdout, done.stderr)
        return done.stdout.splitlines()


def rate(proxy: ProxyProcess, client_id: str) -> float | None:
    """What the topic allows this client id, if it has a limit in use."""
    rows = proxy.page("/limits")
    found = [row for row in rows if (row["entity"], row["source"]) == (f"client-id:{client_id}", "--quotas-topic")]
    return next((row.get("fleet_value", row["limit_value"]) for row in found if row["limit"] == PRODUCED), None)


@pytest.mark.claim("kafka-quotas", "one command changes the quotas of all members of a fleet, on open connections")
@pytest.mark.timeout(250)
def test_one_command_changes_the_quota_of_all(
    kafka_cluster: KafkaCluster, unique_name: UniqueName, tmp_path: Path
) -> None:
    client_id, topic, fleet_topic = unique_name("etl"), unique_name("quotas"), unique_name("fleet")
    quotas = Command(kafka_cluster, topic, fleet_topic)
    create_topics(kafka_cluster, client_id)
    [alone, *_] = quotas("set", f"client-id={client_id}", f"{PRODUCED}=5MB", "burst_seconds=0.5")
    assert alone.startswith("# written as version 0. No member of a fleet follows this topic")
    assert config_of(kafka_cluster, topic)["cleanup.policy"] == "compact"
    flags = ("--quotas-topic", topic, "--fleet", "prod", "--fleet-topic", fleet_topic)
    own = f"client-id=own,{PRODUCED}=1MB"
    with (
        ProxyProcess(kafka_cluster.bootstrap_servers, *flags) as one,
        ProxyProcess(kafka_cluster.bootstrap_servers, *flags, "--sidecar-name", "pod-2", quotas=[own]) as other,
    ):
        assert one.events[0]["event"] == "quotas_topic_read", "before it listens"
        with Flood(one.bootstrap_servers, client_id, client_id):
            eventually(lambda: rate(one, client_id) == 5e6, DEADLINE_SECONDS, "the limit at the start")
            one.wait_for_event("fleet_joined", DEADLINE_SECONDS)
            other.wait_for_event("fleet_joined", DEADLINE_SECONDS)
            [line] = quotas("set", f"client-id={client_id}", f"{PRODUCED}=6MB")
            assert line.startswith("# in force at 2 of 2 members after ")
            eventually(lambda: rate(one, client_id) == 6e6, DEADLINE_SECONDS, "on an open connection")
            os.kill(other.pid, signal.SIGSTOP)
            lines = quotas("set", f"client-id={client_id}", f"{PRODUCED}=5MB", "--timeout", "2s", code=None)
            os.kill(other.pid, signal.SIGCONT)
            [missing] = [line for line in lines if line.startswith(("# missing: pod-2/", "# silent, "))]
            assert "pod-2/" in missing
            quotas("set", f"client-id={client_id}", f"{PRODUCED}=6MB")
            file = tmp_path / "quotas.toml"
            file.write_text(f'[[quota]]\nclient-id = "{client_id}"\n{PRODUCED} = "7MB"\n')
            of_it = f"client-id={client_id}"
            difference = [f"- {of_it} burst_seconds=0.5", f"~ {of_it} {PRODUCED}=6000000 -> 7000000"]
            assert quotas("diff", str(file), code=3) == difference
            assert quotas("apply", "--dry-run", str(file), code=3) == difference
            assert quotas("apply", "--yes", str(file))[-1].startswith("# in force at 2 of 2")
            assert quotas("apply", str(file)) == ["# nothing to change"]
            eventually(lambda: rate(one, client_id) == 7e6, DEADLINE_SECONDS, "the file")
            poison(kafka_cluster, topic, f"client-id={client_id}")
            one.wait_for_event("quotas_topic_record_refused", DEADLINE_SECONDS, key=f"client-id={client_id}")
            assert rate(one, client_id) == 7e6
            assert quotas("unset", f"client-id={client_id}", "consumer_byte_rate") == ["# nothing to change"]
            quotas("unset", f"client-id={client_id}")
            eventually(lambda: rate(one, client_id) is None, DEADLINE_SECONDS, "nothing applies")
            quotas("set", f"client-id={client_id}", f"{PRODUCED}=8MB")
            eventually(lambda: rate(one, client_id) == 8e6, DEADLINE_SECONDS, "again")
            delete_topic(kafka_cluster, topic)
            one.wait_for_event("quotas_topic_failed", DEADLINE_SECONDS)
            assert one.metric("quotas_topic_last_read_successful") == 0
            assert rate(one, client_id) == 8e6, "what was read last"
            quotas("set", f"client-id={client_id}", f"{PRODUCED}=9MB")
            eventually(lambda: rate(one, client_id) == 9e6, DEADLINE_SECONDS, "the topic was made anew")
            assert quotas("log")[-1] == f"  + client-id={client_id} {PRODUCED}=9000000"
        assert other.page("/config")["reloads"]["quotas_topic"]["ok"] is True


@pytest.mark.claim("kafka-quotas", "Java's Admin client reads what it wrote, at each proxy's every node")
@pytest.mark.timeout(250)
def test_kafkas_own_client_alters_what_the_proxies_enforce(
    kafka_cluster: KafkaCluster, unique_name: UniqueName
) -> None:
    client_id, topic = unique_name("etl"), unique_name("quotas")
    create_topics(kafka_cluster, client_id)
    flags = ("--quotas-topic", topic, "--quota-admins", "User:ANONYMOUS")
    with ProxyProcess(kafka_cluster.bootstrap_servers, *flags) as proxy:
        program = program_command("4.3.1", HERE / "QuotaChecks.java", proxy.bootstrap_servers, client_id)
        with Flood(proxy.bootstrap_servers, client_id, client_id):
            done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, done.stderr
            assert done.stdout.splitlines() == [
                *("validate: ", "nothing: {}"),
                *(f"round {n}: {{{PRODUCED}={n}000000.0}}" for n in range(1, 6)),
                "pair: {consumer_byte_rate=7000000.0}",
                f"default: {{{PRODUCED}=9000000.0}}",
                "address: {connection_creation_rate=20.0}",
                "batch: {consumer_byte_rate=3000000.0, request_percentage=12.5}"
                "{consumer_byte_rate=3000000.0, request_percentage=25.0}",
                "unknown: InvalidRequestException: Invalid configuration key producer_byte_rat",
                f"not positive: InvalidRequestException: Quota {PRODUCED} must be greater than 0",
                *("absent: ", "removed: {}{}{}"),
            ]
            eventually(lambda: rate(proxy, client_id) == 5e6, DEADLINE_SECONDS, "on an open connection")
        assert "request_percentage" in proxy.wait_for_event("quotas_topic_left_out", DEADLINE_SECONDS)["limits"]
        applied = proxy.wait_for_event("quotas_topic_applied", DEADLINE_SECONDS, changed=f"client-id:{client_id}")
        assert applied["by"] == "User:ANONYMOUS"


def poison(cluster: KafkaCluster, topic: str, key: str) -> None:
    """Write what no proxy writes."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for value in (b"\xff", b'{"version":1,"entity":{},"quota":{}}', b"[" * 16_000):
        producer.produce(topic, value, key.encode(), partition=0)
    assert producer.flush(20) == 0
