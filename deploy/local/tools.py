"""Kafka's own command line tools, and programs with its clients, run from the cached jars: no Kafka distribution is
needed.
"""

from pathlib import Path

from deploy.local.artifacts import (
    BROKERS,
    KAFKA_4_3_1,
    KAFKA_4_4_0,
    KAFKA_TOOLS,
    KAFKA_TOOLS_4_4,
    ArtifactSet,
    class_path,
)
from deploy.local.java import find_java


def tool_command(class_name: str, *arguments: str) -> list[str]:
    """The command line of one tool of Kafka 4.3.1, for `subprocess`. Fetches its jars when they are not here yet.

    For instance `org.apache.kafka.tools.TopicCommand`, `org.apache.kafka.tools.ProducerPerformance`,
    `org.apache.kafka.tools.consumer.ConsoleConsumer`, `kafka.admin.ConfigCommand`. Warnings go to stderr.
    """
    return _command((KAFKA_4_3_1, KAFKA_TOOLS), class_name, *arguments)


def program_command(version: str, program: Path, *arguments: str) -> list[str]:
    """The command line of a program in one file of Java, with the clients of this version of Kafka, a key of
    `artifacts.BROKERS`. Warnings go to stderr.
    """
    return _command((BROKERS[version],), str(program), *arguments)


def configs_command(version: str, program: Path) -> list[str]:
    """The command line of a program in one file of Java that is given two classes of this version of Kafka, 4.3.1 or
    4.4.0: kafka-configs, and the one by which it exits.
    """
    of_kafka = "org.apache.kafka"
    if version == "4.4.0":
        classes = f"{of_kafka}.tools.ConfigCommand", f"{of_kafka}.common.utils.internals.Exit"
        return _command((KAFKA_4_4_0, KAFKA_TOOLS_4_4), str(program), *classes)
    return _command(
        (KAFKA_4_3_1, KAFKA_TOOLS), str(program), "kafka.admin.ConfigCommand", f"{of_kafka}.common.utils.Exit"
    )


def _command(sets: tuple[ArtifactSet, ...], *what: str) -> list[str]:
    options = [
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-XX:-UsePerfData",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    ]
    return [find_java(), *options, "-cp", class_path(*sets), *what]
