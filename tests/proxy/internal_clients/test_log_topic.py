"""What a topic that is used as a log must be, and what to do if it is not. tests/integration has real brokers."""

import pytest

from proxy.config.config import Config
from proxy.internal_clients.client import InternalClient
from proxy.internal_clients.quotas_log import QuotasLog


@pytest.mark.claim("kafka-quotas", "a topic that would lose quotas, or has several partitions, is refused")
@pytest.mark.parametrize(
    ("config", "partitions", "wrong"),
    [
        ({"cleanup.policy": "compact"}, 1, []),
        ({}, 1, []),  # it cannot be read
        ({"cleanup.policy": "delete"}, 1, ["--add-config cleanup.policy=compact"]),
        ({"cleanup.policy": "compact,delete"}, 1, ["--add-config cleanup.policy=compact"]),
        ({"compression.type": "producer"}, 1, ["--add-config compression.type=uncompressed"]),
        ({"cleanup.policy": "compact"}, 3, ["it has 3 partitions, and must have one"]),
    ],
)
def test_a_topic_that_cannot_keep_quotas_is_refused(config: dict[str, str], partitions: int, wrong: list[str]) -> None:
    log = QuotasLog(InternalClient(Config(bootstrap_servers=(("broker", 9092),)), "tests"), "quotas")
    found = list(log._topic.differences(config, partitions))
    assert len(found) == len(wrong)
    assert all(part in text for part, text in zip(wrong, found, strict=True))
