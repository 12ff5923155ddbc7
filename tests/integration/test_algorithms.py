"""What the other algorithms let pass, as docs/limits.md has it: sampled windows with and without the first, and EWMA.

Every test measures between the proxy and the broker. Rates by the token bucket are in test_produce_quota.py.
"""

from collections.abc import Callable
from contextlib import ExitStack
from itertools import accumulate

import pytest

from deploy.local.cluster import KafkaCluster
from deploy.local.tap import Tap
from tests.integration.flood import RECORD_BYTES, START_SECONDS, Flood, create_topics
from tests.integration.librdkafka import produce
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.test_produce_quota import span
from tests.integration.test_throttling import producer_for

pytestmark = pytest.mark.alone

LIMIT = 500_000
WINDOWS = 4
SECONDS = 6
TICK_SECONDS = 5
HALF_SECOND_NS = 500_000_000
FRAME = RECORD_BYTES + 500
#: Frames may be held up on their way and then come together: a tenth of the rate for a second.
JITTER = LIMIT // 10

Frames = list[tuple[int, int]]


def most_within(frames: Frames, seconds: float) -> int:
    """The most bytes in any stretch of that length."""
    sums = [0, *accumulate(size for _, size in frames)]
    most, first = 0, 0
    for last, (time_ns, _) in enumerate(frames):
        while frames[first][0] <= time_ns - seconds * 1e9:
            first += 1
        most = max(most, sums[last + 1] - sums[first])
    return most


def at_once(frames: Frames) -> int:
    """Bytes of the first half second, which is less than a window."""
    return sum(size for time_ns, size in frames if time_ns < frames[0][0] + HALF_SECOND_NS)


@pytest.mark.timeout(120)
def test_sampled_windows(tapped_cluster: KafkaCluster, tap: Tap, unique_name: Callable[[str], str]) -> None:
    """The rule for the first window decides what a newcomer may send at once, and nothing later."""
    topic = unique_name("windows")
    create_topics(tapped_cluster, topic)
    flags = (
        *("--quota", f"client-id=<default>,producer_byte_rate={LIMIT}", "--quota-algorithm", "sampled-window"),
        *("--quota-window-num", str(WINDOWS), "--quota-window-size-seconds", "1"),
    )
    client_ids = {rule: unique_name(f"first-window-{rule}") for rule in ("on", "off")}
    with ExitStack() as stack:
        for rule, client_id in client_ids.items():
            proxy = stack.enter_context(ProxyProcess(tapped_cluster.bootstrap_servers, *flags, "--first-window", rule))
            stack.enter_context(Flood(proxy.bootstrap_servers, client_id, topic))

        def frames(rule: str) -> Frames:
            return tap.sizes("produce", client_ids[rule])

        eventually(
            lambda: all(span(frames(rule)) >= SECONDS * 10**9 for rule in client_ids),
            SECONDS + START_SECONDS,
            f"both have sent for {SECONDS} s",
        )
        on, off = frames("on"), frames("off")
    assert LIMIT <= at_once(on) <= LIMIT + FRAME
    # All windows but the newest count as empty, and half a second of that one has passed.
    assert (WINDOWS - 1) * LIMIT <= at_once(off) <= (WINDOWS - 0.5) * LIMIT + FRAME + JITTER
    for run in (on, off):
        assert most_within(run, WINDOWS) <= (WINDOWS + 1) * LIMIT + FRAME + JITTER
        whole = sum(size for _, size in run)
        seconds = span(run) / 1e9
        assert whole <= LIMIT * (seconds + WINDOWS) + FRAME
        assert whole >= 0.8 * LIMIT * (seconds - WINDOWS), "what the limit allows is used"


@pytest.mark.timeout(120)
def test_ewma(tapped_cluster: KafkaCluster, tap: Tap, unique_name: Callable[[str], str]) -> None:
    """All passes until the first tick; what was 5 % too much is paid for until the tick at which the mean is low."""
    topic, client_id = unique_name("ewma"), unique_name("ewma")
    create_topics(tapped_cluster, topic)
    quota = f"client-id={client_id},producer_byte_rate={LIMIT}"
    with ProxyProcess(tapped_cluster.bootstrap_servers, "--quota", quota, "--quota-algorithm", "ewma") as proxy:
        producer = producer_for(proxy, client_id)
        burst = int(1.05 * TICK_SECONDS * LIMIT) // RECORD_BYTES
        produce(producer, topic, [bytes(RECORD_BYTES)] * burst)
        frames = tap.sizes("produce", client_id)
        assert span(frames) < TICK_SECONDS * 10**9, "the machine is too slow for this test"
        assert sum(size for _, size in frames) > TICK_SECONDS * LIMIT
        assert proxy.metric("throttled_total") == 0

        def is_held() -> bool:
            produce_one()
            return any(each["mode"] == "pause" for each in proxy.throttles())

        def produce_one() -> None:
            producer.produce(topic, b"a small one")
            producer.poll(0)

        eventually(is_held, 2 * TICK_SECONDS, "the first tick has seen the burst")
        (waiting,) = proxy.throttles()
        assert waiting["limit"] == "producer_byte_rate"
        passed = len(tap.sizes("produce", client_id))
        assert producer.flush(3 * TICK_SECONDS) == 0
        after = tap.sizes("produce", client_id)
        assert after[passed][0] - frames[0][0] >= (2 * TICK_SECONDS - 0.5) * 1e9, "nothing passes between two ticks"
