"""A noisy topic with `action=reject`: its producer loses, repeats and reorders no record; its other topics go on."""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from statistics import median, median_low

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.load import percentile
from deploy.local.cluster import KafkaCluster
from deploy.local.frames import Exchange
from deploy.local.tap import Tap
from protocol.apis import PRODUCE
from tests.integration.numbered_producers import (
    DEADLINE_SECONDS,
    NOISY_BYTES,
    PARTITIONS,
    QUIET_BYTES,
    Load,
    write_with_franz_go,
    write_with_java,
    write_with_librdkafka,
)
from tests.integration.processor_first import processor_first
from tests.integration.scanned_proxy import RelayedProxy, relayed_by
from tests.integration.time_in_proxy import InProxy, times_in_proxy

pytestmark = pytest.mark.alone

LIMIT = 2_000_000
#: Bounds of a p99 besides its ratio: other work on the machine, where the proxy gets a processor first and where it
#: waits for one like all others; and what the shortest hold of a connection would add.
OTHER_WORK_MS = 0.5
WAIT_FOR_A_PROCESSOR_MS = 5
SHORTEST_HOLD_MS = 100


def values_of(cluster: KafkaCluster, topic: str, partition: int, **settings: str) -> list[int]:
    """The numbers of all records of a partition in order, read directly from the broker."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none", "enable.partition.eof": True, **settings}
    )
    found: list[int] = []
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            for message in consumer.consume(1_000, timeout=0.5):
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return found
                found.append(int((message.value() or b"")[:8]))
    finally:
        consumer.close()
    raise AssertionError(f"the end of {topic}-{partition} does not come")


WRITERS = {"librdkafka": write_with_librdkafka, "java": write_with_java, "franz-go": write_with_franz_go}
#: Rounds with their noisy and quiet records.
SHORT, LONG = (2, 1_200, 200), (4, 3_200, 500)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("library", "rounds"),
    [
        ("librdkafka", SHORT),
        ("java", SHORT),
        pytest.param("franz-go", SHORT, marks=pytest.mark.nightly),  # needs Go
        *(pytest.param(library, LONG, marks=pytest.mark.nightly) for library in WRITERS),
    ],
)
def test_a_noisy_topic_slows_no_other_and_loses_nothing(
    tapped_cluster: KafkaCluster,
    tap: Tap,
    unique_name: Callable[[str], str],
    library: str,
    rounds: tuple[int, int, int],
) -> None:
    """The long form has a minute of noise. Ratios are of the medians of all rounds, each with and without noise."""
    noisy, quiet, client_id = unique_name("noisy"), unique_name("quiet"), unique_name("client")
    admin = AdminClient({"bootstrap.servers": tapped_cluster.bootstrap_servers})
    for created in admin.create_topics([NewTopic(each, PARTITIONS) for each in (noisy, quiet)]).values():
        created.result(30)
    quota = f"topic={noisy},bytes_in_rate={LIMIT},action=reject"
    with RelayedProxy(tapped_cluster, "--quota", quota, relay_port=relayed_by(tap)) as front:
        with processor_first([front.proxy.pid, tap.pid]) as is_first:
            written = WRITERS[library](Load(front.bootstrap_servers, client_id, noisy, quiet, *rounds))
        throttled = {
            mode: front.proxy.metric("throttled_total", client_id=client_id, mode=mode)
            for mode in ("reject", "notify", "pause")
        }
    count, noisy_records, _ = rounds
    quiet_records = sum(len(each.before) + len(each.during) for each in written)
    for topic, records in ((noisy, count * noisy_records), (quiet, quiet_records)):
        for partition in range(PARTITIONS):
            assert values_of(tapped_cluster, topic, partition) == list(range(partition, records, PARTITIONS))
    rate = (noisy_records * NOISY_BYTES - LIMIT) / median(each.seconds for each in written)  # without the burst
    alone, beside = quiet_requests(tap.exchanges(PRODUCE, client_id))
    before, during = [each.before for each in written], [each.during for each in written]
    p99s_ms = {"end to end": (median_p99_ms(before), median_p99_ms(during))}
    for name, seconds_of in (("in the proxy", in_proxy), ("at the broker", at_broker)):
        times = (parts_of(map(seconds_of, alone), before), parts_of(map(seconds_of, beside), during))
        p99s_ms[name] = median_p99_ms(times[0]), median_p99_ms(times[1])
    print(f"{library}: rate {rate / LIMIT:.2f} of the limit; {throttled}; p99 of quiet records without and with noise:")
    for name, (without, with_noise) in p99s_ms.items():
        print(f"    {name} {without:.2f} ms, {with_noise:.2f} ms, ratio {with_noise / without:.2f}")
    assert throttled["reject"] > 10
    assert throttled["notify"] == throttled["pause"] == 0
    assert 0.8 * LIMIT <= rate <= 1.05 * LIMIT
    # What the noise costs of the machine slows the broker, too.
    slowdown = max(1.0, p99s_ms["at the broker"][1] / p99s_ms["at the broker"][0])
    without, with_noise = p99s_ms["in the proxy"]
    if is_first:
        assert with_noise <= 1.2 * without + OTHER_WORK_MS
    else:
        assert with_noise <= 1.2 * slowdown * without + WAIT_FOR_A_PROCESSOR_MS
    assert p99s_ms["end to end"][1] <= 1.2 * slowdown * p99s_ms["end to end"][0] + SHORTEST_HOLD_MS


def quiet_requests(exchanges: list[Exchange]) -> tuple[list[InProxy], list[InProxy]]:
    """The requests with a quiet record, without and with noise. Noisy records that a request had besides have been
    refused.
    """
    found: tuple[list[InProxy], list[InProxy]] = [], []
    for each in times_in_proxy(exchanges):
        nth = each.size // QUIET_BYTES
        if nth in (1, 2):
            found[nth - 1].append(each)
    return found


def in_proxy(request: InProxy) -> float:
    return request.took_ns / 1e9


def at_broker(request: InProxy) -> float:
    return request.at_broker_ns / 1e9


def parts_of(times: Iterable[float], lengths: Iterable[Sequence[float]]) -> list[list[float]]:
    """The times in parts as long as these."""
    left = iter(times)
    return [list(islice(left, len(each))) for each in lengths]


def median_p99_ms(rounds: Iterable[Sequence[float]]) -> float:
    """The median of their p99, the lower one of two: other work on the machine only adds. times: in seconds."""
    return 1_000 * median_low(percentile(times, 0.99) for times in rounds)
