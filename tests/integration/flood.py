"""A producer in this process that wants more than it may have, and what it was told is written, and when."""

import math
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from deploy.local.cluster import KafkaCluster
from tests.integration.proxy_process import eventually

RECORD_BYTES = 10_000
BACKLOG_RECORDS = 200
START_SECONDS = 30.0
_POLL_SECONDS = 0.05
#: What records are told that were still waiting when the flood was over.
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


def create_topics(cluster: KafkaCluster, *names: str) -> None:
    """One partition each, past the proxy."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for created in admin.create_topics([NewTopic(name, 1) for name in names]).values():
        created.result(30)


class Flood:
    """librdkafka, as long as the block lasts. Each topic always has `BACKLOG_RECORDS` records on their way.

    settings: more of librdkafka's. By default a request holds one record. records_per_second: of each topic, from its
    first written record on; 0: as fast as it can.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        client_id: str,
        *topics: str,
        record_bytes: int = RECORD_BYTES,
        records_per_second: float = 0,
        **settings: Any,
    ) -> None:
        self.client_id = client_id
        self.problems: list[str] = []
        """What its error callback was told, a lost connection above all, and records that were not written."""
        self._topics = topics
        self._value = bytes(record_bytes)
        self._records_per_second = records_per_second
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        began, sent = 0.0, Counter[str]()
        while not self._is_over.is_set():
            if not began and self._written:
                began = time.monotonic()
            due = math.inf
            if self._records_per_second:
                due = 1 + (time.monotonic() - began) * self._records_per_second if began else 1
            for topic in self._topics:
                while self._under_way[topic] < BACKLOG_RECORDS and sent[topic] < due:
                    sent[topic] += 1
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


def rates(seconds: float, *floods: Flood, topic: str | None = None) -> list[float]:
    """Bytes of values that each had written per second, of the same `seconds` that follow."""
    before = [flood.records(topic) for flood in floods]
    began = time.monotonic()
    eventually(lambda: time.monotonic() >= began + seconds, seconds + 10, "the time that is measured is over")
    elapsed = time.monotonic() - began
    return [
        (flood.records(topic) - count) * flood.record_bytes / elapsed
        for flood, count in zip(floods, before, strict=True)
    ]
