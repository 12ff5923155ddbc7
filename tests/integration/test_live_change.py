"""Quotas change while producers run: what they get follows within seconds, and nobody is disconnected."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy.local.cluster import KafkaCluster
from deploy.local.tap import Tap
from tests.integration.flood import Flood, create_topics, rates
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.test_produce_quota import flooding, span

pytestmark = pytest.mark.alone

SLOW, FAST = 200_000, 600_000
#: The file is looked at once a second.
NOTICED_SECONDS = 5.0


def write(path: Path, *entries: str, share: float | None = None) -> None:
    """As a whole, the way editors do it."""
    fresh = path.with_suffix(".new")
    above = "" if share is None else f"quota_share = {share}\n"
    fresh.write_text(above + "".join(f"[[quota]]\n{entry}\n" for entry in entries))
    fresh.replace(path)


def limit(client_id: str, rate: int) -> str:
    return f'client-id = "{client_id}"\nproducer_byte_rate = {rate}'


def reloads(proxy: ProxyProcess) -> int:
    return sum(each["event"] == "quotas_reloaded" for each in proxy.events)


@pytest.mark.timeout(120)
def test_faster_slower_and_free_without_a_disconnect(
    tapped_cluster: KafkaCluster, tap: Tap, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    topic, client_id, quotas = unique_name("live"), unique_name("live"), tmp_path / "quotas.toml"
    create_topics(tapped_cluster, topic)
    write(quotas, limit(client_id, SLOW))
    with (
        ProxyProcess(tapped_cluster.bootstrap_servers, "--quotas-file", str(quotas)) as proxy,
        Flood(proxy.bootstrap_servers, client_id, topic) as flood,
    ):
        flood.wait_for(3 * SLOW // 2 // flood.record_bytes)

        def change(*entries: str) -> None:
            before = reloads(proxy)
            write(quotas, *entries)
            eventually(lambda: reloads(proxy) > before, NOTICED_SECONDS, "the file has been read again")

        found = rates(2, flood)
        change(limit(client_id, FAST))
        # What the larger bucket holds at first is not what is measured.
        flood.wait_for(flood.records() + 3 * FAST // 2 // flood.record_bytes)
        found += rates(2, flood)
        change(limit(client_id, SLOW))
        # It owes a second at most.
        flood.wait_for(flood.records() + 1)
        found += rates(2, flood)
        change(limit("nobody-here", SLOW))
        flood.wait_for(flood.records() + 4 * FAST // flood.record_bytes)
        assert proxy.throttles() == []
        assert flood.problems == []
    assert found == pytest.approx([SLOW, FAST, SLOW], rel=0.1)
    assert len({frame.connection for frame in tap.frames("produce", client_id)}) == 1


@pytest.mark.timeout(120)
def test_the_share_follows_the_file_and_then_the_flag(
    tapped_cluster: KafkaCluster, tap: Tap, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    topic, client_id, quotas = unique_name("share"), unique_name("share"), tmp_path / "quotas.toml"
    create_topics(tapped_cluster, topic)
    write(quotas, limit(client_id, 2 * FAST))
    arguments = ("--quotas-file", str(quotas), "--quota-share", str(SLOW / (2 * FAST)))
    with (
        ProxyProcess(tapped_cluster.bootstrap_servers, *arguments) as proxy,
        Flood(proxy.bootstrap_servers, client_id, topic) as flood,
    ):
        flood.wait_for(3 * SLOW // 2 // flood.record_bytes)
        found = rates(2, flood)
        write(quotas, limit(client_id, 2 * FAST), share=0.5)
        eventually(lambda: reloads(proxy) == 1, NOTICED_SECONDS, "the file has been read again")
        # As above: the larger bucket first, and a second of debt later.
        flood.wait_for(flood.records() + 3 * FAST // 2 // flood.record_bytes)
        found += rates(2, flood)
        write(quotas, limit(client_id, 2 * FAST))
        eventually(lambda: reloads(proxy) == 2, NOTICED_SECONDS, "the file has been read once more")
        flood.wait_for(flood.records() + 1)
        found += rates(2, flood)
        assert flood.problems == []
    assert found == pytest.approx([SLOW, FAST, SLOW], rel=0.1)
    assert len({frame.connection for frame in tap.frames("produce", client_id)}) == 1


@pytest.mark.timeout(120)
def test_a_java_and_an_aiokafka_producer_keep_their_connections(
    tapped_cluster: KafkaCluster, tap: Tap, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    """From next to nothing to what they want: those who wait look again at once."""
    client_ids = {library: unique_name(library) for library in ("java", "aiokafka")}
    quotas = tmp_path / "quotas.toml"
    write(quotas, limit("<default>", 20_000))
    with ProxyProcess(tapped_cluster.bootstrap_servers, "--quotas-file", str(quotas)) as proxy, ExitStack() as stack:
        for library, client_id in client_ids.items():
            stack.enter_context(flooding(library, proxy.bootstrap_servers, client_id))

        def all_wait() -> bool:
            return {each["client_id"] for each in proxy.throttles()} == set(client_ids.values())

        eventually(all_wait, 60, "both are held")
        seen = {client_id: len(tap.frames("produce", client_id)) for client_id in client_ids.values()}
        write(quotas, limit("<default>", 10_000_000))

        def all_go_on() -> bool:
            return all(len(tap.frames("produce", each)) > count + 5 for each, count in seen.items())

        eventually(all_go_on, 20, "they do not wait out what they owed at the old rate")
    for client_id in client_ids.values():
        frames = tap.frames("produce", client_id)
        assert len({frame.connection for frame in frames}) == 1
        assert span(tap.sizes("produce", client_id)) > 0


@pytest.mark.timeout(120)
def test_a_file_with_an_error_changes_nothing_and_is_reported(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    topic, client_id, quotas = unique_name("mistake"), unique_name("mistake"), tmp_path / "quotas.toml"
    create_topics(kafka_cluster, topic)
    write(quotas, limit(client_id, SLOW))
    with (
        ProxyProcess(kafka_cluster.bootstrap_servers, "--quotas-file", str(quotas)) as proxy,
        Flood(proxy.bootstrap_servers, client_id, topic) as flood,
    ):
        proxy.expected_errors.add("config_refused")
        flood.wait_for(3 * SLOW // 2 // flood.record_bytes)
        write(quotas, limit(client_id, FAST), f'topic = "{topic}"\nbytes_in_rat = 1')
        refused = proxy.wait_for_event("config_refused", NOTICED_SECONDS)
        assert str(quotas) in refused["place"]
        assert "bytes_in_rat" in refused["message"]
        assert "bytes_in_rate" in refused["hint"]
        assert rates(3, flood) == pytest.approx([SLOW], rel=0.1)
        assert proxy.metric("config_last_reload_successful") == 0

        def times_refused() -> int:
            return sum(each["event"] == "config_refused" for each in proxy.events)

        once = times_refused()
        proxy.reload()
        eventually(lambda: times_refused() > once, 5, "SIGHUP reads a file that has not changed")
        write(quotas, limit(client_id, FAST))
        eventually(lambda: reloads(proxy) == 1, NOTICED_SECONDS, "the file is right again")
        assert proxy.metric("config_last_reload_successful") == 1
        assert proxy.metric("quota_limit", entity=f"client-id:{client_id}") == FAST
        assert flood.problems == []
