"""A topic with one partition that proxies use as a log: created if it is missing, refused if it cannot be that log."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiokafka.admin import NewTopic

from proxy.internal_clients.failures import LogFailed, LogRefused
from proxy.internal_clients.topic import Config, create, existing, written
from proxy.observability.logs import EventLog

REPLICAS: Final = 3

_log = EventLog("proxy.internal_clients")


@dataclass(frozen=True, slots=True)
class LogTopic:
    """What the topic must be.

    option     the one that names it
    must_be    settings that an existing topic needs; `tolerated` are pairs that work as well
    new        further settings of one that is created
    creator    what creates it, for a user who asks for a topic that is missing
    created, not_checked   names of events
    """

    option: str
    name: str
    must_be: Mapping[str, str]
    new: Mapping[str, str]
    creator: str
    created: str
    not_checked: str
    tolerated: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.option} {self.name}"

    async def check(self, client: Mapping[str, Any], *, creates: bool = True) -> tuple[Config, str]:
        """The settings that it has of `must_be`, and why they cannot be read, or "". `client`: arguments of aiokafka's
        clients. Raises LogFailed and errors of aiokafka, which may contain a broker's words.
        """
        missing = self._create if creates else self._refuse
        async with existing(client, self.name, self.must_be, missing) as (admin, found, unchecked):
            [described] = await admin.describe_topics([self.name])
        wrong = list(self.differences(found, len(described["partitions"])))
        if wrong:
            raise LogRefused("topic_differs", f"{self}: {'; '.join(wrong)}")
        return found, unchecked

    def differences(self, config: Config, partitions: int = 1) -> Iterator[str]:
        """What differs, and what to change."""
        for key, value in self.must_be.items():
            if config.get(key, value) != value and (key, config[key]) not in self.tolerated:
                yield f"{key} is {config[key]}, and must be {value}: {self.alter(key)}"
        if partitions > 1:
            yield f"it has {partitions} partitions, and must have one: delete the topic, or name another one"

    def alter(self, key: str) -> str:
        """The command that sets it to what it must be."""
        return f"kafka-configs.sh --alter --topic {self.name} --add-config {key}={self.must_be[key]}"

    @property
    def hint(self) -> str:
        """What to do if the settings cannot be read."""
        return f"allow DescribeConfigs on the topic, or check that it has {written(self.must_be)}"

    async def _refuse(self, _admin: Any, _topic: str) -> None:
        raise LogFailed("topic_missing", f"{self} does not exist: {self.creator} creates it")

    async def _create(self, admin: Any, _topic: str) -> None:
        replicas = min(REPLICAS, len((await admin.describe_cluster())["brokers"]))
        config = {**self.must_be, **self.new} | ({"min.insync.replicas": "2"} if replicas == REPLICAS else {})
        how = f"one partition, {REPLICAS} replicas, {written(config)}"
        if await create(admin, NewTopic(self.name, 1, replicas, topic_configs=config), self.option, how):
            settings = {key.replace(".", "_"): value for key, value in config.items()}
            _log.info(self.created, topic=self.name, replicas=replicas, **settings)
