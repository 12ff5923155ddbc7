"""Threads for what may wait for something outside of the process: a resolver, a disk, a network file system.

Their number is bounded, and the process does not wait for them when it ends. The threads of `asyncio.to_thread` and of
a `ThreadPoolExecutor` would be joined then: one resolver that takes 20 s, or one hung disk, would keep SIGTERM from
ending the process. `asyncio.to_thread` is for computing only.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any


class OutsideThreads(Executor):
    """An executor of at most `most` daemon threads, for `run_in_executor`: one for each purpose, so that a hung one
    stops nothing else. It needs no shutdown.
    """

    def __init__(self, name: str, most: int = 1) -> None:
        self._name = name
        self._most = most
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._count = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            self._jobs.put((future, lambda: fn(*args, **kwargs)))
            if self._count < self._most and not self._idle.acquire(blocking=False):
                threading.Thread(target=self._work, name=f"{self._name}_{self._count}", daemon=True).start()
                self._count += 1
        return future

    def _work(self) -> None:
        while True:
            self._run(*self._jobs.get())
            self._idle.release()

    def _run(self, future: Future[Any], job: Callable[[], Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = job()
        except BaseException as error:  # noqa: BLE001 - whoever waits for the result raises it
            future.set_exception(error)
            del future, job  # a cycle: the error's traceback refers to this call
        else:
            future.set_result(result)
