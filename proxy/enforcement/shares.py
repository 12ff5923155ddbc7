"""Warns of each client whose share of a limit is so small that it may time out or drop records (`proxy.config.floor`).

A producer has one data connection to each broker. So the most throttled connections to one port, for one limit, are
about the number of producers that share it.
"""

import logging
from collections import Counter, deque
from typing import Final

from proxy.config.floor import LIMITS_WITH_FLOOR, REMEDY, smallest_share
from proxy.enforcement.data_frame import DataFrame
from proxy.enforcement.holds import Delay
from proxy.enforcement.identity import Identity
from proxy.observability.logs import event
from quotas.admission.limit import Limit

#: Clients that are warned of, each once. After an hour with so many all of them may be warned of again.
MAX_CLIENTS: Final = 1_000
#: Clients that are checked in one round of the event loop: about 1 ms, if each is warned of.
CHECKED_AT_ONCE: Final = 20
HOUR_NS: Final = 3600 * 1_000_000_000

_log = logging.getLogger("proxy.enforcement")


class Shares:
    """Call `add` for each connection, then `check`; again and again. Call `warn` between them as often as you like."""

    def __init__(self) -> None:
        #: Throttled connections, by limit and port.
        self._connections: Counter[tuple[Limit, tuple[str, ...]]] = Counter()
        #: The clients of each limit: user and client id, and their software. Only those not warned of yet.
        self._clients: dict[Limit, dict[tuple[str, str], str]] = {}
        #: Those that are still to be checked, with the number of producers of the limit.
        self._due: deque[tuple[Limit, int, tuple[str, str], str]] = deque()
        self._warned: set[tuple[str, str]] = set()
        self._forgets_ns = 0

    def add(self, identity: Identity, wait: DataFrame | Delay | None, listener: tuple[str, ...], now_ns: int) -> None:
        """A connection and what it waits for; `listener`: the names of the port that its client connected to."""
        if now_ns >= self._forgets_ns:
            self._forgets_ns = now_ns + HOUR_NS
            if len(self._warned) >= MAX_CLIENTS:
                self._warned.clear()
        notice = identity.notice
        if wait is not None:
            limit: Limit | None = wait.limit
        else:
            limit = notice.limit if notice.until_ns > now_ns else None
        if limit is None or limit.name not in LIMITS_WITH_FLOOR:
            return
        self._connections[limit, listener] += 1
        client = identity.client.key
        if client not in self._warned and len(self._warned) < MAX_CLIENTS:
            self._clients.setdefault(limit, {})[client] = identity.software

    def check(self) -> None:
        """All connections have been added: `warn` checks their clients. Begins anew."""
        if not self._due:
            producers: dict[Limit, int] = {}
            for (limit, _), count in self._connections.items():
                producers[limit] = max(count, producers.get(limit, 0))
            for limit, clients in self._clients.items():
                self._due.extend([(limit, producers[limit], *client) for client in clients.items()])
        self._connections.clear()
        self._clients.clear()

    def warn(self) -> None:
        """Check some clients, and warn of those whose share is too small."""
        due, warned = self._due, self._warned
        for _ in range(min(CHECKED_AT_ONCE, len(due))):
            limit, producers, client, software = due.popleft()
            share = limit.rate / producers
            floor, text = smallest_share(software)
            if share < floor and client not in warned and len(warned) < MAX_CLIENTS:
                self._warn(client, limit, producers, share, text)

    def _warn(self, client: tuple[str, str], limit: Limit, producers: int, share: float, floor: str) -> None:
        self._warned.add(client)
        event(
            _log,
            logging.WARNING,
            "share_below_floor",
            user=client[0],
            client_id=client[1],
            limit=limit.name,
            entity=str(limit.entity),
            limit_value=limit.rate,
            producers=producers,
            share=round(share),
            smallest_share=floor,
            effect="requests may time out, and records expire in the client",
            hint=REMEDY,
        )
