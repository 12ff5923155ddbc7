"""Kafka 4.4: its broker, and its Java clients, which log each throttle time as a warning (KAFKA-19117)."""

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kio.static.primitive import i32

from deploy.local.cluster import KafkaCluster
from deploy.local.tools import program_command
from protocol.apis import API_VERSIONS
from protocol.messages import encode
from tests.conftest import UniqueName
from tests.integration.bytes_passed import check_held
from tests.integration.librdkafka import produce
from tests.integration.proxy_process import ProxyProcess
from tests.integration.scanned_proxy import ScannedProxy
from tests.integration.topics import create_topics
from tests.protocol.kafka_messages import ApiVersionsRequest5
from tests.proxy.frames import request

pytestmark = pytest.mark.claim(
    "limits",
    "what applications do with clients of 4.3 and 4.4 at a broker of 4.4; lines, rate and "
    "evenness of throttled clients of 4.4",
)

HERE = Path(__file__).parent
RUN_SECONDS = 200
NEWEST, BEFORE = "4.4.0", "4.3.1"


@pytest.fixture(scope="module")
def newest_front() -> Iterator[ScannedProxy]:
    """A broker of Kafka 4.4 behind a proxy without limits."""
    overrides = {"group.share.record.lock.duration.ms": "15000"}
    with KafkaCluster(1, NEWEST, overrides=overrides) as cluster, ScannedProxy(cluster) as front:
        yield front
        assert front.relay.sightings == 0


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", [NEWEST, BEFORE])
def test_what_applications_do(newest_front: ScannedProxy, unique_name: UniqueName, version: str) -> None:
    proxy = newest_front.proxy

    newer = {("ApiVersions", "5"), ("TxnOffsetCommit", "6"), ("DeleteGroups", "3")}
    older = {("ApiVersions", "4"), ("TxnOffsetCommit", "5"), ("DeleteGroups", "2")}

    def asked() -> dict[tuple[str, str], float]:
        return {each: proxy.metric("requests_total", api=each[0], version=each[1]) for each in newer | older}

    before = asked()
    program = HERE / "ClientChecks.java"
    command = program_command(version, program, newest_front.bootstrap_servers, unique_name("checks"))
    done = subprocess.run(command, capture_output=True, timeout=RUN_SECONDS, check=False, text=True)
    results = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert len(results) == 13, (done.stdout, done.stderr[-2000:])
    assert set(results.values()) == {"ok"}, results
    # Not all lines: one of two members that is closed may be in the middle of a rebalance.
    assert "clients.NetworkClient" not in done.stderr, done.stderr
    assert not [each for each in proxy.events if each["level"] != "INFO"]
    used = {api for api, count in asked().items() if count > before[api]}
    assert used == (newer if version == NEWEST else older), "no connection asks twice"


@pytest.mark.nightly
def test_a_node_that_the_proxy_does_not_know(newest_front: ScannedProxy) -> None:
    """A client that survives a restart of the proxy names one. A broker refuses the name of another one (KIP-1242)."""
    admin = AdminClient({"bootstrap.servers": newest_front.bootstrap_servers})
    cluster_id = admin.describe_cluster().result(30).cluster_id
    none, rebootstrap_required, invalid_request = 0, 129, 42
    expected = {
        (cluster_id, 1): (none, none),
        (cluster_id, 7): (rebootstrap_required, none),
        ("another", 7): (rebootstrap_required, none),
        ("another", 1): (rebootstrap_required, rebootstrap_required),
        (None, 1): (invalid_request, invalid_request),
        (None, -1): (none, none),
    }
    addresses = newest_front.cluster.bootstrap_servers, newest_front.bootstrap_servers
    seen = {each: tuple(api_versions_error(address, *each) for address in addresses) for each in expected}
    assert seen == expected, "at the broker, and through the proxy"


def api_versions_error(address: str, cluster_id: str | None, node: int) -> int:
    software: Any = {"client_software_name": "x", "client_software_version": "1"}
    body = ApiVersionsRequest5(**software, cluster_id=cluster_id, node_id=i32(node))
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(request(API_VERSIONS, 5, 1, encode(body)))
        return int.from_bytes(connection.makefile("rb").read(10)[8:])


# ---- lines of the log
LIMIT = 2_000_000
RECORD_BYTES = 10_000
PARTITIONS = 3
BURST_SECONDS = 0.1
#: A batch of each partition; `max.partition.fetch.bytes`.
REQUEST_BYTES = {"produce": 300_000, "consume": 1_048_576}
_throttled = re.compile(r"throttled for (\d+) ms").search


class Run(NamedTuple):
    """One client. waits_ms: of its lines; records: of each second from its first record on."""

    waits_ms: list[int]
    records: list[int]


def flood(version: str, what: str, proxy: ProxyProcess, client_id: str, topic: str, seconds: int) -> Run:
    arguments = (what, proxy.bootstrap_servers, client_id, topic, f"{PARTITIONS}", f"{seconds}")
    command = program_command(version, HERE / "JavaFlood.java", *arguments)
    done = subprocess.run(command, capture_output=True, timeout=RUN_SECONDS, check=True, text=True)
    lines = done.stderr.splitlines()
    found = [each for each in map(_throttled, lines) if each is not None]
    assert len(found) == len(lines), lines
    records, errors = done.stdout.splitlines()
    assert int(errors) == 0
    return Run([int(each[1]) for each in found], json.loads(records))


def unevenness(records: list[int]) -> float:
    """By how many bytes a second differs from the limit, as a mean. One that waits every other second has `LIMIT`."""
    return sum(abs(each * RECORD_BYTES - LIMIT) for each in records) / len(records)


@pytest.mark.timeout(RUN_SECONDS)
@pytest.mark.parametrize("seconds", [5, pytest.param(30, marks=pytest.mark.nightly)])
def test_a_throttled_client_logs_few_lines(kafka_cluster: KafkaCluster, unique_name: UniqueName, seconds: int) -> None:
    """A client of 4.4 beside one of 4.3, which logs nothing: at most a line a second, and the same bytes."""
    topics = {"produce": unique_name("written"), "consume": unique_name("read")}
    create_topics(kafka_cluster, *topics.values(), partitions=PARTITIONS)
    filler = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    produce(filler, topics["consume"], [bytes(RECORD_BYTES)] * 600)
    names = {
        (version, what): unique_name(f"{what}-{version}")
        for version in ((NEWEST,) if seconds == 5 else (NEWEST, BEFORE))
        for what in topics
    }
    limits = f"producer_byte_rate={LIMIT},consumer_byte_rate={LIMIT},burst_seconds={BURST_SECONDS}"
    given = (kafka_cluster.bootstrap_servers, "--quota", f"client-id=<default>,{limits}")
    with ProxyProcess(*given) as proxy, ThreadPoolExecutor(len(names)) as threads:

        def run(key: tuple[str, str]) -> Run:
            return flood(*key, proxy, names[key], topics[key[1]], seconds)

        runs = dict(zip(names, threads.map(run, names), strict=True))
        for name in names.values():
            assert proxy.metric("throttled_total", client_id=name) > 0
    for (version, what), found in runs.items():
        assert len(found.waits_ms) <= (seconds if version == NEWEST else 0), found
        assert not found.waits_ms or min(found.waits_ms) >= 1_000
        passed = sum(found.records) * RECORD_BYTES
        check_held(passed, seconds, LIMIT, burst_seconds=BURST_SECONDS, extra=1_000_000)
        if (BEFORE, what) in runs:
            rest, same = found.records[1:], runs[BEFORE, what].records[1:]
            assert sum(rest) == pytest.approx(sum(same), rel=0.03)
            assert unevenness(rest) <= unevenness(same) + REQUEST_BYTES[what] / 2
