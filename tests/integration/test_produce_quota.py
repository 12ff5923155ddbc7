"""The producer's limit holds in every second, whichever library produces."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from bench.flooding_clients import LIBRARIES, command
from deploy.local.artifacts import PROJECT
from deploy.local.cluster import KafkaCluster
from deploy.local.evenness import MEAN_TOLERANCE, Evenness, holds, measure
from deploy.local.tap import Tap
from tests.integration.proxy_process import ProxyProcess, eventually

pytestmark = pytest.mark.alone

LIMIT = 5_000_000
# Three clients at once shall not want more than a small machine gives them.
SHORT_LIMIT = 2_000_000
QUOTA = "client-id=<default>,producer_byte_rate={}"


@contextmanager
def flooding(library: str, bootstrap: str, client_id: str) -> Iterator[None]:
    """A producer that wants more than it may have, as long as the block lasts."""
    argv = command(library, bootstrap, client_id, f"flood-{client_id}")
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=PROJECT) as process:
        try:
            yield
        finally:
            process.kill()


def flood(tap: Tap, proxy: ProxyProcess, client_ids: dict[str, str], seconds: int, limit: int) -> dict[str, Evenness]:
    """Lets these clients (id → library) send at the same time until each has sent for `seconds`, and measures them."""
    with ExitStack() as stack:
        for client_id, library in client_ids.items():
            stack.enter_context(flooding(library, proxy.bootstrap_servers, client_id))

        def enough() -> bool:
            return all(span(tap.sizes("produce", each)) >= seconds * 10**9 for each in client_ids)

        eventually(enough, seconds + 60, f"all have sent for {seconds} s")
        return {library: measure(tap.sizes("produce", client_id), limit) for client_id, library in client_ids.items()}


def uneven(runs: dict[str, Evenness]) -> dict[str, str]:
    """Those of some short runs that do not hold. Their mean is no finer than one request in all of their seconds."""
    return {
        library: f"{run.mean_error:+.2%}, {run.bins} ±{run.tolerance_bytes:.0f}"
        for library, run in runs.items()
        if not all(run.holding) or abs(run.mean_error) > max(MEAN_TOLERANCE, run.tolerance_bytes / sum(run.judged))
    }


def span(frames: Sequence[tuple[int, int]]) -> int:
    """Nanoseconds from the first frame to the last."""
    return frames[-1][0] - frames[0][0] if frames else 0


@pytest.mark.timeout(150)
def test_three_libraries_at_once_each_at_their_limit(
    tapped_cluster: KafkaCluster, tap: Tap, unique_name: Callable[[str], str]
) -> None:
    client_ids = {unique_name(library): library for library in LIBRARIES}
    with ProxyProcess(tapped_cluster.bootstrap_servers, "--quota", QUOTA.format(SHORT_LIMIT)) as proxy:
        runs = flood(tap, proxy, client_ids, 10, SHORT_LIMIT)
        for client_id in client_ids:
            assert proxy.metric("throttled_total", client_id=client_id, limit="producer_byte_rate") > 0
    assert uneven(runs) == {}


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("library", LIBRARIES)
def test_three_runs_of_thirty_seconds(
    tapped_cluster: KafkaCluster, tap: Tap, unique_name: Callable[[str], str], library: str
) -> None:
    runs: list[Evenness] = []
    for _ in range(3):
        with ProxyProcess(tapped_cluster.bootstrap_servers, "--quota", QUOTA.format(LIMIT)) as proxy:
            runs += flood(tap, proxy, {unique_name(library): library}, 30, LIMIT).values()
    assert holds(runs), "\n".join(
        f"{run.mean_error:+.3%}, {run.holding.count(False)} bins off: {run.bins}" for run in runs
    )


@pytest.mark.nightly
@pytest.mark.timeout(150)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_minute_at_five_megabytes(
    tapped_cluster: KafkaCluster, tap: Tap, unique_name: Callable[[str], str], library: str
) -> None:
    """Within 1 % in each second or one request, the mean within 0.5 %."""
    client_id = unique_name(library)
    quota = f"client-id={client_id},producer_byte_rate={LIMIT},burst_seconds=0.1"
    with ProxyProcess(tapped_cluster.bootstrap_servers, "--quota", quota) as proxy:
        run = flood(tap, proxy, {client_id: library}, 60, LIMIT)[library]
    largest = max(size for _, size in tap.sizes("produce", client_id))
    print(f"{library}: mean {run.mean_error:+.3%}, largest request {largest}, seconds {run.judged}")
    assert [size for size in run.judged if abs(size - LIMIT) > max(LIMIT / 100, largest)] == []
    assert run.mean_holds, run.mean_error
