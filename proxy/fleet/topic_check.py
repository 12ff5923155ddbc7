"""The topic of fleets: created if it is missing, refused if its records would not be those of one log, in one order."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from proxy.fleet.log import LogFailed, LogRefused
from proxy.observability.logs import EventLog
from proxy.own_topic import NotAllowed, NotCreated, config_of, create, written

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
    try:
        return await config_of(admin, topic, MUST_BE)
    except NotAllowed as error:
        hint = f"allow DescribeConfigs on the topic, or check that it has {written(MUST_BE)}"
        _log.warning("fleet_topic_not_checked", topic=topic, message=masked(str(error)), hint=hint)
        return {}


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
