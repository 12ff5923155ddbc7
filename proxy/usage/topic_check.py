"""The topic of usage records: created if it is missing, refused if it is compacted.

A compacted topic keeps the last record of each key, and the key is the process: it would lose all series but one.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from proxy.observability.logs import EventLog
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
_NOT_ALLOWED: Final = (errors.TopicAuthorizationFailedError, errors.ClusterAuthorizationFailedError)

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
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={_POLICY: None})
    [answer] = await admin.describe_configs([resource])
    [(code, message, _, _, entries)] = answer.resources
    error = errors.for_code(code)
    if error is errors.UnknownTopicOrPartitionError:
        return None
    if error in _NOT_ALLOWED:
        hint = "allow DescribeConfigs on the topic: a compacted one would lose records"
        _log.warning("usage_topic_not_checked", topic=topic, message=masked(message or ""), hint=hint)
        return "unknown"
    if code:
        raise error(message)
    return str(entries[0][1])


async def _create(admin: Any, topic: str) -> None:
    # Empty assignments beside a replication factor of -1: aiokafka demands them there, the broker takes its default.
    new = NewTopic(topic, PARTITIONS, BROKER_DEFAULT, replica_assignments={}, topic_configs=dict(TOPIC_CONFIG))
    answer = await admin.create_topics([new])
    [(_, code, message)] = answer.topic_errors
    error = errors.for_code(code)
    if error in _NOT_ALLOWED:
        raise SinkFailed(
            "topic_missing",
            f"--usage-topic {topic} does not exist, and this client may not create it: create it with "
            f"{', '.join(f'{key}={value}' for key, value in TOPIC_CONFIG.items())}",
        )
    if code and error is not errors.TopicAlreadyExistsError:
        raise SinkFailed("topic_missing", f"--usage-topic {topic} cannot be created: {error.__name__}: {message}")
    if not code:
        _log.info("usage_topic_created", topic=topic, partitions=PARTITIONS, retention_ms=RETENTION_MS)
