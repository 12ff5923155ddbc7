"""A driver that is killed at any moment, and two runs at once: the same tables as without."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from deploy.local.artifacts import PROJECT
from deploy.local.cluster import KafkaCluster
from pipeline.usage.jobs import report as job
from pipeline.usage.jobs.ingest import wall_clock_ms
from pipeline.usage.jobs.report import Rules, report
from pipeline.usage.schemas import TABLES
from pipeline.usage.tables import Warehouse
from tests.conftest import UniqueName
from tests.integration.topics import create_topics
from tests.pipeline.usage import published
from tests.pipeline.usage.fleets import NOON_MS, throttle_record, usage_record
from tests.pipeline.usage.test_deltas import records_frame

KILLS = 10
UNLIKE = ("at", "found_at", "run_id", "kafka_time")
"""Columns that no two runs have in common."""


def tables(warehouse: Warehouse) -> dict[str, Counter[str]]:
    """All rows of all tables but the list of runs."""
    found = {}
    for name in TABLES.keys() - {"report_runs"}:
        columns = [f.to_json(f.struct(f.col(each))) for each in TABLES[name].schema.names if each not in UNLIKE]
        found[name] = Counter(map(str, warehouse.read(name).select(*columns).collect()))
    return found


def planted(base_ms: int = NOON_MS) -> list[dict[str, Any]]:
    """Two sidecars; one record is missing, and one client waits for the other."""
    made: list[dict[str, Any]] = []
    for pod in ("p", "q"):
        for n in range(40):
            common = {"sidecar": pod, "time_ms": base_ms + n * 10_000, "start_time_ms": base_ms, "seq": 3 * n}
            made.append(usage_record(**common, bytes=1_000 * n))
            made.append(usage_record(**common | {"seq": 3 * n + 1}, client_id="loud", bytes=9_000 * n))
            made.append(throttle_record(**common | {"seq": 3 * n + 2}, entity="user:alice", throttled_ms=50 * n))
    return [each for each in made if each["seq"] != 31]


class Killed(BaseException):
    """The process ends here."""


@contextmanager
def writing(die_at: int = 0, *, after: bool = False) -> Iterator[list[str]]:
    """The tables in the order of their writes, one at a time. die_at: the run ends at the write with this number, from
    1 on, before or after Delta has committed it.
    """
    original = Warehouse._write
    written: list[str] = []

    def write(self: Warehouse, name: str, rows: DataFrame, mode: str, **options: str) -> None:
        written.append(name)
        is_last = len(written) == die_at
        if not is_last or after:
            original(self, name, rows, mode, **options)
        if is_last:
            raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Warehouse, "_write", write)
        patched.setattr(job, "at_once", lambda steps: [step() for step in steps])
        yield written


@pytest.mark.timeout(900)
@pytest.mark.nightly  # the short form: test_report_job.py, whose first report ends at a write
@pytest.mark.parametrize("where", ["early", "late", "last"])
def test_a_killed_report_is_repeated(spark: SparkSession, tmp_path: Path, warehouse: Warehouse, where: str) -> None:
    """early: among samples and deltas. last: before the note of the run, when a hole of the topic was named already."""
    made = records_frame(spark, planted()).withColumns({"kafka_partition": f.lit(0), "kafka_offset": f.col("seq")})
    whole = Warehouse(spark, str(tmp_path / "whole"))
    for each in (whole, warehouse):
        each.append("records", made)
    with writing() as names:
        report(whole, Rules())
    assert names[-2:] == ["topic_holes", "report_runs"]
    number = {"early": random.randint(2, 6), "late": random.randint(7, len(names) - 1), "last": len(names)}[where]
    with pytest.raises(Killed), writing(number, after=where != "last"):
        report(warehouse, Rules())
    report(warehouse, Rules())
    assert tables(warehouse) == tables(whole)


# ---- processes of their own
def start(*arguments: str) -> subprocess.Popen[bytes]:
    """The command in a process group of its own, with its JVM."""
    command = [sys.executable, "-m", "pipeline.usage", *arguments]
    return subprocess.Popen(command, cwd=PROJECT, start_new_session=True, stderr=subprocess.PIPE)


def run(*arguments: str) -> float:
    """Run to the end; how many seconds it took."""
    began = time.monotonic()
    process = start(*arguments)
    _, errors = process.communicate(timeout=900)
    assert process.returncode in (0, 3), errors.decode()[-2_000:]
    return time.monotonic() - began


def kill_after(seconds: float, *arguments: str) -> None:
    process = start(*arguments)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.timeout(3_600)
@pytest.mark.nightly
def test_ten_kills_and_two_runs_at_once_change_no_table(
    spark: SparkSession, kafka_cluster: KafkaCluster, unique_name: UniqueName, tmp_path: Path
) -> None:
    """SIGKILL of driver and JVM at ten random moments of ingest, and of report."""
    topic = unique_name("usage")
    create_topics(kafka_cluster, topic)
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    for record in planted(wall_clock_ms() - 3_600_000):
        producer.produce(topic, published.value(record), published.key(record))
    assert producer.flush(30) == 0

    def commands(name: str) -> tuple[Sequence[str], Sequence[str]]:
        place = ("--warehouse", str(tmp_path / name))
        source = ("--bootstrap-servers", kafka_cluster.bootstrap_servers, "--topic", topic, "--max-offsets", "50")
        return ("ingest", *place, *source), ("report", *place)

    lasted = [run(*command) for command in commands("whole")]
    for command, seconds in zip(commands("killed"), lasted, strict=True):
        for _ in range(KILLS):
            kill_after(random.uniform(0.1, 1.1) * seconds, *command)
        both = [start(*command) for _ in range(2)]
        for each in both:
            each.communicate(timeout=900)  # one of two ingests ends: Spark refuses two on one checkpoint
        run(*command)
    whole, killed = (tables(Warehouse(spark, str(tmp_path / name))) for name in ("whole", "killed"))
    assert killed == whole
    assert sum(whole["records"].values()) == len(planted())
