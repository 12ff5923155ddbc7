"""A producer in this process that wants more than it may have, and what it was told is written, and when."""

import threading
import time
from collections import Counter
from typing import Any, Self

from confluent_kafka import KafkaError, Message, Producer

from tests.integration.proxy_process import eventually

RECORD_BYTES = 10_000
BACKLOG_RECORDS = 200
START_SECONDS = 30.0
_POLL_SECONDS = 0.05
#: What records are told that were still waiting when the flood was over.
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


class Flood:
    """librdkafka, as long as the block lasts. Each topic always has `BACKLOG_RECORDS` records on their way.

    settings: more of librdkafka's. By default a request holds one record.
    """

    def __init__(
        self, bootstrap_servers: str, client_id: str, *topics: str, record_bytes: int = RECORD_BYTES, **settings: Any
    ) -> None:
        self.client_id = client_id
        self.problems: list[str] = []
        """What its error callback was told, a lost connection above all, and records that were not written."""
        self._topics = topics
        self._value = bytes(record_bytes)
        self._written: Counter[str] = Counter()
        self._under_way: Counter[str] = Counter()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "client.id": client_id,
                "acks": 1,
                "linger.ms": 0,
                "batch.num.messages": 1,
                "error_cb": self._complain,
                **settings,
            }
        )

    def records(self, topic: str | None = None) -> int:
        """How many are written, to one of its topics or to all."""
        return self._written.total() if topic is None else self._written[topic]

    def wait_for(self, records: int) -> None:
        """Until that many are written."""
        eventually(lambda: self.records() >= records, START_SECONDS, f"{self.client_id} has written {records} records")

    @property
    def record_bytes(self) -> int:
        """Of each record."""
        return len(self._value)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            for topic in self._topics:
                while self._under_way[topic] < BACKLOG_RECORDS:
                    self._under_way[topic] += 1
                    self._producer.produce(topic, self._value, on_delivery=self._delivered)
            self._producer.poll(_POLL_SECONDS)
        self._producer.purge()
        self._producer.close()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        topic = message.topic()
        assert topic is not None
        self._under_way[topic] -= 1
        if error is None:
            self._written[topic] += 1
        elif error.code() not in _PURGED:
            self.problems.append(str(error))

    def _complain(self, error: KafkaError) -> None:
        self.problems.append(str(error))


def written(seconds: float, *floods: Flood) -> list[float]:
    """The seconds that were measured, `seconds` or a little more from now, and the bytes of values that each flood had
    written in them.
    """
    before = [flood.records() for flood in floods]
    began = time.monotonic()
    eventually(lambda: time.monotonic() >= began + seconds, seconds + 10, "the time that is measured is over")
    after = [flood.records() for flood in floods]
    sizes = [flood.record_bytes * (last - first) for flood, first, last in zip(floods, before, after, strict=True)]
    return [time.monotonic() - began, *sizes]
