"""What the proxy's own Kafka clients say of their failures."""

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError

from proxy.config.client_file import read_client_settings
from proxy.config.client_settings import ClientSettings
from proxy.config.config import Config
from proxy.internal_clients.client import InternalClient
from tests.proxy.conversation import LOOPBACK

pytestmark = pytest.mark.claim(
    "security",
    "a file in TOML for --command-config, and brokers that require a login of the proxy's own "
    "clients, are named in one line",
)


@pytest.mark.parametrize("has_file", [False, True])
async def test_a_broker_that_closes_the_connection_may_require_a_login(tmp_path: Path, has_file: bool) -> None:
    """As brokers with SASL do after a request of a client that has not logged in, and TLS listeners."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    file, settings = tmp_path / "client.properties", ClientSettings()
    if has_file:
        file.write_text("security.protocol=PLAINTEXT")
        settings = read_client_settings(file)
    async with await asyncio.start_server(close, LOOPBACK, 0) as server:
        address = server.sockets[0].getsockname()[:2]
        client = InternalClient(Config(bootstrap_servers=(address,), internal_client=settings), "tests")
        producer = AIOKafkaProducer(**await client.arguments())
        with pytest.raises(KafkaConnectionError) as raised:
            await producer.start()
        await producer.stop()
    reason, text = client.explain(raised.value)
    assert reason == "unreachable"
    hint = f"set security.protocol in --own-client-config {file if has_file else 'FILE'}"
    assert text.endswith(f" closed; brokers that require TLS or a login do this: {hint}")
