"""The topic of fleets: created if it is missing, refused if its records would not be those of one log, in one order."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

from proxy.fleet.log import LogFailed, LogRefused
from proxy.observability.logs import EventLog

REPLICAS: Final = 3
MUST_BE: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",  # a compacted topic accepts no records without keys
    "message.timestamp.type": "LogAppendTime",  # a new member asks how far back it has read by the broker's clock
}
_NEW: Final[Mapping[str, str]] = {
    **MUST_BE,
    "retention.ms": "3600000",
    "segment.ms": "600000",  # only whole segments are deleted
    "unclean.leader.election.enable": "false",
}
_NOT_ALLOWED: Final = (TopicAuthorizationFailedError, ClusterAuthorizationFailedError)

_log = EventLog("proxy.fleet")


async def check_topic(client: Mapping[str, Any], topic: str, masked: Callable[[str], str]) -> None:
    """Create the topic if it is missing. `client`: arguments of aiokafka's clients. `masked`: for what is logged here;
    errors have the broker's own words.

    Raises LogRefused for a topic of another kind, LogFailed if it is missing and cannot be created, and errors of
    aiokafka.
    """
    admin = AIOKafkaAdminClient(**client)
    try:
        await admin.start()
        found = await _config_of(admin, topic, masked)
        if found is None:
            await _create(admin, topic)
            found = await _config_of(admin, topic, masked) or {}
        [described] = await admin.describe_topics([topic])
        wrong = list(_differences(topic, found, len(described["partitions"])))
        if wrong:
            raise LogRefused("topic_differs", f"--fleet-topic {topic}: {'; '.join(wrong)}")
    finally:
        await admin.close()


def _differences(topic: str, config: Mapping[str, str], partitions: int) -> Iterator[str]:
    """What differs, and what to change."""
    for key, value in MUST_BE.items():
        if config.get(key, value) != value:
            tool = f"kafka-configs.sh --alter --topic {topic} --add-config {key}={value}"
            yield f"{key} is {config[key]}, and must be {value}: {tool}"
    if partitions > 1:
        yield f"it has {partitions} partitions, and must have one: delete the topic, or name another one"


async def _config_of(admin: Any, topic: str, masked: Callable[[str], str]) -> dict[str, str] | None:
    """Its configuration; None: there is no such topic. Empty: this client may not read it."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict.fromkeys(MUST_BE))
    [answer] = await admin.describe_configs([resource])
    [(code, message, _, _, entries)] = answer.resources
    error = for_code(code)
    if error is UnknownTopicOrPartitionError:
        return None
    if error in _NOT_ALLOWED:
        hint = f"allow DescribeConfigs on the topic, or check that it has {_written(MUST_BE)}"
        _log.warning("fleet_topic_not_checked", topic=topic, message=masked(message or ""), hint=hint)
        return {}
    if code:
        raise error(message)
    return {str(name): str(value) for name, value, *_ in entries}


async def _create(admin: Any, topic: str) -> None:
    brokers = len((await admin.describe_cluster())["brokers"])
    replicas = min(REPLICAS, brokers)
    config = dict(_NEW)
    if replicas == REPLICAS:
        config["min.insync.replicas"] = "2"
    answer = await admin.create_topics([NewTopic(topic, 1, replicas, topic_configs=config)])
    [(_, code, message)] = answer.topic_errors
    error = for_code(code)
    if error in _NOT_ALLOWED:
        raise LogFailed(
            "topic_missing",
            f"--fleet-topic {topic} does not exist, and this client may not create it: create it with one partition, "
            f"{REPLICAS} replicas, {_written(config)}",
        )
    if code and error is not TopicAlreadyExistsError:
        raise LogFailed("topic_missing", f"--fleet-topic {topic} cannot be created: {error.__name__}: {message}")
    if not code:
        _log.info(
            "fleet_topic_created",
            topic=topic,
            replicas=replicas,
            **{key.replace(".", "_"): config[key] for key in config},
        )


def _written(config: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in config.items())
