"""Enforcement off and on, and a configuration that changes, while a producer is throttled: none is disconnected."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.local.cluster import KafkaCluster
from deploy.local.tap import Tap
from tests.integration.flood import Flood, create_topics, rates
from tests.integration.proxy_process import ProxyProcess, eventually

SLOW, FAST = 200_000, 600_000


def enforcement(path: Path, *arguments: str) -> str:
    """What `kafka-quota-proxy enforcement` prints."""
    command = Path(sys.executable).with_name("kafka-quota-proxy")
    done = subprocess.run(
        [str(command), "enforcement", "--admin-socket", str(path), *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout


def write(path: Path, client_id: str, rate: int, **options: object) -> None:
    """The configuration, as a whole."""
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in options.items()]
    fresh = path.with_suffix(".new")
    quota = f"client-id={client_id},producer_byte_rate={rate},burst_seconds=0.1"
    fresh.write_text("".join([*lines, f"quota = {json.dumps([quota])}\n"]))
    fresh.replace(path)


def passes_within(flood: Flood, seconds: float, size: int) -> None:
    """So many bytes are written in this time from now."""
    wanted = flood.records() + size // flood.record_bytes
    eventually(lambda: flood.records() >= wanted, seconds, f"{size} bytes are written")


def rate_at_the_broker(tap: Tap, client_id: str, flood: Flood) -> float:
    """Bytes of Produce requests per second, of the three seconds that follow."""
    before = sum(size for _, size in tap.sizes("produce", client_id))
    began = time.monotonic()
    rates(3, flood)
    elapsed = time.monotonic() - began
    return (sum(size for _, size in tap.sizes("produce", client_id)) - before) / elapsed


@pytest.mark.timeout(120)
def test_off_frees_a_throttled_producer_within_a_second_and_ends_by_itself(
    tapped_cluster: KafkaCluster, tap: Tap, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    topic, client_id, path = unique_name("off"), unique_name("off"), tmp_path / "admin.sock"
    create_topics(tapped_cluster, topic)
    quota = f"client-id={client_id},producer_byte_rate={SLOW},burst_seconds=0.1"
    with (
        ProxyProcess(tapped_cluster.bootstrap_servers, "--quota", quota, "--admin-socket", str(path)) as proxy,
        Flood(proxy.bootstrap_servers, client_id, topic) as flood,
    ):
        flood.wait_for(2 * SLOW // flood.record_bytes)
        assert enforcement(path, "status") == "enforcement is on, throttle mode auto\n"
        assert "enforcement is off until " in enforcement(path, "off", "--for", "60s")
        passes_within(flood, 1.0, 5 * SLOW)
        assert proxy.metric("enforcement_enabled") == 0
        assert enforcement(path, "on") == "enforcement is on, throttle mode auto\n"
        assert rate_at_the_broker(tap, client_id, flood) == pytest.approx(SLOW, rel=0.2)
        enforcement(path, "off", "--for", "3s")
        proxy.wait_for_event("enforcement_on", 5, reason="time is over")
        assert rate_at_the_broker(tap, client_id, flood) == pytest.approx(SLOW, rel=0.2)
        assert proxy.metric("enforcement_enabled") == 1
        assert flood.problems == []
    assert len({frame.connection for frame in tap.frames("produce", client_id)}) == 1
    assert not path.exists()


@pytest.mark.timeout(120)
def test_a_configuration_changes_within_a_second_of_a_hang_up_and_two_of_its_file(
    tapped_cluster: KafkaCluster, tap: Tap, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    topic, client_id, path = unique_name("live"), unique_name("live"), tmp_path / "proxy.toml"
    create_topics(tapped_cluster, topic)
    write(path, client_id, SLOW)
    entity = f"client-id:{client_id}"
    with (
        ProxyProcess(tapped_cluster.bootstrap_servers, "--config", str(path)) as proxy,
        Flood(proxy.bootstrap_servers, client_id, topic) as flood,
    ):
        flood.wait_for(2 * SLOW // flood.record_bytes)

        def rate_after(seconds: float, rate: int, *, hang_up: bool) -> float:
            """Bytes per second at the broker, of the three seconds that begin so long after the change."""
            write(path, client_id, rate)
            begins_ns = time.monotonic_ns() + int(seconds * 1e9)
            if hang_up:
                proxy.reload()
            ends_ns = begins_ns + 3 * 10**9
            eventually(lambda: time.monotonic_ns() > ends_ns, seconds + 5, "the time that is measured is over")
            return sum(size for at, size in tap.sizes("produce", client_id) if begins_ns <= at < ends_ns) / 3

        changes = [(1.0, FAST, True), (1.0, SLOW, True), (2.0, FAST, False), (2.0, SLOW, False)]
        found = [rate_after(seconds, rate, hang_up=hang_up) for seconds, rate, hang_up in changes]
        print(
            "rates after a change over the new limit:",
            [round(f / c[1], 3) for f, c in zip(found, changes, strict=True)],
        )
        assert found == pytest.approx([rate for _, rate, _ in changes], rel=0.1)
        write(path, client_id, SLOW, dry_run=True, log_level="debug", throttle_mode="notify")
        proxy.reload()
        passes_within(flood, 2.0, 5 * SLOW)
        write(path, client_id, FAST, throttle_mode="notfy")
        proxy.expected_errors.add("config_refused")
        proxy.reload()
        assert "throttle_mode = 'notfy'" in proxy.wait_for_event("config_refused", 2.0)["place"]
        assert proxy.metric("quota_limit", entity=entity) == SLOW
        assert proxy.metric("enforcement_enabled") == 0
        assert flood.problems == []
    assert len({frame.connection for frame in tap.frames("produce", client_id)}) == 1
