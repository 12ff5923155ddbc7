"""Kafka's own console and perf tools, each run to its end."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from deploy.local.tools import tool_command

TOOLS = "org.apache.kafka.tools."
RUN_SECONDS = 150.0


def run_tool(name: str, *arguments: str) -> str:
    """What one tool printed: a class of `org.apache.kafka.tools`, or of `kafka.admin` with that in its name.

    Raises AssertionError when it failed, or did not end.
    """
    command = tool_command(name if name.startswith("kafka.") else TOOLS + name, *arguments)
    try:
        done = subprocess.run(command, capture_output=True, timeout=RUN_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{name} did not end: {error.stdout!r} {error.stderr!r}") from error
    complaint = done.stderr.decode(errors="replace")
    assert done.returncode == 0, f"{name}: exit code {done.returncode}: {complaint[-2000:]}"
    return done.stdout.decode(errors="replace")


def perf_producer(
    bootstrap: str,
    topic: str,
    *properties: str,
    records: int,
    size: int,
    throughput: int = -1,
    file: Path | None = None,
    jvm: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """ProducerPerformance to its end, however that is; it tells of each disconnect. file: of more properties; jvm: of
    Java's own options.
    """
    command = tool_command(
        *(f"{TOOLS}ProducerPerformance", "--topic", topic, "--num-records", f"{records}", "--record-size", f"{size}"),
        *("--throughput", f"{throughput}", *(() if file is None else ("--producer.config", f"{file}"))),
        *("--producer-props", f"bootstrap.servers={bootstrap}", "max.block.ms=20000", *properties),
    )
    command[1:1] = ["-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.NetworkClient=info", *jvm]
    return subprocess.run(command, capture_output=True, timeout=RUN_SECONDS, check=False, text=True)
