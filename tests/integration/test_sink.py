"""The production sink through a proxy with a quota: killed in the middle of a micro-batch, and started again."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from pathlib import Path

import pytest

from deploy.local import artifacts
from deploy.local.artifacts import PROJECT
from deploy.local.cluster import KafkaCluster
from deploy.local.tap import Tap
from pipeline.demo import flights
from pipeline.demo.verify import compare, read_topic
from tests.integration.flood import create_topics
from tests.integration.proxy_process import ProxyProcess, eventually

BURST_SECONDS = 0.1
#: The tap may wait for a processor, and then see at once what was sent meanwhile.
RELAY_SECONDS = 0.4
BATCH_SECONDS = 2
FILES_IN_A_BATCH = 4


def most_above(rate: int, frames: Sequence[tuple[int, int]]) -> float:
    """By how many bytes the frames between any two times exceed the rate. frames: (monotonic ns, bytes), in order."""
    level = most = 0.0
    for (before_ns, _), (sent_ns, size) in pairwise([frames[0], *frames]):
        level = max(0.0, level - rate * (sent_ns - before_ns) / 1e9) + size
        most = max(most, level)
    return most


def write_files(folder: Path, rows: int, file_bytes: int) -> dict[bytes, int]:
    """The first flights as files of this size. Returns the expected checksum of each key."""
    prepared = flights.prepare(artifacts.CACHE / "flights")
    folder.mkdir()
    files, written = 0, 0
    with prepared.open("rb") as lines:
        out = (folder / "00000.tsv").open("wb")
        for line in islice(lines, rows):
            if written + len(line) > file_bytes:
                out.close()
                files, written = files + 1, 0
                out = (folder / f"{files:05}.tsv").open("wb")
            written += out.write(line)
        out.close()
    return flights.expected_checksums(prepared, rows)


class Sink:
    """`python -m pipeline.sink` over `source`, as often as it is started."""

    def __init__(self, folder: Path, bootstrap_servers: str, topic: str, client_id: str, rate: int) -> None:
        self.checkpoint = folder / "checkpoint"
        self.log = folder / "sink.log"
        self._environment = {**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
        self._command = [
            *(sys.executable, "-m", "pipeline.sink", "--input", str(folder / "input")),
            *("--checkpoint", str(self.checkpoint), "--bootstrap-servers", bootstrap_servers, "--topic", topic),
            *("--client-id", client_id, "--rate", str(rate), "--batch-seconds", str(BATCH_SECONDS)),
            *("--key", r"split(line, '\t')[0]", "--value", r"split(line, '\t', 3)[2]"),
        ]

    def start(self) -> subprocess.Popen[bytes]:
        """In a session of its own, with its JVM."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._command, cwd=PROJECT, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def in_flight(self, batch: int) -> bool:
        """Whether that micro-batch has started and is not committed."""
        started, committed = (self.checkpoint / name / str(batch) for name in ("offsets", "commits"))
        return started.exists() and not committed.exists()


@pytest.mark.parametrize(
    ("rows", "rate", "killed_in"),
    [
        pytest.param(17_000, 1_000_000, [1], id="short"),
        pytest.param(flights.FLIGHTS, 5_000_000, [0, 3, 4], id="long", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.timeout(400)
def test_nothing_is_lost_and_the_rate_holds_over_kills(
    tap: Tap,
    tapped_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    rows: int,
    rate: int,
    killed_in: list[int],
) -> None:
    topic, client_id = unique_name("sink"), unique_name("sink")
    expected = write_files(tmp_path / "input", rows, rate * BATCH_SECONDS // FILES_IN_A_BATCH)
    create_topics(tapped_cluster, topic)
    quota = f"client-id={client_id},producer_byte_rate={rate},burst_seconds={BURST_SECONDS}"

    def sent() -> int:
        return sum(size for _, size in tap.sizes("produce", client_id))

    with ProxyProcess(tapped_cluster.bootstrap_servers, "--quota", quota) as proxy:
        sink = Sink(tmp_path, proxy.bootstrap_servers, topic, client_id, rate)

        def kill_in(batch: int) -> None:
            with sink.start() as process:
                eventually(lambda: sink.in_flight(batch), 120, f"micro-batch {batch}")
                half = sent() + rate * BATCH_SECONDS / 2
                eventually(lambda: sent() > half or not sink.in_flight(batch), 60, f"half of micro-batch {batch}")
                os.killpg(process.pid, signal.SIGKILL)
            assert sink.in_flight(batch), sink.log.read_text()

        for batch in killed_in:
            kill_in(batch)
        sent_before = len(tap.sizes("produce", client_id))
        with sink.start() as process:
            assert process.wait(300) == 0, sink.log.read_text()
        last_run = tap.sizes("produce", client_id)[sent_before:]
        # It wanted more than the limit. A lower bound of the rate would measure the machine: between two micro-batches
        # the sink commits, and sends nothing.
        assert proxy.metric("throttle_seconds_sum", client_id=client_id) > 0
    tally = compare(read_topic(tapped_cluster.bootstrap_servers, topic, unique_name("verify")), expected)
    assert tally.nothing_lost, tally
    input_bytes = sum(path.stat().st_size for path in (tmp_path / "input").iterdir())
    records_in_a_batch = rows * rate * BATCH_SECONDS / input_bytes
    assert 0 < tally.duplicates <= 1.1 * records_in_a_batch * len(killed_in), tally

    log = sink.log.read_text()
    assert f"done: {rows:,}" not in log  # the last run had the rest only
    assert "% of the rate); tasks blocked " in log.splitlines()[-2]
    assert log.splitlines()[-1].startswith("done: ")
    assert most_above(rate, last_run) <= rate * (BURST_SECONDS + RELAY_SECONDS) + max(size for _, size in last_run)
