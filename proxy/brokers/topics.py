"""What is known of the cluster's topics: names by id, and how many partitions each has.

Learnt from every Metadata response that passes while some limit asks for topics, and, where clients need not
authenticate, by asking for ids that turn up in Produce requests and are not known (a client that outlived a restart of
this proxy asks for no metadata).
"""

import asyncio
import logging
from asyncio import AbstractEventLoop, Task
from collections.abc import Awaitable, Callable, Iterable

from protocol.topics import NO_TOPIC_ID, TopicPartitions
from proxy.observability.logs import RateLimited, event

#: Of more topics than this nothing new is learnt: their records count for the limits that need no topic.
MAX_TOPICS = 1_000_000
#: Ids to ask for at a time, how long an id is not asked for again, and how long nothing is asked after an answer: a
#: client that makes ids up must not cost the broker a connection for each of them.
MAX_UNKNOWN = 1_000
ASK_AGAIN_SECONDS = 10.0
REST_SECONDS = 0.1

_log = logging.getLogger("proxy.sessions.topics")

Ask = Callable[[list[bytes]], Awaitable[Iterable[TopicPartitions]]]


class Topics:
    """Shared by all sessions. ``ask`` looks topics up by their ids; it may raise OSError."""

    def __init__(self, loop: AbstractEventLoop, ask: Ask) -> None:
        self._loop = loop
        self._ask = ask
        self._names: dict[bytes, str] = {}
        self._partitions: dict[str, int] = {}
        self._unknown: set[bytes] = set()
        self._asked: dict[bytes, float] = {}
        self._task: Task[None] | None = None
        self._lines = RateLimited()

    def learn(self, topics: Iterable[TopicPartitions]) -> None:
        """Remember these."""
        for topic in topics:
            if len(self._partitions) >= MAX_TOPICS and topic.name not in self._partitions:
                continue
            self._partitions[topic.name] = topic.partitions
            topic_id = topic.topic_id
            if topic_id is not None and (len(self._names) < MAX_TOPICS or topic_id in self._names):
                self._names[topic_id] = topic.name
                self._asked.pop(topic_id, None)

    def partitions_of(self, name: str) -> int | None:
        """How many partitions the topic had when it was last heard of."""
        return self._partitions.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of a topic; None while it is not known, which it may be soon."""
        name = self._names.get(topic_id)
        if name is None:
            self._wonder(topic_id)
        return name

    def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    def _wonder(self, topic_id: bytes) -> None:
        if topic_id == NO_TOPIC_ID or self._asked.get(topic_id, 0.0) > self._loop.time():
            return
        if len(self._unknown) >= MAX_UNKNOWN:
            return
        self._unknown.add(topic_id)
        if self._task is None:
            self._task = self._loop.create_task(self._find_out())

    async def _find_out(self) -> None:
        try:
            while self._unknown:
                wanted = list(self._unknown)
                self._unknown.clear()
                again = self._loop.time() + ASK_AGAIN_SECONDS
                if len(self._asked) >= MAX_UNKNOWN:
                    self._asked.clear()
                self._asked.update((topic_id, again) for topic_id in wanted)
                try:
                    self.learn(await self._ask(wanted))
                except OSError as error:
                    self._say_nobody_tells(wanted, error)
                await asyncio.sleep(REST_SECONDS)
        finally:
            self._task = None

    def _say_nobody_tells(self, wanted: list[bytes], error: OSError) -> None:
        suppressed = self._lines.admit("topic_ids_unknown", int(self._loop.time() * 1_000_000_000))
        if suppressed is not None:
            event(
                _log,
                logging.WARNING,
                "topic_ids_unknown",
                topics=len(wanted),
                detail=str(error),
                effect="their records count only for limits that need no topic",
                suppressed=suppressed or None,
            )
