"""Errors of the topic's brokers, as the log and the metric have them. tests/integration has real brokers."""

import socket

import pytest
from aiokafka import errors

from proxy.config.config import UsageOptions
from proxy.observability.metrics import USAGE_ERROR_REASONS
from proxy.usage.sink import SinkFailed
from proxy.usage.topic_sink import TopicSink, reason_of


async def test_a_broker_that_is_not_there_is_named_with_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
    sink = TopicSink(UsageOptions(topic="usage"), [(host, port)], b"pod/run")
    for _ in range(2):
        with pytest.raises(SinkFailed) as raised:
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
