"""One line for a person from what Spark's JVM raises."""

import re

# "org.apache.kafka.common.errors.TimeoutException: Topic orders not present in metadata after 60000 ms."
_KAFKA = re.compile(r"org\.apache\.kafka\.(?:\w+\.)*\w+(?:Exception|Error): .*")
# "[STREAM_FAILED] Query [id = ..., runId = ...] terminated with exception: "
_STREAM = re.compile(r"^\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: ")


def reason(error: Exception) -> str:
    """The Kafka client's own error where there is one, else the first line."""
    try:
        text = str(error)  # a call into the JVM
    except OSError:
        return "Spark's JVM has gone"
    if kafka := _KAFKA.search(text):
        return kafka[0].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _STREAM.sub("", lines[0]) if lines else type(error).__name__
