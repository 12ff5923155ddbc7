"""The known topics of the cluster: names by id, and numbers of partitions.

They are learned from each Metadata response while some limit needs topics. Where clients need not authenticate, the
proxy also requests unknown ids of Produce requests, because a client that survives a restart of this proxy sends no
Metadata request.
"""

import asyncio
from asyncio import AbstractEventLoop, Task
from collections.abc import Awaitable, Callable, Iterable
from random import Random

from protocol.topics import NO_TOPIC_ID, Topic, TopicPartitions
from proxy.background.retries import Retries
from proxy.observability.logs import EventLog

#: Further topics are not stored, so their records count only for limits that need no topic.
MAX_TOPICS = 1_000_000
#: Ids per request, and the pause between two requests: a client that invents ids must not cause a connection to a
#: broker for each id.
MAX_UNKNOWN = 1_000
PAUSE_SECONDS = 1.0

_log = EventLog(__name__)

Ask = Callable[[list[bytes]], Awaitable[Iterable[TopicPartitions]]]


class Topics:
    """Shared by all sessions. ``ask`` requests topics by id and may raise OSError."""

    def __init__(self, loop: AbstractEventLoop, ask: Ask, random: Random) -> None:
        self._loop = loop
        self._ask = ask
        self._names: dict[bytes, str] = {}
        self._partitions: dict[str, int] = {}
        self._unknown: set[bytes] = set()
        self._task: Task[None] | None = None
        self._retries = Retries(random)

    def learn(self, topics: Iterable[TopicPartitions]) -> None:
        for topic in topics:
            if len(self._partitions) >= MAX_TOPICS and topic.name not in self._partitions:
                continue
            self._partitions[topic.name] = topic.partitions
            topic_id = topic.topic_id
            if topic_id is not None and (len(self._names) < MAX_TOPICS or topic_id in self._names):
                self._names[topic_id] = topic.name

    def partitions_of(self, name: str) -> int | None:
        """The number of partitions in the latest Metadata response; None if unknown."""
        return self._partitions.get(name)

    def name_of(self, topic: Topic) -> str | None:
        """The name of a topic that is given by name or id. If the id is unknown, requests it and returns None."""
        if isinstance(topic, str):
            return topic
        name = self._names.get(topic)
        if name is None:
            self._request(topic)
        return name

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _request(self, topic_id: bytes) -> None:
        if topic_id == NO_TOPIC_ID or len(self._unknown) >= MAX_UNKNOWN:
            return
        self._unknown.add(topic_id)
        if self._task is None:
            self._task = self._loop.create_task(self._request_unknown())

    async def _request_unknown(self) -> None:
        try:
            while self._unknown:
                wanted = list(self._unknown)
                self._unknown.clear()
                try:
                    self.learn(await self._ask(wanted))
                except OSError as error:
                    if self._retries.failed(getattr(error, "reason", "unreachable")):
                        effect = "their records count only for limits that need no topic"
                        _log.warning("topic_ids_unknown", topics=len(wanted), detail=str(error), effect=effect)
                    await asyncio.sleep(self._retries.pause_seconds())
                else:
                    self._retries.worked()
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            self._task = None
