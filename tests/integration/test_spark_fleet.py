"""One Spark job whose executors have a sidecar each: together they keep one quota."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyspark
import pytest

from demo.proxy_process import reserve_port
from deploy.local import artifacts
from deploy.local.cluster import KafkaCluster
from deploy.local.granted import grants_of, most_granted
from deploy.local.tap import Tap
from pipeline.spark_session import spark_session
from tests.conftest import UniqueName
from tests.integration.bytes_passed import check_frames
from tests.integration.librdkafka import records_in
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.topics import create_topics

RATE = 5_000_000
VALUE_BYTES, RECORDS = 10_000, 10_000
ADDRESSES = [f"127.0.0.{last}" for last in range(11, 15)]
"""Of the sidecars: one for each executor."""
SIDECAR = "sidecar.internal"
JOIN_SECONDS = 60.0
# PySpark leaves it to the collector to close the sockets through which results come.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.claim("fleet", "four Spark executors with a sidecar each keep the rate of one job"),
]


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_four_executors_with_a_sidecar_each_keep_the_rate_of_the_job(
    unique_name: UniqueName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in pods, all know their sidecar by one name and one port: each executor has a hosts file of its own."""
    topic, client_id = unique_name("events"), unique_name("job")
    fleet = ("--fleet", "job", "--fleet-max-members", str(len(ADDRESSES)), "--log-level", "debug")
    quota = ("--quota", f"client-id={client_id},producer_byte_rate={RATE}")
    for number, address in enumerate(ADDRESSES):
        (tmp_path / f"hosts-{number}").write_text(f"{address} {SIDECAR}\n127.0.0.1 localhost\n")
    settings = {
        "spark.master": f"local-cluster[{len(ADDRESSES)},1,1024]",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": f"-Djdk.net.hosts.file={tmp_path}/hosts-{{{{EXECUTOR_ID}}}} "
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    home = tmp_path / "spark"  # its workers write there
    home.mkdir()
    for folder in ("bin", "jars"):
        (home / folder).symlink_to(Path(pyspark.__file__).with_name(folder))
    monkeypatch.setenv("SPARK_HOME", str(home))
    with Tap() as tap, KafkaCluster(1, advertised=tap.advertise) as cluster, ExitStack() as stack:
        create_topics(cluster, topic, partitions=1)
        port, sockets = reserve_port(*ADDRESSES)
        for each in sockets:
            stack.callback(each.close)
        sidecars = []
        for address in ADDRESSES:
            listen = ("--listen", f"{address}:{port}", "--advertised-host", address)
            sidecars.append(stack.enter_context(ProxyProcess(cluster.bootstrap_servers, *fleet, *quota, *listen)))
        for sidecar in sidecars:
            eventually(partial(sidecar.metric, "fleet_joined"), JOIN_SECONDS, "it has joined")
        with spark_session(artifacts.spark_jars(), app_name=client_id, settings=settings, short=True) as spark:
            values = f"repeat('x', {VALUE_BYTES}) AS value"
            written = spark.range(RECORDS, numPartitions=8).selectExpr(values).write.format("kafka")
            servers = {"kafka.bootstrap.servers": f"{SIDECAR}:{port}", "kafka.client.id": client_id}
            written.options(**servers, **{"kafka.max.request.size": "200000", "topic": topic}).save()
        assert records_in(cluster, topic) == RECORDS
        frames = [(frame.time_ns, frame.size) for frame in tap.frames("produce", client_id)]
        check_frames(frames, RATE, burst_seconds=0.1, connections=2 * len(ADDRESSES))
        passed = [each.metric("bytes_total", direction="produce", client_id=client_id) for each in sidecars]
        assert min(passed) > 0, "each executor has used its own"
        assert sum(passed) > RECORDS * VALUE_BYTES
        most, _ = most_granted(grants for each in sidecars for grants in grants_of(list(each.events)).values())
        assert RATE / 2 < most <= RATE + 1
