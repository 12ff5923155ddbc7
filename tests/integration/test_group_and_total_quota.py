"""Limits that several clients share: a topic's, a resource group's and the total."""

from contextlib import ExitStack

import pytest

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.bytes_passed import SECONDS, check_held
from tests.integration.flood import RECORD_BYTES, Flood, written
from tests.integration.proxy_process import ProxyProcess
from tests.integration.topics import create_topics

BURST_SECONDS = 0.1


@pytest.mark.claim("limits", "bytes_in_rate")
@pytest.mark.timeout(90)
def test_limits_of_client_topic_group_and_total_apply(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    """`slow` has 100 kB/s of its own, its group 500 with `small` and `large`; two have a topic of 100 kB/s; and with
    `outsider` the whole has 900.

    `small` and `large` differ in the size of their requests: bytes are what is shared.
    """
    rates = {"slow": 100_000, "group": 500_000, "topic": 100_000, "total": 900_000}
    clients = {name: unique_name(name) for name in ("slow", "small", "large", "narrow", "narrow too", "outsider")}
    inside, narrow, outside = unique_name("inside"), unique_name("narrow"), unique_name("outside")
    create_topics(kafka_cluster, inside, narrow, outside)
    topics = {"narrow": narrow, "narrow too": narrow, "outsider": outside}
    quotas = (
        f"client-id={clients['slow']},producer_byte_rate={rates['slow']},burst_seconds={BURST_SECONDS}",
        f"resource-group=etl,topic={inside},bytes_in_rate={rates['group']},burst_seconds={BURST_SECONDS}",
        f"topic={narrow},bytes_in_rate={rates['topic']},burst_seconds={BURST_SECONDS}",
        f"total=true,producer_byte_rate={rates['total']},burst_seconds={BURST_SECONDS}",
    )
    with ProxyProcess(kafka_cluster.bootstrap_servers, quotas=quotas) as proxy, ExitStack() as stack:
        floods = [
            stack.enter_context(
                Flood(
                    proxy.bootstrap_servers,
                    client_id,
                    topics.get(name, inside),
                    record_bytes=RECORD_BYTES * (3 if name == "large" else 1),
                )
            )
            for name, client_id in clients.items()
        ]
        for flood in floods:
            flood.wait_for(5)
        for entity in (f"client-id:{clients['slow']}", "resource-group:etl", f"topic:{narrow}", "total"):
            assert proxy.wait_for_event("throttled", 20, entity=entity)
        seconds, slow, small, large, one, two, outsider = written(SECONDS, *floods)
    check_held(slow, seconds, rates["slow"], burst_seconds=BURST_SECONDS, extra=RECORD_BYTES)
    check_held(slow + small + large, seconds, rates["group"], burst_seconds=BURST_SECONDS, extra=5 * RECORD_BYTES)
    check_held(one + two, seconds, rates["topic"], burst_seconds=BURST_SECONDS, extra=2 * RECORD_BYTES)
    everything = slow + small + large + one + two + outsider
    check_held(everything, seconds, rates["total"], burst_seconds=BURST_SECONDS, extra=8 * RECORD_BYTES)
    assert small + large < 3 * min(small, large), "neither has more than two thirds of what they share"
