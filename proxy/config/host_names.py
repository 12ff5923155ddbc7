"""Host names to addresses, for quotas of an `ip` that is written as a name.

A resolver may take half a minute for one name. So names are looked up in threads, and a reading of quotas waits for
`PATIENCE_SECONDS` for all of its names together. A name that is not answered by then has the addresses that it had
before. If it never had any, its limits wait for the answer: the entry keeps the name, which is that of no client.
"""

import socket
from collections import OrderedDict
from collections.abc import Collection
from concurrent.futures import Future
from threading import Lock
from time import monotonic
from typing import Final, NamedTuple

from proxy.background.threads import OutsideThreads
from proxy.config.values import parse_host
from quotas.problems import InvalidValue

PATIENCE_SECONDS: Final = 1.0
MAX_KNOWN: Final = 10_000
"""Names whose latest look-up is remembered."""

_threads: Final = OutsideThreads("names of quotas", 16)
_lock: Final = Lock()
_latest: Final[OrderedDict[str, "_LookUp"]] = OrderedDict()


class _LookUp(NamedTuple):
    """`before`: the addresses that were known when it began; None: it is the first."""

    answer: Future[list[str]]
    before: list[str] | None


def addresses_of(name: str) -> list[str]:
    """The addresses of a host as literals, those of IPv4 first (as Java has it by default); none if there are none.

    Blocks while the system's resolver is asked.
    """
    try:
        found = socket.getaddrinfo(parse_host(name), None, type=socket.SOCK_STREAM)
    except (InvalidValue, OSError, UnicodeError):
        return []
    found.sort(key=lambda info: info[0] != socket.AF_INET)
    return [str(info[4][0]) for info in found]


class HostNames:
    """The names of one reading of quotas. `pending`: those that wait for their first answer."""

    def __init__(self) -> None:
        self.pending: set[str] = set()
        self._until: float | None = None

    def addresses_of(self, name: str) -> list[str] | None:
        """As the function; None: it is not known yet."""
        if self._until is None:
            self._until = monotonic() + PATIENCE_SECONDS
        look_up = _begun(name)
        try:
            found: list[str] | None = look_up.answer.result(max(0, self._until - monotonic()))
        except TimeoutError:
            found = look_up.before
        if found is None:
            self.pending.add(name)
        return found


def are_answered(names: Collection[str]) -> bool:
    """Whether there are names, and all of them have an answer."""
    with _lock:
        look_ups = [_latest.get(name) for name in names]
    return bool(look_ups) and all(each is None or each.answer.done() for each in look_ups)


def _begun(name: str) -> _LookUp:
    """The look-up under way, or a new one."""
    with _lock:
        found = _latest.pop(name, None)
        if found is None or found.answer.done():
            found = _LookUp(_threads.submit(addresses_of, name), found and found.answer.result())
        _latest[name] = found
        if len(_latest) > MAX_KNOWN:
            _latest.popitem(last=False)
    return found
