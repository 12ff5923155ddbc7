"""Threads for what may never return: results, their number, and an end that waits for none of them."""

import asyncio
import subprocess
import sys
import threading

import pytest

from proxy.background.threads import OutsideThreads

HANGS = """
import asyncio, threading
from proxy.background.threads import OutsideThreads

async def main():
    begun = threading.Event()
    def hang():
        begun.set()
        threading.Event().wait()
    hanging = asyncio.get_running_loop().run_in_executor(OutsideThreads("disk"), hang)
    while not begun.is_set():
        await asyncio.sleep(0.01)

asyncio.run(main())
"""


async def test_results_and_errors() -> None:
    loop, threads = asyncio.get_running_loop(), OutsideThreads("outside", 2)
    assert await asyncio.gather(*(loop.run_in_executor(threads, divmod, n, 3) for n in range(20))) == [
        divmod(n, 3) for n in range(20)
    ]
    with pytest.raises(ZeroDivisionError):
        await loop.run_in_executor(threads, divmod, 1, 0)


async def test_one_that_hangs_leaves_the_others_and_their_number_is_bounded() -> None:
    loop, threads, may_end = asyncio.get_running_loop(), OutsideThreads("bounded", 2), threading.Event()
    hanging = loop.run_in_executor(threads, may_end.wait)
    assert await asyncio.gather(*(loop.run_in_executor(threads, int, n) for n in range(10))) == list(range(10))
    second, cancelled = loop.run_in_executor(threads, may_end.wait), loop.run_in_executor(threads, int, 1)
    assert len([each for each in threading.enumerate() if each.name.startswith("bounded")]) == 2
    cancelled.cancel()
    may_end.set()
    assert all(await asyncio.gather(hanging, second))


def test_the_end_of_the_process_waits_for_none() -> None:
    subprocess.run([sys.executable, "-c", HANGS], check=True, timeout=60)
