"""How often consumer groups rebalance, and who joins them, as far as this proxy sees: each rebalance raises the group's
generation (or epoch), which its members state.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Final

from protocol.group_requests import GroupEvent
from proxy.observability.labels import label_value

WINDOW_NS: Final = 60_000_000_000
#: Names come from the wire.
MAX_GROUPS: Final = 500
_MAX_EVENTS: Final = 64
_MAX_CLIENTS: Final = 100

Name = tuple[str, str]
"""User and client id."""


def _events() -> deque[tuple[int, Any]]:
    return deque(maxlen=_MAX_EVENTS)


@dataclass(slots=True, eq=False)
class _Group:
    """epochs    those seen, when each was seen first
    joined    client and address of members that have joined, new ones; `rejoined`: of all others
    clients   when each sent its latest request
    """

    epochs: deque[tuple[int, int]] = field(default_factory=_events)
    joined: deque[tuple[int, str]] = field(default_factory=_events)
    rejoined: deque[tuple[int, str]] = field(default_factory=_events)
    clients: dict[Name, int] = field(default_factory=dict)

    def rebalances(self, now_ns: int) -> int:
        """In the last minute, since this proxy knows the group."""
        since_ns, (_, last) = now_ns - WINDOW_NS, self.epochs[-1]
        before = [epoch for at_ns, epoch in self.epochs if at_ns <= since_ns]
        return last - (before[-1] if before else self.epochs[0][1])


class Groups:
    """Shared by all connections."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    def seen(self, event: GroupEvent, name: Name, peer: str, now_ns: int, *, is_join: bool) -> None:
        """A client has sent a request of a group. `peer`: its address and port."""
        group = self._groups.pop(event.group, None) or _Group()
        self._groups[event.group] = group  # as the latest
        if len(self._groups) > MAX_GROUPS:
            del self._groups[next(iter(self._groups))]
        if name in group.clients or len(group.clients) < _MAX_CLIENTS:
            group.clients[name] = now_ns
        who = f"{label_value(name[1])} from {peer.rpartition(':')[0]}"
        if event.joins:
            group.joined.append((now_ns, who))
        elif is_join:
            group.rejoined.append((now_ns, who))
        if event.epoch:
            self._put_epoch(group.epochs, event.epoch, now_ns)

    def of_client(self, name: Name, now_ns: int) -> list[dict[str, Any]]:
        """The groups that a client was in in the last minute: name, rebalances, and how often who joined."""
        since_ns = now_ns - WINDOW_NS
        return [
            {
                "group": label_value(group),
                "rebalances_60s": found.rebalances(now_ns) if found.epochs else 0,
                "joined_60s": _counted(found.joined, since_ns),
                "rejoined_60s": _counted(found.rejoined, since_ns),
            }
            for group, found in self._groups.items()
            if found.clients.get(name, since_ns) > since_ns
        ]

    def _put_epoch(self, epochs: deque[tuple[int, int]], epoch: int, now_ns: int) -> None:
        """Members of one group may be an epoch apart for a while; a group that was deleted begins anew."""
        if epochs and epoch < epochs[-1][1] and now_ns - epochs[-1][0] > WINDOW_NS:
            epochs.clear()
        if not epochs or epoch > epochs[-1][1]:
            epochs.append((now_ns, epoch))


def _counted(events: deque[tuple[int, str]], since_ns: int) -> dict[str, int]:
    """The most frequent first."""
    return dict(Counter(who for at_ns, who in events if at_ns > since_ns).most_common(8))
