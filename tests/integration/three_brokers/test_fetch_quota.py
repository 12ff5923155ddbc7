"""Consumer groups far over their quota get what it allows, with open fetches at three brokers, and do not rebalance;
without it they read what is left.
"""

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.enforcement.outcome import rebalances_in
from bench.greedy_consumers import LIBRARIES, command
from bench.real_broker import fill
from deploy.local.cluster import KafkaCluster
from deploy.local.tap import Tap
from tests.conftest import UniqueName
from tests.integration.bytes_passed import check_held
from tests.integration.proxy_process import eventually, killed_at_the_end
from tests.integration.scanned_proxy import RelayedProxy, relayed_by
from tests.integration.test_live_change import write

pytestmark = [
    pytest.mark.claim("enforcement", "with three brokers, the open fetches of a client together stay within the limit"),
    pytest.mark.claim(
        "enforcement", "no client times out or writes twice because of a throttle, and no group rebalances"
    ),
]

RATE = 300_000
BURST_SECONDS = 0.1
NODES = (1, 2, 3)
MEMBERS, PARTITIONS = 2, 6


@pytest.mark.claim("limits", "consumer_byte_rate")
@pytest.mark.parametrize("seconds", [8, pytest.param(120, marks=pytest.mark.nightly)])
@pytest.mark.timeout(400)
def test_groups_of_three_libraries_each_at_their_limit(
    kafka_cluster3: KafkaCluster, unique_name: UniqueName, tmp_path: Path, seconds: int
) -> None:
    """They want all of a backlog of ten times what they get. Sessions end after 6 s without a heartbeat."""
    groups = {unique_name(library): library for library in LIBRARIES}
    quotas, backlog = tmp_path / "quotas.toml", 10 * RATE * (seconds + 2)
    write(quotas, f'client-id = "<default>"\nconsumer_byte_rate = {RATE}\nburst_seconds = {BURST_SECONDS}')

    def logs() -> list[str]:
        return [kafka_cluster3.log_path(node).read_text(errors="replace") for node in NODES]

    def is_stable(group: str) -> bool:
        """The group has one coordinator, so all about it is in one log."""
        lines = [text[text.rfind(f"Stabilized group {group} ") :].partition("\n")[0] for text in logs()]
        return any(f"with {MEMBERS} members" in line for line in lines)

    def rebalances() -> list[int]:
        texts = logs()
        return [sum(rebalances_in(text, group) for text in texts) for group in groups]

    flags = ("--quotas-file", str(quotas))
    with Tap() as tap, RelayedProxy(kafka_cluster3, *flags, relay_port=relayed_by(tap)) as front, ExitStack() as stack:

        def sizes(group: str, since_ns: int = 0) -> list[int]:
            return [size for at, size in tap.sizes("fetch", group) if at > since_ns]

        topic = front.create_topic(unique_name("backlog"), PARTITIONS)
        fill(kafka_cluster3.bootstrap_servers, topic, backlog, PARTITIONS)
        for group, library in groups.items():
            for _ in range(MEMBERS):
                stack.enter_context(killed_at_the_end(command(library, front.bootstrap_servers, group, topic)))
        eventually(lambda: all(map(is_stable, groups)), 90, "all are members")
        eventually(lambda: all(map(sizes, groups)), 60, "all read")
        began_ns, before = time.monotonic_ns(), rebalances()
        eventually(lambda: time.monotonic_ns() > began_ns + seconds * 10**9, seconds + 5, "the time is over")
        assert rebalances() == before
        for group in groups:
            passed, took_seconds = sizes(group, began_ns), (time.monotonic_ns() - began_ns) / 1e9
            extra = MEMBERS * len(NODES) * max(passed)
            check_held(sum(passed), took_seconds, RATE, burst_seconds=BURST_SECONDS, extra=extra)
            assert front.proxy.metric("throttled_total", client_id=group, limit="consumer_byte_rate") > 0
        write(quotas, f'client-id = "nobody-here"\nconsumer_byte_rate = {RATE}')
        eventually(lambda: all(sum(sizes(group)) > backlog for group in groups), 90, "all is read")
        assert front.proxy.throttles() == []
