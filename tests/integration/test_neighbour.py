"""A client under its quota beside nine: those over their limit slow it no more than those that limit themselves."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median_low

import pytest

from bench.enforcement import neighbour
from bench.enforcement.outcome import NEIGHBOUR_RATIO
from bench.load import percentile
from bench.processes import running
from bench.real_broker import printed
from deploy.local.cluster import KafkaCluster
from tests.integration.flood import RECORD_BYTES, Flood, create_topics, rates
from tests.integration.proxy_process import ProxyProcess
from tests.integration.test_noisy_topics import WAIT_FOR_A_PROCESSOR_MS

pytestmark = pytest.mark.alone

OTHERS = 9
LIMIT = 200_000
#: Of a client that limits itself: with the bytes besides the records it stays just below the limit.
RECORDS_PER_SECOND = 0.95 * LIMIT / RECORD_BYTES


@pytest.mark.parametrize(
    ("rounds", "seconds", "ratio"), [(2, 3, 2.0), pytest.param(6, 15, NEIGHBOUR_RATIO, marks=pytest.mark.nightly)]
)
@pytest.mark.timeout(500)
def test_nine_over_their_quota_slow_a_tenth_no_more_than_nine_under_it(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str], rounds: int, seconds: int, ratio: float
) -> None:
    """Each of the nine wants more than ten times its quota: it always has ten seconds of it in its queue.

    Other work on the machine only adds to a p99, so of two rounds the lower one counts.
    """
    names = [unique_name(f"other-{nth}") for nth in range(OTHERS)]
    innocent = unique_name("innocent")
    create_topics(kafka_cluster, innocent, *names)
    quotas = [
        f"client-id=<default>,producer_byte_rate={LIMIT}",
        f"client-id={innocent},producer_byte_rate={neighbour.LIMIT}",
    ]
    flags = [part for quota in quotas for part in ("--quota", quota)]
    p99s_ms: dict[bool, list[float]] = {False: [], True: []}
    with ProxyProcess(kafka_cluster.bootstrap_servers, *flags) as proxy:
        command = [sys.executable, "-m", neighbour.__name__, proxy.bootstrap_servers, innocent, innocent]
        with running(command, None) as (_, output):
            for number in range(2 * rounds):
                is_over = number % 2 == 1
                before = proxy.metric("throttled_total", mode="pause")
                with ExitStack() as stack:
                    pace = 0 if is_over else RECORDS_PER_SECOND
                    floods = [
                        stack.enter_context(Flood(proxy.bootstrap_servers, each, each, records_per_second=pace))
                        for each in names
                    ]
                    for flood in floods:
                        flood.wait_for(3 * LIMIT // 2 // RECORD_BYTES)  # the burst is over
                    began_ns = time.monotonic_ns()
                    found = rates(seconds, *floods)
                    latencies = neighbour.latencies_ns(printed(output), began_ns, time.monotonic_ns())
                assert found == pytest.approx([LIMIT] * OTHERS, rel=0.2)
                p99s_ms[is_over].append(percentile(latencies, 0.99) / 1e6)
                assert (proxy.metric("throttled_total", mode="pause") > before + OTHERS) == is_over
        assert proxy.metric("throttled_total", client_id=innocent) == 0
    beside_self_limited, beside_over = (median_low(p99s_ms[is_over]) for is_over in (False, True))
    print(f"p99 {p99s_ms}, ratio of the medians {beside_over / beside_self_limited:.2f}")
    assert beside_over <= ratio * beside_self_limited + WAIT_FOR_A_PROCESSOR_MS
