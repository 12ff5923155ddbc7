"""A producer whose demand changes: what cannot be sent at once is not sent later, so its bytes show who was served."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Producer

RECORD: Final = bytes(4_000)
BATCH_BYTES: Final = 16_384
"""Of a request, as Java's producers have it by default."""
STEP_SECONDS: Final = 0.02


def now_ns() -> int:
    """By the clock of the proxies."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class MovingClient:
    """librdkafka, in a thread. `acks`: when bytes were acknowledged, and how many.

    wants       bytes per second, by the second since its start
    under_way   bytes that it has not seen acknowledged when it stops to send
    settings    more of librdkafka's
    """

    def __init__(
        self, servers: str, topic: str, wants: Callable[[float], float], *, under_way: int, **settings: Any
    ) -> None:
        self.acks: list[tuple[int, int]] = []
        self._topic = topic
        self._wants = wants
        self._most_under_way = under_way
        self._under_way = 0
        self._began_ns = self._ends_ns = 0
        settings = {"client.id": "etl", "acks": 1, "linger.ms": 5, "batch.size": BATCH_BYTES, "log_level": 0} | settings
        self._producer = Producer({"bootstrap.servers": servers} | settings)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, began_ns: int, seconds: float) -> None:
        """Send for this many seconds."""
        self._began_ns, self._ends_ns = began_ns, began_ns + int(seconds * 1e9)
        self._thread.start()

    def join(self) -> None:
        """Until it has ended."""
        self._thread.join()

    def stop(self) -> None:
        """End before its time."""
        self._ends_ns = 0

    def _run(self) -> None:
        owed, last_ns = 0.0, self._began_ns
        while (at_ns := now_ns()) < self._ends_ns:
            owed += self._wants((at_ns - self._began_ns) / 1e9) * (at_ns - last_ns) / 1e9
            last_ns = at_ns
            while owed >= len(RECORD) and self._under_way < self._most_under_way:
                owed -= len(RECORD)
                self._under_way += len(RECORD)
                self._producer.produce(self._topic, RECORD, on_delivery=self._delivered)
            owed = min(owed, len(RECORD))
            self._producer.poll(STEP_SECONDS)
        self._producer.purge()
        self._producer.close()

    def _delivered(self, error: object, _message: object) -> None:
        self._under_way -= len(RECORD)
        if error is None:
            self.acks.append((now_ns(), len(RECORD)))
