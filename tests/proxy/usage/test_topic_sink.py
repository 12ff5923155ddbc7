"""Errors of the topic's brokers, as the log and the metric have them. tests/integration has real brokers."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import errors
from kio.schema.create_topics.v2 import response as create_topics
from kio.schema.describe_configs.v1 import response as describe_configs
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v1 import response as metadata
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta
from scramp import ScramException

from protocol.apis import API_VERSIONS, CREATE_TOPICS, DESCRIBE_CONFIGS, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE
from proxy.config.addresses import Address
from proxy.config.client_file import read_client_settings
from proxy.config.config import Config, UsageOptions
from proxy.internal_clients.client import reason_of
from proxy.internal_clients.failures import LogFailed
from proxy.observability.metrics import USAGE_ERROR_REASONS
from proxy.usage.topic_sink import TopicSink
from tests.proxy.conversation import lines_of, until
from tests.proxy.frames import answer, frame
from tests.proxy.sasl_broker import SaslBroker

PASSWORD = "not-in-any-log"
WORDS = f"wrong: {PASSWORD}"
VERSIONS = {
    API_VERSIONS: 0, METADATA: 1, SASL_HANDSHAKE: 1, SASL_AUTHENTICATE: 0, DESCRIBE_CONFIGS: 1, CREATE_TOPICS: 2
}  # fmt: skip
NO_TIME = i32Timedelta.parse(timedelta())


class Parrot(SaslBroker):
    """Repeats the password in every error: of the login, of DescribeConfigs, with this code, and of CreateTopics."""

    def __init__(self, mechanism: str, knows: str, described: ErrorCode) -> None:
        super().__init__("etl", knows)
        self.mechanism, self.described, self.words = mechanism, described, WORDS
        self.address: Address = ("", 0)

    async def play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(4)
                request = head + await reader.readexactly(int.from_bytes(head, "big"))
                writer.write(self.respond(request, writer) or self.answer_to(request[5], request[8:12]))
        writer.close()

    def _token(self, message: bytes) -> bytes:
        """As Kafka's, for what aiokafka sends: of PLAIN the name twice."""
        if self.password.encode() not in message:
            raise ScramException("wrong")
        return b""

    def answer_to(self, api: int, correlation: bytes) -> bytes:
        if api == API_VERSIONS:
            offer = b"".join(struct.pack(">hhh", key, 0, most) for key, most in VERSIONS.items())
            return frame(correlation + struct.pack(">hi", 0, len(VERSIONS)) + offer)
        body: Any
        if api == METADATA:
            host, port = self.address
            brokers = (metadata.MetadataResponseBroker(node_id=BrokerId(1), host=host, port=i32(port)),)
            body = metadata.MetadataResponse(brokers=brokers, controller_id=BrokerId(1), topics=())
        elif api == DESCRIBE_CONFIGS:
            described = describe_configs.DescribeConfigsResult(
                error_code=self.described, error_message=WORDS, resource_type=i8(2), resource_name="usage", configs=()
            )
            body = describe_configs.DescribeConfigsResponse(throttle_time=NO_TIME, results=(described,))
        else:
            assert api == CREATE_TOPICS
            created = create_topics.CreatableTopicResult(
                name=TopicName("usage"), error_code=ErrorCode.invalid_config, error_message=WORDS
            )
            body = create_topics.CreateTopicsResponse(throttle_time=NO_TIME, topics=(created,))
        return answer(api, VERSIONS[api], int.from_bytes(correlation, "big"), body)


@asynccontextmanager
async def sink_to(broker: Parrot, directory: Path) -> AsyncIterator[TopicSink]:
    server = await asyncio.start_server(broker.play, "127.0.0.1", 0)
    broker.address = server.sockets[0].getsockname()[:2]
    file, token = directory / "client.properties", directory / "token"
    token.write_text(PASSWORD)
    login = f"sasl.username=etl\nsasl.password={PASSWORD}"
    if broker.mechanism == "OAUTHBEARER":
        login = f"sasl.oauthbearer.token.endpoint.url=file:{token}"
    file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={broker.mechanism}\n{login}\n")
    usage, servers = UsageOptions(topic="usage"), (broker.address,)
    sink = TopicSink(
        Config(usage=usage, internal_client=read_client_settings(file), internal_servers=servers), b"pod/run"
    )
    try:
        yield sink
    finally:
        await sink.close()
        server.close()
        await server.wait_closed()


@pytest.mark.claim(
    "security",
    "passwords appear in no log (even at level debug), metric, error or process list, even if a "
    "broker repeats one in an error",
)
@pytest.mark.parametrize(
    ("mechanism", "knows", "described", "reason"),
    [
        ("PLAIN", "another", ErrorCode.none, "authentication"),
        ("OAUTHBEARER", "another", ErrorCode.none, "authentication"),
        ("PLAIN", PASSWORD, ErrorCode.unknown_server_error, "broker_error"),
        ("OAUTHBEARER", PASSWORD, ErrorCode.unknown_server_error, "broker_error"),
        ("PLAIN", PASSWORD, ErrorCode.unknown_topic_or_partition, "topic_missing"),
    ],
)
async def test_what_a_broker_repeats_of_a_secret_is_in_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mechanism: str, knows: str, described: ErrorCode, reason: str
) -> None:
    async with sink_to(Parrot(mechanism, knows, described), tmp_path) as sink:
        with pytest.raises(LogFailed) as raised:
            await sink.write([b"{}"])
    assert (raised.value.reason, "wrong: ***" in raised.value.message) == (reason, True)
    assert raised.value.__suppress_context__
    assert PASSWORD not in str(raised.value)
    assert PASSWORD not in str([vars(record) for record in caplog.records])


async def test_nor_is_it_in_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with sink_to(Parrot("PLAIN", PASSWORD, ErrorCode.topic_authorization_failed), tmp_path) as sink:
        writing = asyncio.ensure_future(sink.write([b"{}"]))
        await until(lambda: caplog.records)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    [(name, fields)] = lines_of(caplog.records)
    assert (name, fields["message"]) == ("usage_topic_not_checked", "wrong: ***")
    assert PASSWORD not in str([vars(record) for record in caplog.records])


async def test_a_broker_that_is_not_there_is_named_with_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
    sink = TopicSink(Config(usage=UsageOptions(topic="usage"), internal_servers=((host, port),)), b"pod/run")
    for _ in range(2):
        with pytest.raises(LogFailed) as raised:
            await sink.write([b"{}"])
        assert raised.value.reason == "unreachable"
        assert raised.value.message.startswith(f"--usage-topic usage at {host}:{port}: ")
        assert "refused" in raised.value.message or "Errno 111" in raised.value.message
    await sink.close()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.SaslAuthenticationFailed(), "authentication"),
        (errors.TopicAuthorizationFailedError(), "authorization"),
        (errors.UnknownTopicOrPartitionError(), "topic_missing"),
        (errors.MessageSizeTooLargeError(), "broker_error"),
        (errors.KafkaConnectionError(), "unreachable"),
        (OSError(), "unreachable"),
        (TypeError(), "unreachable"),
    ],
)
def test_each_error_has_a_reason(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason
    assert reason in USAGE_ERROR_REASONS
