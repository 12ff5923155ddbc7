"""The proxy restarts under producers that idle: the same objects go on, on the ports that they know.

The Java producer's turn is in test_spark.py: Spark caches them.
"""

from collections.abc import Iterator
from contextlib import AsyncExitStack, closing

import pytest
from aiokafka import AIOKafkaProducer
from kafka import KafkaProducer

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.librdkafka import produce, producer_for, records_in
from tests.integration.scanned_proxy import ScannedProxy


@pytest.fixture(params=["uvloop", pytest.param("asyncio", marks=pytest.mark.nightly)])
def restarted(request: pytest.FixtureRequest, kafka_cluster: KafkaCluster) -> Iterator[ScannedProxy]:
    """A proxy of the test's own, to restart."""
    with ScannedProxy(kafka_cluster, event_loop=request.param) as front:
        yield front
        assert front.relay.sightings == 0


def restart(front: ScannedProxy) -> None:
    front.proxy.stop()
    front.proxy.start()


@pytest.mark.timeout(120)
async def test_producers_go_on(restarted: ScannedProxy, unique_name: UniqueName) -> None:
    """Of three libraries, each with and without idempotence, over one restart."""
    servers = restarted.bootstrap_servers
    topics = {
        (library, idempotent): restarted.create_topic(unique_name("restart"), 1)
        for library in ("aiokafka", "kafka-python", "librdkafka")
        for idempotent in (False, True)
    }
    async with AsyncExitStack() as stack:
        aiokafka = {
            idempotent: await stack.enter_async_context(
                AIOKafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=idempotent)
            )
            for idempotent in (False, True)
        }
        kafka_python = {
            idempotent: stack.enter_context(
                closing(KafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=idempotent))
            )
            for idempotent in (False, True)
        }
        librdkafka = {
            idempotent: producer_for(restarted, **{"enable.idempotence": idempotent}) for idempotent in (False, True)
        }

        async def send(value: bytes) -> None:
            for idempotent in (False, True):
                await aiokafka[idempotent].send_and_wait(topics["aiokafka", idempotent], value)
                kafka_python[idempotent].send(topics["kafka-python", idempotent], value).get(40)
                produce(librdkafka[idempotent], topics["librdkafka", idempotent], [value])

        await send(b"before")
        restart(restarted)
        await send(b"after")
    assert {key: records_in(restarted.cluster, topic) for key, topic in topics.items()} == dict.fromkeys(topics, 2)
