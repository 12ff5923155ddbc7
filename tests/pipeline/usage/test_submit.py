"""The commands under spark-submit, with the package as a zip, and through Spark Connect, against a real broker."""

import os
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from deploy.local import artifacts
from deploy.local.cluster import KafkaCluster
from pipeline.usage.jobs.ingest import wall_clock_ms
from pipeline.usage.session import LOCAL, REQUIRED
from tests.conftest import UniqueName
from tests.pipeline.usage import published
from tests.pipeline.usage.fleets import usage_record

PACKAGED = {".py", ".json", ".css", ".toml"}
CLUSTER = "local-cluster[2,1,1024]"
"""Two workers of a core and 1 GB: processes of their own."""
FEW_ROWS = {
    # What the commands do not set themselves, and what makes the jobs of one record short: most of them is compiling,
    # and waiting for the worker that has the data.
    **{name: value for name, value in LOCAL.items() if name not in REQUIRED},
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.locality.wait": "0",
    "spark.ui.enabled": "false",
    **{f"spark.{each}.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" for each in ("driver", "executor")},
}


@pytest.fixture
def submit(tmp_path: Path) -> Callable[..., str]:
    """Run a subcommand under spark-submit; returns what it printed."""
    package = tmp_path / "usage.zip"
    with zipfile.ZipFile(package, "w") as archive:
        for folder in ("pipeline", "quotas"):
            for path in sorted((artifacts.PROJECT / folder).rglob("*")):
                if path.suffix in PACKAGED:
                    archive.write(path, path.relative_to(artifacts.PROJECT))
    settings = [part for name, value in FEW_ROWS.items() for part in ("--conf", f"{name}={value}")]
    command = [
        str(Path(sys.executable).with_name("spark-submit")), "--master", CLUSTER, "--jars", artifacts.usage_jars(),
        *settings, "--py-files", str(package),
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


@pytest.fixture
def connected(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Run a subcommand as a client of a Spark Connect server; returns what it printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": f"{port}"}
    settings = [part for name, value in (FEW_ROWS | here).items() for part in ("--conf", f"{name}={value}")]
    command = [
        str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]", "--jars", artifacts.usage_jars(),
        *settings, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
    ]  # fmt: skip
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    environment["PYTHONPATH"] = str(artifacts.PROJECT)  # for foreachBatch, which runs at the server

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline.usage", *arguments], cwd=tmp_path, capture_output=True, text=True,
            env=environment | {"SPARK_REMOTE": f"sc://127.0.0.1:{port}"}, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2_000:]
        return done.stdout

    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 300
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert server.poll() is None, (tmp_path / "server.log").read_text()[-2_000:]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield run
    finally:
        server.kill()
        server.wait()


@pytest.mark.timeout(2_700)
@pytest.mark.nightly
@pytest.mark.parametrize("how", ["submit", "connected"])
def test_ingest_and_report_run_on_a_cluster(
    kafka_cluster: KafkaCluster, unique_name: UniqueName, tmp_path: Path, request: pytest.FixtureRequest, how: str
) -> None:
    submit: Callable[..., str] = request.getfixturevalue(how)
    topic, warehouse = unique_name("usage"), str(tmp_path / "warehouse")
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    now_ms = wall_clock_ms()
    record = usage_record(bytes=1_000, time_ms=now_ms, start_time_ms=now_ms - 1_000)
    producer.produce(topic, published.value(record), published.key(record))
    assert producer.flush(30) == 0
    place = ("--warehouse", warehouse)
    read = submit("ingest", *place, "--bootstrap-servers", kafka_cluster.bootstrap_servers, "--topic", topic)
    assert read == f"1 records of {topic} were read into {warehouse}\n"
    assert submit("report", *place).startswith("computed ")
    assert submit("page", *place, str(tmp_path / "usage.html")) == f"report: {tmp_path / 'usage.html'}\n"
    assert "alice" in (tmp_path / "usage.html").read_text(encoding="utf-8")
