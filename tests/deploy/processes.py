"""Waiting for processes of others to end, by event instead of by sleeping."""

import os
import select
from pathlib import Path


def processes_naming(text: str) -> list[int]:
    """Ids of all processes with `text` in their command line, this one excepted."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:  # ended meanwhile
            continue
        if text.encode() in command:
            found.append(int(entry.name))
    return found


def has_ended_within(process_id: int, seconds: float) -> bool:
    """Waits for the end of a process, anybody's."""
    try:
        descriptor = os.pidfd_open(process_id)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)
