"""asyncio's own event loop on the simulated network: only what waits for the kernel is replaced.

Callbacks that are due at the same time run in the order that asyncio promises, which is that of `call_soon`. What it
leaves open is drawn: the order in which sockets are reported, how many of them in one round, and which of two timers
with the same time comes first.
"""

import asyncio
import selectors
from asyncio import Future
from asyncio.events import _set_running_loop
from collections.abc import Callable, Mapping
from typing import Any, Final

from simulation.kernel import SECOND, Event, Kernel, nothing
from simulation.network import SimSocket

_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE
DYING_ROUNDS: Final = 100


class SimSelector(selectors.BaseSelector):
    """Level-triggered. `changed`: descriptors that may be ready, because something has happened at their socket."""

    def __init__(self, kernel: Kernel, sockets: Mapping[int, SimSocket]) -> None:
        self._kernel = kernel
        self._sockets = sockets
        self._keys: dict[int, selectors.SelectorKey] = {}
        self.changed: dict[int, None] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, fileobj, events, data)
        self.changed[fileobj] = None
        return key

    modify = register

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        self.changed.pop(fileobj, None)
        return self._keys.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def close(self) -> None:
        self._keys.clear()

    def ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        found = []
        for fd in list(self.changed):
            key, sock = self._keys.get(fd), self._sockets.get(fd)
            if key is not None and sock is not None:
                ready = (key.events & _READ and sock.is_readable) | (key.events & _WRITE and 2 * sock.is_writable)
                if ready:
                    found.append((key, ready))
                    continue
            del self.changed[fd]
        return found

    def select(self, _timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = self.ready()
        if len(found) > 1:
            random = self._kernel.random
            random.shuffle(found)
            if random.random() < 0.1:
                del found[random.randint(1, len(found)) :]
        return found


def _age(task: "asyncio.Task[Any]") -> tuple[int, str]:
    """By the number in its name: a set of tasks has another order in each run."""
    name = task.get_name()
    return len(name), name


class SimLoop(asyncio.SelectorEventLoop):
    """The loop of one process. The kernel runs one round of it at a time (`_round`).

    errors   contexts of exceptions that reached the loop
    """

    #: Of asyncio's base class, which are not in its stubs.
    _ready: Any
    _scheduled: Any
    _run_once: Any

    def __init__(self, kernel: Kernel, new_socket: Callable[[int], SimSocket]) -> None:
        self.sockets: dict[int, SimSocket] = {}
        self._kernel = kernel
        self._new_socket = new_socket
        self._changes = SimSelector(kernel, self.sockets)
        super().__init__(self._changes)
        self._clock_resolution = 1e-9
        self.signals: dict[int, Callable[[], object]] = {}
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.errors.append(context))
        self.is_stopped = self.is_dead = False
        self.upstream: Any = None
        self._woken: Event | None = None
        self._wakes_ns = 0

    # ---- rounds

    def wake(self, at_ns: int = 0) -> None:
        """Run a round at this time, or earlier if one is planned."""
        if self.is_stopped or (self._woken is not None and self._wakes_ns <= at_ns):
            return
        if self._woken is not None:
            self._woken.cancel()
        self._wakes_ns = at_ns
        self._woken = self._kernel.at(at_ns, self._round)

    def watch(self, sock: SimSocket) -> None:
        """This socket belongs to the process."""
        fd = sock.fd
        self.sockets[fd] = sock

        def changed() -> None:
            if self.sockets.get(fd) is sock:
                self._changes.changed[fd] = None
                self.wake()

        sock.on_ready = changed

    def _round(self) -> None:
        self._woken = None
        if self.is_stopped:
            return
        self._run_now()
        self.plan()

    def _run_now(self) -> None:
        _set_running_loop(self)
        try:
            self._run_once()
        finally:
            _set_running_loop(None)

    def plan(self) -> None:
        """Wake up when there is something to do. A round takes a little time."""
        if self._ready or self._changes.ready():
            self.wake(self._kernel.now_ns + self._kernel.random.randint(1_000, 50_000))
        elif self._scheduled:
            self.wake(int(self._scheduled[0]._when * SECOND) + 1)

    def time(self) -> float:
        return self._kernel.now_ns / SECOND

    def die(self) -> None:
        """Reset all connections; then let each task end, without a network, files and time."""
        self.is_stopped = self.is_dead = True
        for sock in list(self.sockets.values()):
            sock.abort()
        self.set_exception_handler(nothing)
        for _ in range(DYING_ROUNDS):
            tasks = asyncio.all_tasks(self)
            if not tasks:
                break
            for task in sorted(tasks, key=_age):
                task.cancel()
            self._run_now()
        self._ready.clear()
        self._scheduled.clear()

    # ---- what would reach the machine

    def _make_self_pipe(self) -> None:
        self._ssock = self._csock = None

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        self.wake()

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self.signals[sig] = lambda: callback(*args)

    def run_in_executor(self, _executor: Any, func: Callable[..., Any], *args: Any) -> "Future[Any]":  # type: ignore[override]
        """At once."""
        future = self.create_future()
        if self.is_dead:
            future.set_exception(OSError("the process was killed"))
            return future
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whoever waits for the result raises it
            future.set_exception(error)
        return future

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        if options.get("sock") is None:
            options["sock"] = self._new_socket(SimSocket.family)
            options["sock"].bind((host, port))
            options["sock"].listen()
        return await super().create_server(protocol_factory, **options)
