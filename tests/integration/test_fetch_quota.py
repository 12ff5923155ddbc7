"""The consumer's limit holds in every second, measured between the proxy and the client."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from pathlib import Path

import pytest
from confluent_kafka import Producer

from bench.greedy_consumers import LIBRARIES, command
from deploy.local.artifacts import PROJECT
from deploy.local.cluster import KafkaCluster
from deploy.local.evenness import measure
from deploy.local.tap import Tap
from tests.integration.proxy_process import eventually
from tests.integration.scanned_proxy import RelayedProxy, relayed_by
from tests.integration.test_live_change import write
from tests.integration.test_produce_quota import span, uneven

pytestmark = pytest.mark.alone

LIMIT = 2_000_000
SECONDS = 10
RECORD_BYTES = 10_000
BATCH_BYTES = 40_000  # 2 % of the limit: a broker's answer is made of whole batches


@pytest.mark.timeout(200)
def test_three_libraries_at_once_each_at_their_limit(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    client_ids = {unique_name(library): library for library in LIBRARIES}
    quota = f"client-id=<default>,consumer_byte_rate={LIMIT}"
    with Tap() as tap, RelayedProxy(kafka_cluster, "--quota", quota, relay_port=relayed_by(tap)) as front:
        topic = front.create_topic(unique_name("fetched"), 1)
        fill(kafka_cluster, topic, LIMIT * (SECONDS + 5))
        with ExitStack() as stack:
            for client_id, library in client_ids.items():
                argv = command(library, front.bootstrap_servers, client_id, topic)
                stack.enter_context(reading(argv))

            def enough() -> bool:
                return all(span(tap.sizes("fetch", each)) >= SECONDS * 10**9 for each in client_ids)

            eventually(enough, SECONDS + 60, f"all have read for {SECONDS} s")
            runs = {library: measure(tap.sizes("fetch", client_id), LIMIT) for client_id, library in client_ids.items()}
        for client_id in client_ids:
            assert front.proxy.metric("throttled_total", client_id=client_id, limit="consumer_byte_rate") > 0
    assert uneven(runs) == {}


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_minute_at_five_megabytes(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str], library: str
) -> None:
    """Within 1 % in each second or one response, the mean within 0.5 %, as for a producer."""
    limit, seconds, client_id = 5_000_000, 60, unique_name(library)
    quota = f"client-id={client_id},consumer_byte_rate={limit},burst_seconds=0.1"
    with Tap() as tap, RelayedProxy(kafka_cluster, "--quota", quota, relay_port=relayed_by(tap)) as front:
        topic = front.create_topic(unique_name("minute"), 1)
        fill(kafka_cluster, topic, limit * (seconds + 5))
        with reading(command(library, front.bootstrap_servers, client_id, topic)):
            eventually(
                lambda: span(tap.sizes("fetch", client_id)) >= seconds * 10**9, seconds + 60, "a minute has passed"
            )
        frames = tap.sizes("fetch", client_id)
    run = measure(frames, limit)
    largest = max(size for at, size in frames if at > frames[0][0] + 10**9)
    assert [size for size in run.judged if abs(size - limit) > max(limit / 100, largest)] == []
    assert run.mean_holds, run.mean_error


@pytest.mark.timeout(200)
def test_open_fetches_of_three_brokers_stay_in_budget(
    kafka_cluster3: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """From the first fetch on, with a connection to each broker: the burst, the rate, and a batch or two.

    Time counts from the first response, and its fetch was charged before: half a second on a busy machine.
    """
    limit, seconds = 500_000, 6
    client_ids = {unique_name(library): library for library in LIBRARIES}
    quota = f"client-id=<default>,consumer_byte_rate={limit}"
    with Tap() as tap, RelayedProxy(kafka_cluster3, "--quota", quota, relay_port=relayed_by(tap)) as front:
        topic = front.create_topic(unique_name("spread"), 6)
        fill(kafka_cluster3, topic, limit * (seconds + 5), partitions=6)
        with ExitStack() as stack:
            for client_id, library in client_ids.items():
                argv = command(library, front.bootstrap_servers, client_id, topic)
                stack.enter_context(reading(argv))
            eventually(
                lambda: all(span(tap.sizes("fetch", each)) >= seconds * 10**9 for each in client_ids),
                seconds + 60,
                f"all have read for {seconds} s",
            )
        over = {library: overdraft(tap.sizes("fetch", each), limit) for each, library in client_ids.items()}
    assert {library: size for library, size in over.items() if size > limit // 2 + 2 * BATCH_BYTES} == {}


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "library", ["librdkafka", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("aiokafka", "java"))]
)
def test_a_lifted_limit_is_gone_within_two_seconds(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path, library: str
) -> None:
    """The rest of a topic is read at 95 % of the rate without a limit, in the same fetch session."""
    size, free, held = 150_000_000, unique_name("free"), unique_name("held")
    quotas = tmp_path / "quotas.toml"
    write(quotas, f'client-id = "{held}"\nconsumer_byte_rate = {LIMIT}')
    with Tap() as tap, RelayedProxy(kafka_cluster, "--quotas-file", str(quotas), relay_port=relayed_by(tap)) as front:
        topic = front.create_topic(unique_name("lifted"), 1)
        fill(kafka_cluster, topic, size)

        def read(client_id: str) -> int:
            return sum(each for _, each in tap.sizes("fetch", client_id))

        with reading(command(library, front.bootstrap_servers, free, topic)):
            eventually(lambda: read(free) > size, 60, "all is read without a limit")
        frames = [each for each in tap.sizes("fetch", free) if each[1] > BATCH_BYTES]
        rate = size * 10**9 / span(frames)
        with reading(command(library, front.bootstrap_servers, held, topic)):
            eventually(lambda: read(held) > 2 * LIMIT, 30, "it reads at its limit")
            write(quotas, f'client-id = "other"\nconsumer_byte_rate = {LIMIT}')
            eventually(lambda: any(each["event"] == "quotas_reloaded" for each in front.proxy.events), 5, "a reload")
            lifted_ns, left = tap.sizes("fetch", held)[-1][0], size - read(held)
            eventually(lambda: read(held) > size, 60, "all is read")
        seconds = (max(at for at, each in tap.sizes("fetch", held) if each > BATCH_BYTES) - lifted_ns) / 1e9
    assert seconds <= 2 + left / (0.95 * rate)


@contextmanager
def reading(argv: Sequence[str]) -> Iterator[None]:
    """A consumer, as long as the block lasts."""
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=PROJECT) as process:
        try:
            yield
        finally:
            process.kill()


def overdraft(frames: Sequence[tuple[int, int]], limit: int) -> int:
    """Most bytes above a burst of one second and the rate, from the first response on."""
    began_ns = frames[0][0]
    sums = accumulate(size for _, size in frames)
    return max(total - limit - limit * (at - began_ns) // 10**9 for total, (at, _) in zip(sums, frames, strict=True))


def fill(cluster: KafkaCluster, topic: str, size: int, partitions: int = 1) -> None:
    """Straight into the broker: the producer is not what is measured."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "batch.size": BATCH_BYTES, "linger.ms": 50, "acks": 1}
    )
    value = bytes(RECORD_BYTES)
    for number in range(size // RECORD_BYTES):
        producer.produce(topic, value, partition=number % partitions, on_delivery=_delivered)
        producer.poll(0)
    assert producer.flush(60) == 0


def _delivered(error: object, _message: object) -> None:
    assert error is None, error
