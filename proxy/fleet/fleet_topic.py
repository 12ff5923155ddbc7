"""The topic of fleets: created if it is missing, refused if its records would not form one log in one order."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from aiokafka.admin import NewTopic

from proxy.fleet.log import LogFailed, LogRefused
from proxy.internal_clients.topic import NotCreated, create, existing, written
from proxy.observability.logs import EventLog

REPLICAS: Final = 3
MUST_BE: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",  # a compacted topic accepts no records without keys
    "message.timestamp.type": "LogAppendTime",  # a new member finds where to start by the broker's clock
    "compression.type": "uncompressed",  # compressed batches are not read
}
_NEW: Final[Mapping[str, str]] = {
    **MUST_BE,
    "retention.ms": "3600000",
    "segment.ms": "600000",  # only whole segments are deleted
    "max.message.bytes": "1048588",  # independent of the brokers' own bound, because a batch is fetched as a whole
    "unclean.leader.election.enable": "false",
}
_UNFIXED: Final = "compression.type", "producer"
"""The setting in topics of older versions. Proxies do not compress records, and skip the compressed ones of others."""

_log = EventLog("proxy.fleet")

Warnings = list[tuple[str, dict[str, str]]]
"""Events with their fields, which may contain a broker's words."""


async def check_topic(client: Mapping[str, Any], topic: str) -> Warnings:
    """Create the topic if it is missing. `client`: arguments of aiokafka's clients.

    Raises LogRefused for a topic with other settings, LogFailed if it is missing and cannot be created, and errors of
    aiokafka. All of these may contain a broker's words.
    """
    async with existing(client, topic, MUST_BE, _create) as (admin, found, unchecked):
        [described] = await admin.describe_topics([topic])
    wrong = list(_differences(topic, found, len(described["partitions"])))
    if wrong:
        raise LogRefused("topic_differs", f"--fleet-topic {topic}: {'; '.join(wrong)}")
    if not unchecked:
        return _unfixed(topic, found)
    hint = f"allow DescribeConfigs on the topic, or check that it has {written(MUST_BE)}"
    return [("fleet_topic_not_checked", {"message": unchecked, "hint": hint})]


def wrong_timestamps(topic: str) -> str:
    """What to do about a topic whose records have the timestamps of their producers."""
    [difference] = _differences(topic, {"message.timestamp.type": "CreateTime"}, 1)
    return f"--fleet-topic {topic}: {difference}"


def _differences(topic: str, config: Mapping[str, str], partitions: int) -> Iterator[str]:
    """What differs, and what to change."""
    for key, value in MUST_BE.items():
        if config.get(key, value) != value and (key, config[key]) != _UNFIXED:
            yield f"{key} is {config[key]}, and must be {value}: {_alter(topic, key)}"
    if partitions > 1:
        yield f"it has {partitions} partitions, and must have one: delete the topic, or name another one"


def _unfixed(topic: str, config: Mapping[str, str]) -> Warnings:
    key, value = _UNFIXED
    if config.get(key) != value:
        return []
    effect = "anyone who can write to the topic can store compressed batches in it, which proxies fetch and skip"
    return [("fleet_topic_accepts_compression", {"effect": effect, "hint": _alter(topic, key)})]


def _alter(topic: str, key: str) -> str:
    return f"kafka-configs.sh --alter --topic {topic} --add-config {key}={MUST_BE[key]}"


async def _create(admin: Any, topic: str) -> None:
    brokers = len((await admin.describe_cluster())["brokers"])
    replicas = min(REPLICAS, brokers)
    config = dict(_NEW)
    if replicas == REPLICAS:
        config["min.insync.replicas"] = "2"
    how = f"one partition, {REPLICAS} replicas, {written(config)}"
    try:
        is_new = await create(admin, NewTopic(topic, 1, replicas, topic_configs=config), "--fleet-topic", how)
    except NotCreated as error:
        raise LogFailed("topic_missing", str(error)) from None
    if is_new:
        settings = {key.replace(".", "_"): value for key, value in config.items()}
        _log.info("fleet_topic_created", topic=topic, replicas=replicas, **settings)
