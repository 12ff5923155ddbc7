"""SIGUSR2 and `dry_run` in the quotas file free a throttled producer, and throttle it again, on its connection."""

from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.local.cluster import KafkaCluster
from deploy.local.tap import Tap
from tests.integration.flood import Flood, create_topics
from tests.integration.proxy_process import ProxyProcess, eventually

RATE = 100_000
PATIENCE_SECONDS = 60
#: At the limit this takes twice as long as the test waits.
MUCH = 2 * PATIENCE_SECONDS * RATE


@pytest.mark.timeout(300)
def test_a_signal_and_a_file_switch_enforcement(
    tapped_cluster: KafkaCluster, tap: Tap, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    topic, client_id, quotas = unique_name("switch"), unique_name("switch"), tmp_path / "quotas.toml"
    create_topics(tapped_cluster, topic)

    def write(above: str = "") -> None:
        fresh = quotas.with_suffix(".new")
        fresh.write_text(f'{above}[[quota]]\nclient-id = "{client_id}"\nproducer_byte_rate = {RATE}\n')
        fresh.replace(quotas)

    write()
    with (
        ProxyProcess(tapped_cluster.bootstrap_servers, "--quotas-file", str(quotas)) as proxy,
        Flood(proxy.bootstrap_servers, client_id, topic) as flood,
    ):

        def waits_for_its_limit() -> None:
            wanted = proxy.metric("throttled_total", client_id=client_id) + 1
            eventually(
                lambda: proxy.metric("throttled_total", client_id=client_id) >= wanted, PATIENCE_SECONDS, "throttled"
            )
            assert proxy.metric("enforcement_enabled") == 1

        def writes_without_it() -> None:
            wanted = flood.records() + MUCH // flood.record_bytes
            eventually(lambda: flood.records() >= wanted, PATIENCE_SECONDS, "not limited")
            assert proxy.metric("enforcement_enabled") == 0

        ways: list[tuple[str, Callable[[], None], Callable[[], None]]] = [
            ("SIGUSR2", proxy.toggle_enforcement, proxy.toggle_enforcement),
            ("file", lambda: write("dry_run = true\n"), write),
        ]
        for by, switch_off, switch_on in ways:
            waits_for_its_limit()
            switch_off()
            proxy.wait_for_event("enforcement_off", PATIENCE_SECONDS, by=by)
            writes_without_it()
            switch_on()
            proxy.wait_for_event("enforcement_on", PATIENCE_SECONDS, by=by)
        waits_for_its_limit()
        assert flood.problems == []
    assert len({frame.connection for frame in tap.frames("produce", client_id)}) == 1
