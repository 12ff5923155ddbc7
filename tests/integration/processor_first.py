"""Processes that get a processor as soon as they have work, so that a test measures their work and not their wait."""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def processor_first(pids: Iterable[int]) -> Iterator[bool]:
    """Within it all threads of these processes have the lowest real-time priority: above that of everything else.

    Gives False, and changes nothing, where the system does not permit it (Linux wants CAP_SYS_NICE).
    """
    with ExitStack() as stack:
        try:
            for pid in pids:
                for thread in map(int, os.listdir(f"/proc/{pid}/task")):
                    os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(1))
                    stack.callback(_give_back, thread)
        except PermissionError:
            stack.close()
            yield False
        else:
            yield True


def _give_back(thread: int) -> None:
    if Path(f"/proc/{thread}").exists():
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
