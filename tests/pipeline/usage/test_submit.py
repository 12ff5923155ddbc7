"""The commands of the documentation under spark-submit, with the package as a zip, against a real broker."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from deploy.local import artifacts
from deploy.local.cluster import KafkaCluster
from pipeline.usage import records
from pipeline.usage.jobs.ingest import wall_clock_ms
from pipeline.usage.session import DELTA
from tests.pipeline.usage.fleets import usage_record

PACKAGED = {".py", ".json", ".css"}
CLUSTER = "local-cluster[2,1,1024]"
"""Two workers of a core and 1 GB: processes of their own."""


@pytest.fixture
def submit(tmp_path: Path) -> Callable[..., str]:
    """Run a subcommand under spark-submit; returns what it printed."""
    package = tmp_path / "usage.zip"
    with zipfile.ZipFile(package, "w") as archive:
        for folder in ("pipeline", "quotas"):
            for path in sorted((artifacts.PROJECT / folder).rglob("*")):
                if path.suffix in PACKAGED:
                    archive.write(path, path.relative_to(artifacts.PROJECT))
    few_rows = {"spark.sql.shuffle.partitions": "1"}
    settings = [part for name, value in (DELTA | few_rows).items() for part in ("--conf", f"{name}={value}")]
    command = [
        str(Path(sys.executable).with_name("spark-submit")), "--master", CLUSTER, "--jars", artifacts.usage_jars(),
        "--conf", "spark.ui.enabled=false", *settings, "--py-files", str(package),
        str(artifacts.PROJECT / "pipeline" / "usage" / "submit.py"),
    ]  # fmt: skip
    # Without the project on the path: the modules come from the zip.
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": ""}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stderr[-2_000:]
        return done.stdout

    return run


@pytest.mark.timeout(2_700)
@pytest.mark.nightly
def test_ingest_and_report_run_under_spark_submit(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str], submit: Callable[..., str], tmp_path: Path
) -> None:
    topic, warehouse = unique_name("usage"), str(tmp_path / "warehouse")
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    now_ms = wall_clock_ms()
    record = usage_record(bytes=1_000, time_ms=now_ms, start_time_ms=now_ms - 1_000)
    producer.produce(topic, records.value(record), records.key(record))
    assert producer.flush(30) == 0
    place = ("--warehouse", warehouse)
    read = submit("ingest", *place, "--bootstrap-servers", kafka_cluster.bootstrap_servers, "--topic", topic)
    assert read == f"1 records of {topic} were read into {warehouse}\n"
    assert submit("report", *place).startswith("computed ")
    assert submit("page", *place, str(tmp_path / "usage.html")) == f"report: {tmp_path / 'usage.html'}\n"
    assert "alice" in (tmp_path / "usage.html").read_text(encoding="utf-8")
