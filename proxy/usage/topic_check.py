"""The topic of usage records: created if it is missing, refused if it is compacted.

A compacted topic keeps the last record of each key, and the key is the process: it would lose all series but one.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from proxy.observability.logs import EventLog
from proxy.own_topic import NotAllowed, NotCreated, config_of, create, written
from proxy.usage.sink import SinkFailed, SinkRefused

PARTITIONS: Final = 6
RETENTION_MS: Final = 604_800_000
"""Seven days: the pipeline reads the topic into its own tables."""
TOPIC_CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": str(RETENTION_MS),
    "message.timestamp.type": "LogAppendTime",  # any producer's own time could be one that Spark cannot read
}
BROKER_DEFAULT: Final = -1

_POLICY: Final = "cleanup.policy"

_log = EventLog("proxy.usage")


async def check_topic(client: Mapping[str, Any], topic: str, masked: Callable[[str], str]) -> None:
    """Create the topic if it is missing. `client`: arguments of aiokafka's clients. `masked`: for what is logged here;
    errors have the broker's own words.

    Raises SinkRefused for a compacted topic, SinkFailed if it is missing and cannot be created, and errors of aiokafka.
    """
    admin = AIOKafkaAdminClient(**client)
    try:
        await admin.start()
        policy = await _policy_of(admin, topic, masked)
        if policy is None:
            await _create(admin, topic)
            policy = await _policy_of(admin, topic, masked) or TOPIC_CONFIG[_POLICY]
        if "compact" in policy:
            raise SinkRefused(
                "topic_compacted",
                f"--usage-topic {topic} has {_POLICY}={policy}, which loses records of other series with the same key: "
                f"set {_POLICY}=delete, or name another topic",
            )
    finally:
        await admin.close()


async def _policy_of(admin: Any, topic: str, masked: Callable[[str], str]) -> str | None:
    """The cleanup policy; None: there is no such topic. `unknown`: this client may not read it."""
    try:
        found = await config_of(admin, topic, [_POLICY])
    except NotAllowed as error:
        hint = "allow DescribeConfigs on the topic: a compacted one would lose records"
        _log.warning("usage_topic_not_checked", topic=topic, message=masked(str(error)), hint=hint)
        return "unknown"
    return None if found is None else found[_POLICY]


async def _create(admin: Any, topic: str) -> None:
    # Empty assignments beside a replication factor of -1: aiokafka demands them there, the broker takes its default.
    new = NewTopic(topic, PARTITIONS, BROKER_DEFAULT, replica_assignments={}, topic_configs=dict(TOPIC_CONFIG))
    try:
        is_new = await create(admin, new, "--usage-topic", written(TOPIC_CONFIG))
    except NotCreated as error:
        raise SinkFailed("topic_missing", str(error)) from None
    if is_new:
        _log.info("usage_topic_created", topic=topic, partitions=PARTITIONS, retention_ms=RETENTION_MS)
