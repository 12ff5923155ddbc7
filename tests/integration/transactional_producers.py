"""Transactional producers of two libraries: numbered records, one transaction after the other.

The program for Java (`TransactionalProducer.java`) has these arguments

    BOOTSTRAP CLIENT_ID TOPIC PARTITIONS RECORDS,RECORDS,... RECORD_BYTES TRANSACTION_TIMEOUT_MS

with the number of records of each transaction. It prints {"errors": [...], "committed": [...]}: what failed, and the
number of the first record of each transaction whose commit succeeded.
"""

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from deploy.local.tools import tool_command
from tests.integration.records import numbered

PARTITIONS = 2
RECORD_BYTES = 10_000
RUN_SECONDS = 150
_JAVA = Path(__file__).with_name("TransactionalProducer.java")


@dataclass
class Transactions:
    """committed: numbers of first records; errors: "step: error", each once."""

    errors: list[str] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)

    def failed(self, step: str, error: str) -> None:
        if f"{step}: {error}" not in self.errors:
            self.errors.append(f"{step}: {error}")


Transact: TypeAlias = Callable[[str, str, str, Sequence[int], int], Transactions]
"""Bootstrap servers, client id, topic, records of each transaction, `transaction.timeout.ms`."""


def transact_with_java(
    bootstrap: str, client_id: str, topic: str, records: Sequence[int], timeout_ms: int, partitions: int = PARTITIONS
) -> Transactions:
    counts = ",".join(map(str, records))
    command = tool_command(
        str(_JAVA), bootstrap, client_id, topic, *map(str, (partitions, counts, RECORD_BYTES, timeout_ms))
    )
    done = subprocess.run(command, capture_output=True, timeout=RUN_SECONDS, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    return Transactions(**json.loads(done.stdout))


def transact_with_librdkafka(
    bootstrap: str, client_id: str, topic: str, records: Sequence[int], timeout_ms: int
) -> Transactions:
    done = Transactions()

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            done.failed("send", error.name())

    def open_producer() -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": client_id,
                "transactional.id": client_id,
                "transaction.timeout.ms": timeout_ms,
                "batch.size": 100_000,
            }
        )
        producer.init_transactions(RUN_SECONDS)
        return producer

    def aborted(producer: Producer, error: KafkaError) -> Producer:
        """The producer that goes on: a new one where the coordinator has fenced this one."""
        try:
            if error.txn_requires_abort():
                producer.abort_transaction(RUN_SECONDS)
                return producer
        except KafkaException as caught:
            done.failed("abort", caught.args[0].name())
        return open_producer()

    producer, first = open_producer(), 0
    for count in records:
        try:
            producer.begin_transaction()
            for number in range(first, first + count):
                producer.produce(
                    topic, numbered(number, RECORD_BYTES), partition=number % PARTITIONS, on_delivery=on_delivery
                )
                producer.poll(0)
            producer.commit_transaction(RUN_SECONDS)
            done.committed.append(first)
        except KafkaException as caught:
            error: KafkaError = caught.args[0]
            done.failed("commit", error.name())
            producer = aborted(producer, error)
        first += count
    producer.close()
    return done


TRANSACT: dict[str, Transact] = {"java": transact_with_java, "librdkafka": transact_with_librdkafka}
