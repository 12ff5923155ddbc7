"""One line for a person from what Spark's JVM raises. While the JVM runs: the text of an error is there."""

import re
import sys
from collections.abc import Callable

# "org.apache.kafka.common.errors.TimeoutException: Topic orders not present in metadata after 60000 ms."
_KAFKA = re.compile(r"org\.apache\.kafka\.(?:\w+\.)*\w+(?:Exception|Error): .*")
_CAUSE = re.compile(r"^\s*Caused by: (.+)", re.MULTILINE)
# "[STREAM_FAILED] Query [id = ..., runId = ...] terminated with exception: "
_STREAM = re.compile(r"^\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: ")


class InputError(Exception):
    """What a user gave is wrong or missing; the text is one line with the next step."""


class JobFailedError(Exception):
    """A Spark job failed, or its JVM has gone; the text is the reason in one line."""


def exit_code(run: Callable[[], int], stopped: str) -> int:
    """Of a command: 2 for what a user gave, 1 for a failed job, 130 after Ctrl-C, when it says `stopped`; else its own.

    An error is one line on stderr.
    """
    try:
        return run()
    except KeyboardInterrupt:
        print(stopped, file=sys.stderr)
        return 130
    except (InputError, JobFailedError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1 if isinstance(error, JobFailedError) else 2


def reason(error: Exception) -> str:
    """The Kafka client's own error where there is one, or the cause that Java names, of several the innermost; else the
    first line.
    """
    try:
        text = str(error)  # a call into the JVM
    except (OSError, AssertionError):
        return "Spark's JVM has gone"
    if causes := _KAFKA.findall(text) or _CAUSE.findall(text):
        return str(causes[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _STREAM.sub("", lines[0]) if lines else type(error).__name__
