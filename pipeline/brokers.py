"""Whether brokers answer and a topic exists, before a job starts: Spark would retry for minutes."""

from collections.abc import Mapping
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.failures import InputError, reason

TIMEOUT_SECONDS: Final = 15.0
_LAST_MS: Final = 2**63 - 1


def require_topic(
    spark: SparkSession,
    bootstrap_servers: str,
    topic: str,
    options: Mapping[str, str],
    *,
    timeout_s: float = TIMEOUT_SECONDS,
) -> None:
    """Ask Spark's Kafka source for the records of the end of time: it asks for the topic's offsets, and reads none.

    options: Kafka client settings. Raises InputError.
    """
    settings = {
        "default.api.timeout.ms": f"{timeout_s * 1000:.0f}",
        "request.timeout.ms": f"{timeout_s * 500:.0f}",
        **options,
        "bootstrap.servers": bootstrap_servers,
    }
    reader = spark.read.format("kafka").options(**{f"kafka.{name}": value for name, value in settings.items()})
    reader = reader.option("subscribe", topic).option("fetchOffset.numRetries", "1")
    reader = reader.option("startingTimestamp", f"{_LAST_MS}").option("startingOffsetsByTimestampStrategy", "latest")
    try:
        reader.load().isEmpty()
    except (PySparkException, Py4JError) as error:
        text, cause = str(error), _cause(error)
        if "UnknownTopicOrPartition" in text:
            said = f"topic {topic} at {bootstrap_servers}: it does not exist; create it, or correct --topic"
        elif "ConfigException" in text:
            said = f"{bootstrap_servers}: {cause}; correct --bootstrap-servers or --option"
        else:
            said = (
                f"no broker answers at {bootstrap_servers} ({cause}); start it, or correct --bootstrap-servers, "
                "--topic or --option"
            )
        raise InputError(said) from error


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Those of Spark's options that are settings of Kafka's client, without their prefix `kafka.`."""
    return {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}


def _cause(error: Exception) -> str:
    """The text of Kafka's own error, without its class."""
    return reason(error).partition("Exception: ")[2] or reason(error)
