"""PySpark through the proxy in one session: batch, a restart of the proxy, and the sink, stopped and resumed.

`test_sink.py` has the sink as a process that is killed.
"""

import re
import shlex
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from demo import flights
from demo.produce_flights import produce, read_flights
from demo.verify import Tally, compare, read_topic
from deploy.local import artifacts
from deploy.local.cluster import KafkaCluster
from pipeline.client_metrics import longest_throttle_seconds
from pipeline.failures import JobFailedError
from pipeline.sink.sizing import Sizing
from pipeline.sink.stream import Job, start
from pipeline.spark_session import spark_session
from tests.conftest import UniqueName
from tests.docs.pages import ROOT, blocks
from tests.integration.librdkafka import records_in
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.scanned_proxy import ScannedProxy
from tests.integration.topics import create_topics

SPARK_PAGE = (ROOT / "docs/spark.md").read_text(encoding="utf-8")
#: Of `explain`: lines with parts that depend on the machine, or that are there on some only.
# Lines whose text depends on the speed of the machine; the last one is missing where the job waits almost all the time.
VARIES = ("$", "  In the last", "  It has", "  Outside of its waits", "  When it is not waiting")
BATCH_ROWS = 2_000
SINK, RATE, BURST_SECONDS = "sink", 1_000_000, 0.1
SINK_ROWS = 34_000
BATCH_SECONDS, FILES_IN_A_BATCH = 4, 4
# PySpark leaves it to the collector to close the sockets through which results come.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.claim("limits", "a production sink that was stopped, or killed, loses nothing"),
]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """One JVM for this file."""
    with spark_session(artifacts.spark_jars(), app_name="proxy-tests", short=True) as session:
        yield session


@pytest.fixture(scope="module")
def sink_front(kafka_cluster: KafkaCluster) -> Iterator[ScannedProxy]:
    """A proxy that these tests may restart, with a limit of the client id `SINK`."""
    quota = f"client-id={SINK},producer_byte_rate={RATE},burst_seconds={BURST_SECONDS}"
    with ScannedProxy(kafka_cluster, "--quota", quota) as front:
        yield front
        assert front.relay.bytes_scanned
        assert front.relay.sightings == 0


def unwrapped(console: str) -> list[str]:
    """The lines of a block; one that is indented by four goes on the one before."""
    return re.sub(r"\n {4,}", " ", console).splitlines()


def shape(line: str) -> str:
    """Without its figures, and what follows from them or from when it was asked for."""
    line = re.sub(r"; this began .*|and .* for it now", "", line)
    return re.sub(r"[\d.]+(?: [kM]?B)?", "#", line).replace("connections", "connection")


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


def input_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def in_flight(checkpoint: Path, batch: int) -> bool:
    """Whether that micro-batch has started and is not committed."""
    started, committed = (checkpoint / name / str(batch) for name in ("offsets", "commits"))
    return started.exists() and not committed.exists()


@pytest.mark.timeout(250)
def test_a_batch_job_before_and_after_a_restart_of_the_proxy(
    spark: SparkSession,
    sink_front: ScannedProxy,
    unique_name: UniqueName,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark keeps producers for ten minutes after their last use; they know the ports of the proxy that has gone."""
    servers, client_id = sink_front.bootstrap_servers, unique_name("flights-etl")
    topic = sink_front.create_topic(unique_name("flights"))
    prepared = flights.prepare(artifacts.CACHE / "flights")
    records = read_flights(spark, prepared, BATCH_ROWS)
    monkeypatch.chdir(tmp_path)
    produce(records, bootstrap_servers=servers, topic=topic, client_id=client_id)
    assert longest_throttle_seconds(spark, client_id) == 0.0
    tally = compare(read_topic(servers, topic, unique_name("verify")), flights.expected_checksums(prepared, BATCH_ROWS))
    assert tally == Tally(records=BATCH_ROWS, value_bytes=tally.value_bytes), "each once"
    sink_front.proxy.stop()
    sink_front.proxy.start()
    produce(records, bootstrap_servers=servers, topic=topic, client_id=client_id)
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    read_back = source.option("startingOffsets", "earliest").load().selectExpr("key", "value").distinct()
    assert source.load().count() == 2 * BATCH_ROWS
    assert read_back.count() == BATCH_ROWS
    with pytest.raises(JobFailedError, match=r"InvalidTopicException: .*not a topic"):
        produce(records, bootstrap_servers=servers, topic="not a topic", client_id=client_id)
    assert list(tmp_path.iterdir()) == [], "nothing is left in the working directory"


@pytest.mark.timeout(250)
def test_the_sink_stopped_in_a_micro_batch_goes_on_from_its_checkpoint(
    spark: SparkSession, sink_front: ScannedProxy, unique_name: UniqueName, tmp_path: Path
) -> None:
    folder, checkpoint = tmp_path / "input", tmp_path / "checkpoint"
    topic, proxy = sink_front.create_topic(unique_name("sink"), 1), sink_front.proxy
    expected = write_files(folder, SINK_ROWS, RATE * BATCH_SECONDS // FILES_IN_A_BATCH)
    job = Job(
        source=str(folder),
        bootstrap_servers=sink_front.bootstrap_servers,
        topic=topic,
        client_id=SINK,
        checkpoint=str(checkpoint),
        sizing=Sizing(RATE, batch_seconds=BATCH_SECONDS),
        key=r"split(line, '\t')[0]",
        value=r"split(line, '\t', 3)[2]",
    )

    def sent() -> float:
        return proxy.metric("bytes_total", client_id=SINK, direction="produce")

    began = time.monotonic()
    query = start(spark, job)
    eventually(lambda: in_flight(checkpoint, 1), 120, "the second micro-batch")
    half = sent() + RATE * BATCH_SECONDS / 2
    eventually(lambda: sent() > half or not in_flight(checkpoint, 1), 60, "half of it")
    query.stop()
    assert in_flight(checkpoint, 1)
    query = start(spark, job)
    assert query.awaitTermination(120)
    seconds = time.monotonic() - began
    assert sent() <= RATE * (seconds + BURST_SECONDS) + 1_048_576
    assert proxy.metric("throttle_seconds_sum", client_id=SINK) > 0, "it wanted more"
    tally = compare(read_topic(sink_front.bootstrap_servers, topic, unique_name("verify")), expected)
    assert tally.nothing_lost, tally
    records_in_a_batch = SINK_ROWS * RATE * BATCH_SECONDS / input_bytes(folder)
    assert 0 < tally.duplicates <= 1.1 * records_in_a_batch, tally


@pytest.mark.claim("limits", "Spark in ten minutes")
@pytest.mark.timeout(250)
def test_ten_minutes(spark: SparkSession, kafka_cluster: KafkaCluster, unique_name: UniqueName, tmp_path: Path) -> None:
    """The files, the command and the job of docs/spark.md: held, explained as the page shows it, faster when told."""
    page = blocks(SPARK_PAGE)
    slow, fast = (text for language, text in page if language == "toml")
    (job,) = (text for language, text in page if language == "python")
    (shown,) = (text for language, text in page if language == "console")
    command, *_ = (text for language, text in page if language == "sh")
    quotas, topic = tmp_path / "quotas.toml", unique_name("flights")
    create_topics(kafka_cluster, topic)
    quotas.write_text(slow)
    _, _, *flags = shlex.split(command)
    flags[flags.index("quotas.toml")] = str(quotas)
    flags[flags.index("broker-1:9092")] = kafka_cluster.bootstrap_servers
    with ProxyProcess(flags.pop(1), *flags[1:]) as proxy, ThreadPoolExecutor(1) as jobs:
        places = {"127.0.0.1:19092": proxy.bootstrap_servers, '"topic", "flights"': f'"topic", "{topic}"'}
        for named, here in places.items():
            assert job.count(named) == 1
            job = job.replace(named, here)
        running = jobs.submit(exec, job, {})

        def missing() -> set[str]:
            body = proxy.get("/explain", "text/plain")[1].replace(str(quotas), "quotas.toml")
            found = [each for each in body.split("\n\n") if each.startswith("flights-etl:")]
            here = {shape(line) for line in "".join(found[:1]).splitlines()}
            return {shape(line) for line in unwrapped(shown) if not line.startswith(VARIES)} - here

        eventually(lambda: not missing(), 60, "every line of the page")
        assert not running.done()
        quotas.write_text(fast)
        eventually(lambda: proxy.metric("quota_limit", entity="client-id:flights-etl") == 5e6, 20, "the new limit")
        running.result(120)
        assert proxy.metric("throttle_seconds_count", client_id="flights-etl") > 0
    assert records_in(kafka_cluster, topic) == 40_000


@pytest.mark.claim(
    "enforcement",
    "connections that end by age lose nothing and double nothing, with idempotence, acks=1 and "
    "acks=0, in transactions and groups, with TLS and logins",
)
@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_job_whose_connections_end_every_ten_seconds(
    spark: SparkSession, kafka_cluster: KafkaCluster, unique_name: UniqueName
) -> None:
    """It writes for 25 s at its limit, and reads for as long (kafka-clients 3.9)."""
    topic, client_id = unique_name("age"), unique_name("job")
    create_topics(kafka_cluster, topic)
    rows, value_bytes, rate = 2_500, 10_000, 1_000_000
    quota = f"client-id={client_id},producer_byte_rate={rate},consumer_byte_rate={rate},burst_seconds=0.1"
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--max-connection-age", "10s", "--quota", quota) as proxy:
        settings = {"kafka.bootstrap.servers": proxy.bootstrap_servers, "kafka.client.id": client_id}
        values = spark.range(rows, numPartitions=2).selectExpr(f"concat(lpad(id, 8, '0'), repeat('x', {value_bytes}))")
        written = values.toDF("value").write.format("kafka")
        written.options(**settings, **{"kafka.max.request.size": "200000", "topic": topic}).save()
        after_writing = proxy.metric("connections_closed_total", reason="max_age")
        assert after_writing > 0
        source = spark.read.format("kafka").options(**settings, subscribe=topic, startingOffsets="earliest")
        numbers = source.load().selectExpr("cast(substring(cast(value as string), 1, 8) as int) as number")
        assert sorted(row.number for row in numbers.collect()) == list(range(rows)), "each once"
        assert proxy.metric("connections_closed_total", reason="max_age") > after_writing
