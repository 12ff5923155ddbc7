"""Limits that several clients share: a resource group's and the total; and the share of a fleet's limit."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from deploy.local.cluster import KafkaCluster
from tests.integration.flood import RECORD_BYTES, Flood, create_topics, rates
from tests.integration.proxy_process import ProxyProcess, eventually

pytestmark = pytest.mark.alone

LIMIT = 1_000_000
SECONDS = 4
FAIR = 0.15


def enter_steady(stack: ExitStack, floods: list[Flood], limit: int) -> list[Flood]:
    """They flood until `stack` ends, and have used up what a limit that they share lets pass at first."""
    for flood in floods:
        stack.enter_context(flood)
    eventually(
        lambda: (
            all(flood.records() for flood in floods)
            and sum(flood.records() * flood.record_bytes for flood in floods) > 2 * limit
        ),
        30,
        "the burst is over",
    )
    return floods


@pytest.mark.timeout(90)
def test_members_of_a_group_share_its_rate_fairly(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """One sends requests of 10 kB, the other of 30 kB: bytes are what is shared."""
    limit = 400_000
    prefix, topic = unique_name("etl"), unique_name("group")
    create_topics(kafka_cluster, topic)
    quota = f"resource-group=etl,client-id={prefix}*,producer_byte_rate={limit}"
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota) as proxy, ExitStack() as stack:
        bystander = stack.enter_context(Flood(proxy.bootstrap_servers, unique_name("bystander"), topic))
        members = [
            Flood(proxy.bootstrap_servers, f"{prefix}-{size}", topic, record_bytes=size)
            for size in (RECORD_BYTES, 3 * RECORD_BYTES)
        ]
        small, large, free = rates(SECONDS, *enter_steady(stack, members, limit), bystander)
        for member in members:
            assert proxy.metric("throttled_total", client_id=member.client_id, limit="producer_byte_rate") > 0
        assert proxy.metric("throttled_total", client_id=bystander.client_id) == 0
        assert proxy.wait_for_event("throttled", 5)["entity"] == "resource-group:etl"
    assert [small, large] == pytest.approx([limit / 2, limit / 2], rel=FAIR)
    assert free > limit


@pytest.mark.timeout(90)
def test_the_limits_of_a_client_its_group_and_the_total_all_apply(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """`slow` has 200 kB/s of its own, its group 600 with `member`, and with `outsider` the whole has 1200.

    Small bursts: a group that has saved a second's worth gives `member` more than its share until that is spent.
    """
    slow, member, outsider = (unique_name(name) for name in ("slow", "member", "outsider"))
    topics = [unique_name("all-agree") for _ in range(3)]
    create_topics(kafka_cluster, *topics)
    quotas = (
        f"client-id={slow},producer_byte_rate=200000,burst_seconds=0.1",
        f"resource-group=pair,client-id={slow},topic={topics[1]},bytes_in_rate=600000,burst_seconds=0.1",
        "total=true,producer_byte_rate=1200000,burst_seconds=0.1",
    )
    flags = [part for quota in quotas for part in ("--quota", quota)]
    with ProxyProcess(kafka_cluster.bootstrap_servers, *flags) as proxy, ExitStack() as stack:
        floods = [
            Flood(proxy.bootstrap_servers, client_id, topic)
            for client_id, topic in zip((slow, member, outsider), topics, strict=True)
        ]
        found = rates(SECONDS, *enter_steady(stack, floods, 1_200_000))
        for entity in (f"client-id:{slow}", "resource-group:pair", "total"):
            assert proxy.wait_for_event("throttled", 5, entity=entity)
    assert found == pytest.approx([200_000, 400_000, 600_000], rel=0.1)


@pytest.mark.timeout(90)
def test_a_share_scales_every_rate(kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]) -> None:
    """Of bytes and of messages; two proxies with half of a limit each make up the whole."""
    topic, client_id = unique_name("shared"), unique_name("executor")
    create_topics(kafka_cluster, topic)
    quotas = ("--quota", f"client-id={client_id},producer_byte_rate={LIMIT}", "--quota-share", "0.5")
    with ExitStack() as stack:
        proxies = [stack.enter_context(ProxyProcess(kafka_cluster.bootstrap_servers, *quotas)) for _ in range(2)]
        floods = [Flood(proxy.bootstrap_servers, client_id, topic) for proxy in proxies]
        found = rates(SECONDS, *enter_steady(stack, floods, LIMIT))
        for proxy in proxies:
            assert proxy.metric("quota_limit", entity=f"client-id:{client_id}") == LIMIT / 2
    assert found == pytest.approx([LIMIT / 2, LIMIT / 2], rel=0.1)
