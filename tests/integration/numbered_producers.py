"""Producers of three libraries that write numbered records for a noisy and a quiet topic, and measure both.

In each round a producer writes `quiet_records` for the quiet topic, one after the other. Then it writes `noisy_records`
for the noisy topic as fast as it can, with at most `BACKLOG_RECORDS` of them not acknowledged, and meanwhile goes on
with the quiet topic. All are idempotent: that is the default, or a setting of librdkafka.

The programs for Java (`NumberedProducer.java`) and franz-go (`franz_producer/main.go`) have these arguments

    BOOTSTRAP CLIENT_ID NOISY QUIET
    ROUNDS NOISY_RECORDS QUIET_RECORDS NOISY_BYTES QUIET_BYTES PARTITIONS BACKLOG_RECORDS INTERVAL_MS

and print the rounds as JSON: [{"seconds": ..., "before": [...], "during": [...]}, ...].
"""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from confluent_kafka import KafkaError, Message, Producer

from deploy.local.tools import tool_command

NOISY_BYTES = 10_000
QUIET_BYTES = 1_000
"""Without noise; beside noise quiet records have twice as many, so that a tap can tell them apart."""
BACKLOG_RECORDS = 1_600
"""16 MB: half of Java's buffer."""
PARTITIONS = 2
INTERVAL_MS = 5
DEADLINE_SECONDS = 90

_FRANZ = Path(__file__).parent / "franz_producer"
_JAVA = Path(__file__).with_name("NumberedProducer.java")


@dataclass(frozen=True)
class Round:
    """seconds: from the first noisy record until all are acknowledged; before, during: seconds that each quiet record
    took, without and with noise.
    """

    seconds: float
    before: list[float]
    during: list[float]


@dataclass(frozen=True)
class Load:
    """What a producer writes."""

    bootstrap: str
    client_id: str
    noisy: str
    quiet: str
    rounds: int
    noisy_records: int
    quiet_records: int

    @property
    def arguments(self) -> list[str]:
        names = [self.bootstrap, self.client_id, self.noisy, self.quiet]
        numbers = [self.rounds, self.noisy_records, self.quiet_records, NOISY_BYTES, QUIET_BYTES, PARTITIONS]
        return [*names, *map(str, [*numbers, BACKLOG_RECORDS, INTERVAL_MS])]


Write: TypeAlias = Callable[[Load], list[Round]]


def numbered(number: int, size: int = NOISY_BYTES) -> bytes:
    return b"%08d" % number + bytes(size - 8)


class _Librdkafka:
    """One producer; its callbacks run in `_poll`."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._unacknowledged = self._noisy_sent = self._quiet_sent = 0
        self._left = 0
        self._latencies: list[float] = []
        self._producer = Producer(
            {
                "bootstrap.servers": load.bootstrap,
                "client.id": load.client_id,
                "enable.idempotence": True,
                "batch.size": 100_000,
                "linger.ms": 0,
            }
        )

    def round(self) -> Round:
        before = [self._write_quiet(QUIET_BYTES) for _ in range(self._load.quiet_records)]
        began = time.monotonic()
        self._left, during = self._load.noisy_records, list[float]()
        while self._left or self._unacknowledged:
            during.append(self._write_quiet(2 * QUIET_BYTES))
        return Round(time.monotonic() - began, before, during)

    def _write_quiet(self, size: int) -> float:
        """Seconds until it is acknowledged, as librdkafka measures them."""
        began, count = time.monotonic(), len(self._latencies)
        self._send(self._load.quiet, self._quiet_sent, size)
        self._quiet_sent += 1
        while len(self._latencies) == count or time.monotonic() < began + INTERVAL_MS / 1000:
            self._fill()
            self._producer.poll(INTERVAL_MS / 1000)
        return self._latencies[-1]

    def _fill(self) -> None:
        while self._left and self._unacknowledged < BACKLOG_RECORDS:
            self._send(self._load.noisy, self._noisy_sent, NOISY_BYTES)
            self._noisy_sent += 1
            self._unacknowledged += 1
            self._left -= 1

    def _send(self, topic: str, number: int, size: int) -> None:
        value = numbered(number, size)
        self._producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=self._on_delivery)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        if message.topic() == self._load.noisy:
            self._unacknowledged -= 1
        else:
            self._latencies.append(message.latency() or 0.0)


def write_with_librdkafka(load: Load) -> list[Round]:
    producer = _Librdkafka(load)
    return [producer.round() for _ in range(load.rounds)]


def write_with_java(load: Load) -> list[Round]:
    return _run(tool_command(str(_JAVA), *load.arguments))


def write_with_franz_go(load: Load) -> list[Round]:
    return _run(["go", "run", ".", *load.arguments], cwd=_FRANZ)


def _run(command: Sequence[str], cwd: Path | None = None) -> list[Round]:
    done = subprocess.run(command, cwd=cwd, capture_output=True, timeout=2 * DEADLINE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    return [Round(**each) for each in json.loads(done.stdout)]
