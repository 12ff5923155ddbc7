"""Names of topic ids, asked of brokers that want a login first."""

import asyncio
from uuid import UUID

import pytest

from protocol.topic_metadata_request import VERSION
from proxy.brokers.connect import ask_for_topics
from proxy.config.client_settings import ClientSettings, LoginSettings
from tests.proxy.conversation import OpenStage
from tests.proxy.frames import correlation_of, metadata_answer
from tests.proxy.sasl_broker import SaslBroker

ORDERS = UUID(int=7)


async def test_the_proxy_logs_in_before_it_asks(open_stage: OpenStage) -> None:
    """The second server answers, where the first one refuses the password."""
    login = LoginSettings(mechanism="SCRAM-SHA-256", username="etl", password="known")
    stage = open_stage(upstream=ClientSettings(login=login))
    others, kafka = SaslBroker("etl", "another"), SaslBroker("etl", "known")
    address = stage.broker.address
    asking = asyncio.ensure_future(ask_for_topics([address, address], stage.server.tls, [ORDERS.bytes]))
    peer = await stage.broker.accept()
    for _ in range(3):
        response = others.respond(await peer.frame())
        assert response is not None
        await peer.send(response)
    await peer.closed()
    peer = await stage.broker.accept()
    while True:
        frame = await peer.frame()
        response = kafka.respond(frame)
        if response is None:
            break
        await peer.send(response)
    assert kafka.done == 1
    assert ORDERS.bytes in frame
    await peer.send(metadata_answer(correlation_of(frame), {}, version=VERSION, named={"orders": ORDERS}))
    assert [(topic.name, topic.topic_id) for topic in await asking] == [("orders", ORDERS.bytes)]


@pytest.mark.parametrize("login", [None, LoginSettings(mechanism="PLAIN", username="etl", password="known")])
async def test_another_answer_is_no_topic_and_no_login(open_stage: OpenStage, login: LoginSettings | None) -> None:
    stage = open_stage(upstream=ClientSettings(login=login))
    asking = asyncio.ensure_future(ask_for_topics([stage.broker.address], stage.server.tls, [ORDERS.bytes]))
    peer = await stage.broker.accept()
    frame = await peer.frame()
    response = SaslBroker("etl", "known").respond(frame) or metadata_answer(
        correlation_of(frame), {}, version=VERSION, named={"orders": ORDERS}
    )
    await peer.send(response[:4] + (correlation_of(frame) + 1).to_bytes(4, "big") + response[8:])
    with pytest.raises(OSError, match="its response has the correlation id 2, not 1"):
        await asking
    await peer.closed()
