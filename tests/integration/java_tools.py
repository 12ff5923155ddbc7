"""Kafka's own console and perf tools, each run to its end."""

import subprocess

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
