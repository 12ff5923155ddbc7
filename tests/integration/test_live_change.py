"""Quotas change while producers run: what they get follows within seconds, and nobody is disconnected."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.flooding_clients import LIBRARIES
from deploy.local.cluster import KafkaCluster
from deploy.local.tap import Tap
from tests.integration.bytes_passed import SECONDS, check_frames, span
from tests.integration.flood import create_topics
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.test_produce_quota import flooding

#: At `SLOW` a client needs a minute for `MUCH`.
SLOW, FAST = 20_000, 10_000_000
MIDDLE = 300_000
MUCH = 1_200_000
#: The file is looked at once a second.
NOTICED_SECONDS = 20.0
DEADLINE_SECONDS = 40.0


def write(path: Path, *entries: str, share: float | None = None) -> None:
    """As a whole, the way editors do it."""
    fresh = path.with_suffix(".new")
    above = "" if share is None else f"quota_share = {share}\n"
    fresh.write_text(above + "".join(f"[[quota]]\n{entry}\n" for entry in entries))
    fresh.replace(path)


def limit(client_id: str, rate: int) -> str:
    return f'client-id = "{client_id}"\nproducer_byte_rate = {rate}'


@pytest.mark.timeout(200)
def test_faster_slower_and_free_without_a_disconnect(
    tapped_cluster: KafkaCluster, tap: Tap, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    """One file, which changes seven times, once with a mistake. Each library has the default limit to itself."""
    quotas = tmp_path / "quotas.toml"
    client_ids = {unique_name(library): library for library in LIBRARIES}
    create_topics(tapped_cluster, *client_ids)
    write(quotas, limit("<default>", SLOW))
    with ProxyProcess(tapped_cluster.bootstrap_servers, "--quotas-file", str(quotas)) as proxy, ExitStack() as stack:
        for client_id, library in client_ids.items():
            stack.enter_context(flooding(library, proxy.bootstrap_servers, client_id, client_id))

        def frames(client_id: str, since_ns: int = 0) -> list[tuple[int, int]]:
            return [each for each in tap.sizes("produce", client_id) if each[0] > since_ns]

        def change(*entries: str, share: float | None = None) -> None:
            before = count("quotas_reloaded")
            write(quotas, *entries, share=share)
            eventually(lambda: count("quotas_reloaded") > before, NOTICED_SECONDS, "the file has been read again")

        def count(event: str) -> int:
            return sum(each["event"] == event for each in proxy.events)

        def quota_limits() -> set[float]:
            return {proxy.metric("quota_limit", entity=f"client-id:{client_id}") for client_id in client_ids}

        def all_wait() -> bool:
            return {each["client_id"] for each in proxy.throttles()} == set(client_ids)

        def all_send(size: int) -> None:
            sent = {client_id: sum(size for _, size in frames(client_id)) for client_id in client_ids}
            eventually(
                lambda: all(sum(each for _, each in frames(name)) > sent[name] + size for name in client_ids),
                DEADLINE_SECONDS,
                f"each has sent {size} bytes more",
            )

        eventually(all_wait, 60, "all are held")
        change(limit("<default>", FAST))
        all_send(MUCH)  # those who wait are asked again at once: at the old rate they owed seconds
        change(limit("<default>", MIDDLE))
        eventually(all_wait, 20, "all are held again")
        all_send(1)
        since_ns = max(frames(client_id)[-1][0] for client_id in client_ids)
        eventually(
            lambda: all(span(frames(client_id, since_ns)) >= SECONDS * 10**9 for client_id in client_ids),
            DEADLINE_SECONDS,
            f"all have sent for {SECONDS} s",
        )
        for client_id in client_ids:
            check_frames(frames(client_id, since_ns), MIDDLE)
        change(limit("<default>", MIDDLE), share=0.5)
        assert quota_limits() == {MIDDLE / 2}
        proxy.expected_errors.add("config_refused")
        write(quotas, limit("<default>", FAST), 'topic = "orders"\nbytes_in_rat = 1')
        refused = proxy.wait_for_event("config_refused", NOTICED_SECONDS)
        assert str(quotas) in refused["place"]
        assert "bytes_in_rat" in refused["message"]
        assert "bytes_in_rate" in refused["hint"]
        assert proxy.metric("config_last_reload_successful") == 0
        assert quota_limits() == {MIDDLE / 2}
        once = count("config_refused")
        proxy.reload()
        eventually(lambda: count("config_refused") > once, NOTICED_SECONDS, "SIGHUP reads an unchanged file")
        change(limit("<default>", SLOW))
        assert proxy.metric("config_last_reload_successful") == 1
        assert quota_limits() == {SLOW}, "without a share in the file, the flag's"
        eventually(all_wait, 20, "all are held at last")
        change(limit("nobody-here", SLOW))
        all_send(MUCH)
        assert proxy.throttles() == []
    for client_id in client_ids:
        assert len({frame.connection for frame in tap.frames("produce", client_id)}) == 1
