"""Reads a topic back and compares every record with what was meant to be written."""

import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

_BATCH = 10_000
_EXAMPLES = 3
_RETRY_SECONDS = 0.1
_NO_LEADER_YET = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)


class TopicUnreadableError(Exception):
    """A topic could not be read to its end; the text names topic and cause."""


@dataclass(slots=True)
class Tally:
    """What a topic held, measured against the expected keys and checksums."""

    records: int = 0
    value_bytes: int = 0
    duplicates: int = 0
    missing: int = 0
    unexpected: int = 0
    wrong_checksum: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def nothing_lost(self) -> bool:
        """Every key there, every value as it was written. Duplicates are no loss: Spark's sink is at-least-once."""
        return self.missing == self.unexpected == self.wrong_checksum == 0


def compare(records: Iterable[tuple[bytes | None, bytes | None]], expected: Mapping[bytes, int]) -> Tally:
    """Count (key, value) records against `expected`: key to CRC-32 of the value. A few keys at fault are named."""
    tally = Tally()
    outstanding = set(expected)
    for key, value in records:
        tally.records += 1
        tally.value_bytes += len(value or b"")
        checksum = expected.get(key) if key is not None else None
        if checksum is None:
            tally.unexpected += 1
            _example(tally, f"unexpected key {key!r}")
            continue
        if zlib.crc32(value or b"") != checksum:
            tally.wrong_checksum += 1
            _example(tally, f"wrong checksum at key {key!r}")
        if key in outstanding:
            outstanding.discard(key)
        else:
            tally.duplicates += 1
    tally.missing = len(outstanding)
    for key in sorted(outstanding)[:_EXAMPLES]:
        _example(tally, f"missing key {key!r}")
    return tally


def read_topic(
    bootstrap_servers: str, topic: str, client_id: str, stall_timeout_seconds: float = 30.0
) -> Iterable[tuple[bytes | None, bytes | None]]:
    """Every (key, value) that stands in `topic` now, partition by partition.

    Raises TopicUnreadableError when nothing arrives for `stall_timeout_seconds` before the end is reached.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "client.id": client_id,
            "group.id": client_id,
            "enable.auto.commit": False,
            "check.crcs": True,
            "log_level": 2,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=stall_timeout_seconds).topics[topic].partitions
        # A producer without transactions leaves no gaps: the end offsets say how many records there are.
        remaining = sum(_end_offset(consumer, topic, number, stall_timeout_seconds) for number in partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        heard_ns = time.monotonic_ns()
        while remaining > 0:
            messages = consumer.consume(min(_BATCH, remaining), timeout=1.0)
            if messages:
                heard_ns = time.monotonic_ns()
            elif time.monotonic_ns() - heard_ns > stall_timeout_seconds * 1e9:
                raise TopicUnreadableError(f"topic {topic}: {remaining:,} records did not arrive in time")
            for message in messages:
                if error := message.error():
                    raise TopicUnreadableError(f"topic {topic}: {error.str()}")
                yield message.key(), message.value()
            remaining -= len(messages)
    except KafkaException as error:
        raise TopicUnreadableError(f"topic {topic}: {error.args[0].str()}") from error
    finally:
        consumer.close()


def _end_offset(consumer: Consumer, topic: str, partition: int, timeout_seconds: float) -> int:
    """A partition that has just been created may have no leader yet, which this librdkafka call does not wait for."""
    deadline_ns = time.monotonic_ns() + int(timeout_seconds * 1e9)
    while True:
        try:
            end: int = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout_seconds)[1]
        except KafkaException as error:
            if error.args[0].code() not in _NO_LEADER_YET or time.monotonic_ns() > deadline_ns:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return end


def _example(tally: Tally, text: str) -> None:
    if len(tally.examples) < _EXAMPLES:
        tally.examples.append(text)
