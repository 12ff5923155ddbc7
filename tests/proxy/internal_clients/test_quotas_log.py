"""The topic of quotas through aiokafka's producer, which a test plays. tests/integration has real brokers."""

import asyncio
import gc
from typing import Any

import pytest
from aiokafka.errors import NotEnoughReplicasError

from proxy.config.config import Config
from proxy.internal_clients.client import InternalClient
from proxy.internal_clients.failures import LogFailed
from proxy.internal_clients.quotas_log import QuotasLog
from quotas.parsing.parse import parse_spec
from quotas.stored.record import Record
from tests.proxy.conversation import until

ETL = parse_spec("client-id=etl,producer_byte_rate=60MB")


class Producer:
    """Its batches end when the test says so."""

    def __init__(self) -> None:
        self.sent: list[asyncio.Future[Any]] = []

    def create_batch(self) -> "Producer":
        return self

    def append(self, **_: object) -> object:
        return self

    async def send_batch(self, *_: object, **__: object) -> "asyncio.Future[Any]":
        self.sent.append(asyncio.get_running_loop().create_future())
        return asyncio.shield(self.sent[-1])  # as aiokafka does


@pytest.mark.parametrize("waits", [True, False])
async def test_a_broker_that_refuses_is_reported_to_those_who_wait(
    waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = QuotasLog(InternalClient(Config(bootstrap_servers=(("broker", 9092),)), "tests"), "quotas")
    log._producer = producer = Producer()
    appending = asyncio.ensure_future(log.append([Record(ETL.entity, ETL)]))
    await until(lambda: producer.sent)
    if not waits:
        appending.cancel()
    await asyncio.sleep(0)
    producer.sent.pop().set_exception(NotEnoughReplicasError())
    with pytest.raises(LogFailed if waits else asyncio.CancelledError):
        await appending
    await asyncio.sleep(0)
    gc.collect()
    assert not caplog.records, "asyncio logs an error that nobody has read"
