"""Kafka's own command line tools, run from the cached jars: no Kafka distribution is needed."""

from deploy.local.artifacts import KAFKA_4_3_1, KAFKA_TOOLS, class_path
from deploy.local.java import find_java


def tool_command(class_name: str, *arguments: str) -> list[str]:
    """The command line of one tool of Kafka 4.3.1, for `subprocess`. Fetches its jars when they are not here yet.

    For instance `org.apache.kafka.tools.TopicCommand`, `org.apache.kafka.tools.ProducerPerformance`,
    `org.apache.kafka.tools.consumer.ConsoleConsumer`, `kafka.admin.ConfigCommand`. Warnings go to stderr.
    """
    options = [
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-XX:-UsePerfData",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    ]
    return [find_java(), *options, "-cp", class_path(KAFKA_4_3_1, KAFKA_TOOLS), class_name, *arguments]
