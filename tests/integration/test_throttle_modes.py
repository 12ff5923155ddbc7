"""Each throttle mode with a real client."""

import asyncio
import time

import pytest
from aiokafka import AIOKafkaProducer

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.proxy_process import ProxyProcess
from tests.integration.topics import create_topics

LIMIT = 50_000
BURST_SECONDS = 0.1
DEBT_SECONDS = 3
MODES = ("notify", "delay", "pause")


@pytest.mark.timeout(120)
async def test_a_request_that_leaves_debt(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    """aiokafka sends the next request after the response to the one before: late with `delay`, else at once."""
    client_ids = {mode: unique_name(mode) for mode in MODES}
    create_topics(kafka_cluster, *client_ids.values())
    quotas = [
        f"client-id={client_id},producer_byte_rate={LIMIT},burst_seconds={BURST_SECONDS},mode={mode}"
        for mode, client_id in client_ids.items()
    ]
    with ProxyProcess(kafka_cluster.bootstrap_servers, quotas=quotas) as proxy:

        def count(mode: str, counted: str) -> float:
            return proxy.metric("throttled_total", client_id=client_ids[mode], mode=counted)

        async def send(mode: str) -> None:
            client_id = client_ids[mode]
            async with AIOKafkaProducer(bootstrap_servers=proxy.bootstrap_servers, client_id=client_id) as producer:
                begun = time.monotonic()
                await producer.send_and_wait(client_id, bytes(int((DEBT_SECONDS + BURST_SECONDS) * LIMIT)))
                debt = proxy.metric("quota_debt_seconds", entity=f"client-id:{client_id}")
                assert (debt == 0) == (mode == "delay"), "only with `delay` is the response as late as the debt lasts"
                await producer.send_and_wait(client_id, b"next")
                assert time.monotonic() - begun >= DEBT_SECONDS, "in each mode the limit holds"

        await asyncio.gather(*map(send, MODES))
        for mode in MODES:
            assert count(mode, mode) >= 1
            assert (count(mode, "pause") > 0) == (mode != "delay"), "what was served by a delay does not hold"
