"""The production sink as a process, behind a proxy with a quota: killed in the middle of micro-batches, and resumed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from demo import flights
from demo.verify import compare, read_topic
from deploy.local.artifacts import PROJECT
from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.test_spark import BATCH_SECONDS, FILES_IN_A_BATCH, in_flight, input_bytes, write_files
from tests.integration.topics import create_topics

pytestmark = pytest.mark.claim("limits", "a production sink that was stopped, or killed, loses nothing")

RATE = 2_500_000
KILLED_IN = (0, 3, 4)


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_nothing_is_lost_over_kills(kafka_cluster: KafkaCluster, unique_name: UniqueName, tmp_path: Path) -> None:
    topic, client_id = unique_name("sink"), unique_name("sink")
    folder, checkpoint, log = tmp_path / "input", tmp_path / "checkpoint", tmp_path / "sink.log"
    expected = write_files(folder, flights.FLIGHTS, RATE * BATCH_SECONDS // FILES_IN_A_BATCH)
    create_topics(kafka_cluster, topic)
    quota = f"client-id={client_id},producer_byte_rate={RATE},burst_seconds=0.1"
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota) as proxy, log.open("ab") as output:
        command = [
            *(sys.executable, "-m", "pipeline.sink", "--input", str(folder), "--checkpoint", str(checkpoint)),
            *("--bootstrap-servers", proxy.bootstrap_servers, "--topic", topic, "--client-id", client_id),
            *("--rate", str(RATE), "--batch-seconds", str(BATCH_SECONDS)),
            *("--key", r"split(line, '\t')[0]", "--value", r"split(line, '\t', 3)[2]"),
        ]

        def sink() -> subprocess.Popen[bytes]:
            """In a session of its own, with its JVM."""
            environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
            return subprocess.Popen(
                command, cwd=PROJECT, env=environment, stdout=output, stderr=output, start_new_session=True
            )

        def sent() -> float:
            return proxy.metric("bytes_total", client_id=client_id, direction="produce")

        def kill_in(batch: int) -> None:
            with sink() as process:
                eventually(lambda: in_flight(checkpoint, batch), 120, f"micro-batch {batch}")
                half = sent() + RATE * BATCH_SECONDS / 2
                eventually(lambda: sent() > half or not in_flight(checkpoint, batch), 60, f"half of {batch}")
                os.killpg(process.pid, signal.SIGKILL)
            assert in_flight(checkpoint, batch), log.read_text()

        for batch in KILLED_IN:
            kill_in(batch)
        with sink() as process:
            assert process.wait(300) == 0, log.read_text()
        assert proxy.metric("throttle_seconds_sum", client_id=client_id) > 0, "it wanted more"
    assert log.read_text().splitlines()[-1].startswith("done: ")
    tally = compare(read_topic(kafka_cluster.bootstrap_servers, topic, unique_name("verify")), expected)
    assert tally.nothing_lost, tally
    records_in_a_batch = flights.FLIGHTS * RATE * BATCH_SECONDS / input_bytes(folder)
    assert 0 < tally.duplicates <= 1.1 * records_in_a_batch * len(KILLED_IN), tally
