"""Consumer groups far over their quota do not rebalance; without the limit they read what is left."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.enforcement.outcome import rebalances_in
from bench.real_broker import fill
from deploy.local.cluster import KafkaCluster
from deploy.local.tap import Tap
from tests.integration.bytes_passed import LATE_SECONDS
from tests.integration.flood import create_topics
from tests.integration.proxy_process import eventually
from tests.integration.scanned_proxy import RelayedProxy, relayed_by
from tests.integration.test_live_change import write
from tests.integration.three_brokers.test_fetch_quota import reading

RATE = 200_000
BURST_SECONDS = 0.1
MEMBERS, PARTITIONS = 2, 4
NODE = 1
LIBRARIES = ("librdkafka", "java")
#: What a member's response brings at most.
RESPONSE_BYTES = 1_048_588


@pytest.mark.parametrize("seconds", [8, pytest.param(120, marks=pytest.mark.nightly)])
@pytest.mark.timeout(300)
def test_members_ten_times_over_their_quota_do_not_rebalance(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path, seconds: int
) -> None:
    """Their sessions end after 6 s without a heartbeat. They want all of a backlog of ten times what they get."""
    groups = {library: unique_name(library) for library in LIBRARIES}
    topic, quotas, backlog = unique_name("backlog"), tmp_path / "quotas.toml", 10 * RATE * (seconds + 10)
    create_topics(kafka_cluster, topic, partitions=PARTITIONS)
    fill(kafka_cluster.bootstrap_servers, topic, backlog, PARTITIONS)
    write(quotas, f'client-id = "<default>"\nconsumer_byte_rate = {RATE}\nburst_seconds = {BURST_SECONDS}')

    def log() -> str:
        return kafka_cluster.log_path(NODE).read_text(errors="replace")

    def is_stable(group: str) -> bool:
        text = log()
        return f"with {MEMBERS} members" in text[text.rfind(f"Stabilized group {group} ") :]

    def rebalances() -> dict[str, int]:
        return {group: rebalances_in(log(), group) for group in groups.values()}

    flags = ("--quotas-file", str(quotas))
    with Tap() as tap, RelayedProxy(kafka_cluster, *flags, relay_port=relayed_by(tap)) as front, ExitStack() as stack:

        def read(group: str, since_ns: int = 0) -> int:
            return sum(size for at, size in tap.sizes("fetch", group) if at > since_ns)

        for library, group in groups.items():
            for _ in range(MEMBERS):
                stack.enter_context(reading(library, front.bootstrap_servers, group, topic))
        eventually(lambda: all(map(is_stable, groups.values())), 90, "all are members")
        began_ns, before = time.monotonic_ns(), rebalances()
        eventually(lambda: time.monotonic_ns() > began_ns + seconds * 10**9, seconds + 5, "the time is over")
        assert rebalances() == before
        for group in groups.values():
            passed, took_seconds = read(group, began_ns), (time.monotonic_ns() - began_ns) / 1e9
            assert passed <= RATE * (took_seconds + BURST_SECONDS + LATE_SECONDS) + MEMBERS * RESPONSE_BYTES
            assert front.proxy.metric("throttled_total", client_id=group, limit="consumer_byte_rate") > seconds
        write(quotas, f'client-id = "nobody-here"\nconsumer_byte_rate = {RATE}')
        eventually(lambda: all(read(group) > backlog for group in groups.values()), 60, "all is read")
        assert front.proxy.throttles() == []
