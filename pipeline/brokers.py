"""Whether brokers answer and a topic exists, before a job starts: Spark would retry for minutes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from pipeline.failures import reason

TIMEOUT_SECONDS: Final = 15.0


class BrokersError(Exception):
    """No broker answers, it refuses the client, or the topic is missing; the text is one line with the next step."""


@contextmanager
def admin_client(
    spark: SparkSession, bootstrap_servers: str, options: Mapping[str, str], *, timeout_s: float = TIMEOUT_SECONDS
) -> Iterator[Any]:
    """The Java Admin client of Spark's Kafka connector, on the driver, connected.

    options: Kafka client settings. Raises BrokersError if none of the addresses answers in time.
    """
    jvm: Any = spark._jvm
    settings = jvm.java.util.HashMap()
    timeouts = {"default.api.timeout.ms": f"{timeout_s * 1000:.0f}", "request.timeout.ms": f"{timeout_s * 500:.0f}"}
    for name, value in {**timeouts, **options, "bootstrap.servers": bootstrap_servers}.items():
        settings[name] = value
    try:
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(settings)
    except Py4JError as error:
        raise BrokersError(f"{bootstrap_servers}: {_cause(error)}; correct --bootstrap-servers or --option") from error
    try:
        try:
            admin.describeCluster().nodes().get()
        except Py4JError as error:
            raise BrokersError(
                f"no broker answers at {bootstrap_servers} ({_cause(error)}); start it, or correct --bootstrap-servers"
            ) from error
        yield admin
    finally:
        admin.close()


def require_topic(spark: SparkSession, bootstrap_servers: str, topic: str, options: Mapping[str, str]) -> int:
    """The number of partitions of a topic. Raises BrokersError, also if the topic does not exist."""
    with admin_client(spark, bootstrap_servers, options) as admin:
        names = spark._jvm.java.util.Collections.singleton(topic)
        try:
            return len(admin.describeTopics(names).allTopicNames().get()[topic].partitions())
        except Py4JError as error:
            cause = "it does not exist" if "UnknownTopicOrPartition" in str(error) else _cause(error)
            raise BrokersError(
                f"topic {topic} at {bootstrap_servers}: {cause}; create it, or correct --topic"
            ) from error


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Those of Spark's options that are settings of Kafka's client, without their prefix `kafka.`."""
    return {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}


def _cause(error: Exception) -> str:
    """The text of Kafka's own error, without its class."""
    return reason(error).partition("Exception: ")[2] or reason(error)
