"""A producer's limit holds it, whichever library produces, and without responses."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from bench.flooding_clients import LIBRARIES, command
from deploy.local.artifacts import PROJECT
from deploy.local.cluster import KafkaCluster
from deploy.local.tap import Tap
from tests.integration.bytes_passed import SECONDS, check_frames, span
from tests.integration.flood import Flood, create_topics
from tests.integration.proxy_process import ProxyProcess, eventually

LIMIT = 500_000


@contextmanager
def flooding(library: str, bootstrap: str, client_id: str, topic: str) -> Iterator[subprocess.Popen[bytes]]:
    """A producer that wants more than it may have, as long as the block lasts."""
    argv = command(library, bootstrap, client_id, topic)
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=PROJECT) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.timeout(150)
def test_three_libraries_at_once_each_at_their_limit(
    tapped_cluster: KafkaCluster, tap: Tap, unique_name: Callable[[str], str]
) -> None:
    """And a fourth producer, with acks=0."""
    client_ids = {library: unique_name(library) for library in (*LIBRARIES, "acks-0")}
    create_topics(tapped_cluster, *client_ids.values())
    quota = f"client-id=<default>,producer_byte_rate={LIMIT}"
    with ProxyProcess(tapped_cluster.bootstrap_servers, "--quota", quota) as proxy, ExitStack() as stack:
        for library in LIBRARIES:
            client_id = client_ids[library]
            stack.enter_context(flooding(library, proxy.bootstrap_servers, client_id, client_id))
        unanswered = client_ids["acks-0"]
        stack.enter_context(Flood(proxy.bootstrap_servers, unanswered, unanswered, acks=0))
        eventually(
            lambda: all(span(tap.sizes("produce", each)) >= SECONDS * 10**9 for each in client_ids.values()),
            60 + SECONDS,
            f"all have sent for {SECONDS} s",
        )
        for client_id in client_ids.values():
            check_frames(tap.sizes("produce", client_id), LIMIT)
            assert tap.unreadable == 0
            assert proxy.metric("throttled_total", client_id=client_id, limit="producer_byte_rate") > 0
