"""A consumer's limit holds it, whichever library reads, with open fetches at three brokers."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from bench.greedy_consumers import LIBRARIES, command
from bench.real_broker import fill
from deploy.local.artifacts import PROJECT
from deploy.local.cluster import KafkaCluster
from deploy.local.tap import Tap
from tests.integration.bytes_passed import SECONDS, check_frames, span
from tests.integration.proxy_process import eventually
from tests.integration.scanned_proxy import RelayedProxy, relayed_by

LIMIT = 500_000
BURST_SECONDS = 0.1
PARTITIONS = 6


@contextmanager
def reading(library: str, bootstrap: str, client_id: str, topic: str) -> Iterator[None]:
    """A consumer of the group `client_id`, as long as the block lasts."""
    argv = command(library, bootstrap, client_id, topic)
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=PROJECT) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.mark.timeout(200)
def test_three_libraries_at_once_each_at_their_limit(
    kafka_cluster3: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """Each with a connection to each broker: together they get what the limit allows."""
    client_ids = [unique_name(library) for library in LIBRARIES]
    quota = f"client-id=<default>,consumer_byte_rate={LIMIT},burst_seconds={BURST_SECONDS}"
    with Tap() as tap, RelayedProxy(kafka_cluster3, "--quota", quota, relay_port=relayed_by(tap)) as front:
        topic = front.create_topic(unique_name("fetched"), PARTITIONS)
        fill(kafka_cluster3.bootstrap_servers, topic, LIMIT * (SECONDS + 30), PARTITIONS)
        with ExitStack() as stack:
            for library, client_id in zip(LIBRARIES, client_ids, strict=True):
                stack.enter_context(reading(library, front.bootstrap_servers, client_id, topic))
            eventually(
                lambda: all(span(tap.sizes("fetch", each)) >= SECONDS * 10**9 for each in client_ids),
                60 + SECONDS,
                f"all have read for {SECONDS} s",
            )
            for client_id in client_ids:
                check_frames(tap.sizes("fetch", client_id), LIMIT, burst_seconds=BURST_SECONDS, connections=3)
                assert front.proxy.metric("throttled_total", client_id=client_id, limit="consumer_byte_rate") > 0
