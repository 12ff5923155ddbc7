"""The topic of usage records: created if it is missing, refused if it is compacted.

A compacted topic keeps the last record of each key, and the key is the process: it would lose all series but one.
"""

from collections.abc import Mapping
from typing import Any, Final

from aiokafka.admin import NewTopic

from proxy.internal_clients.failures import LogRefused
from proxy.internal_clients.topic import create, existing, written
from proxy.observability.logs import EventLog

PARTITIONS: Final = 6
RETENTION_MS: Final = 604_800_000
"""Seven days, because the pipeline reads the topic into its own tables."""
TOPIC_CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": str(RETENTION_MS),
    "message.timestamp.type": "LogAppendTime",  # any producer's own time could be one that Spark cannot read
}
BROKER_DEFAULT: Final = -1

_POLICY: Final = "cleanup.policy"

_log = EventLog("proxy.usage")


async def check_topic(client: Mapping[str, Any], topic: str) -> str:
    """Create the topic if it is missing. `client`: arguments of aiokafka's clients. Returns why it is unchecked, or "".

    Raises LogRefused for a compacted topic, LogFailed if it is missing and cannot be created, and errors of aiokafka.
    All of these, and what is returned, may contain a broker's words.
    """
    async with existing(client, topic, [_POLICY], _create) as (_, found, unchecked):
        policy = found.get(_POLICY, "")
    if "compact" in policy:
        raise LogRefused(
            "topic_compacted",
            f"--usage-topic {topic} has {_POLICY}={policy}, which loses records of other series with the same key: "
            f"set {_POLICY}=delete, or name another topic",
        )
    return unchecked


async def _create(admin: Any, topic: str) -> None:
    # Empty assignments beside a replication factor of -1: aiokafka demands them there, the broker takes its default.
    new = NewTopic(topic, PARTITIONS, BROKER_DEFAULT, replica_assignments={}, topic_configs=dict(TOPIC_CONFIG))
    if await create(admin, new, "--usage-topic", written(TOPIC_CONFIG)):
        _log.info("usage_topic_created", topic=topic, partitions=PARTITIONS, retention_ms=RETENTION_MS)
