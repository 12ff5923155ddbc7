"""The live limits: finds those of a client in O(1), changes them while running, forgets who has been idle for an hour.

Two kinds of state, with two ways to end:

- `ClientLimits`, one per (user, client id) that somebody holds: kept weakly, so it ends with the last session that uses
  it, and clients that come under a thousand random ids leave nothing behind.
- `Limit`, one per bucket: outlives its sessions, so that nobody sheds debt by reconnecting, and ends after an hour
  without use (Kafka's sensors do the same), when it owes nothing and nobody waits.

`generation` grows whenever sessions have to look again (`resolve`), which is a dict lookup for each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from quotas.entry import CONSUMER_BYTE_RATE, LIMIT_NAMES, PRODUCER_BYTE_RATE
from quotas.limit import NO_LIMITS, Limit, LimitSet, limit_set
from quotas.precedence import QuotaTable
from quotas.rates import exact
from quotas.token_bucket import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from fractions import Fraction

    from quotas.entity import Entity
    from quotas.entry import QuotaEntry
    from quotas.precedence import Applies

IDLE_NS: Final = 3600 * 1_000_000_000
_SLOT_NS: Final = 60 * 1_000_000_000


class ClientLimits:
    """The limits of one (user, client id): one set per kind of data request. Shared by all sessions of that client.

    produce       charged with the bytes of Produce requests
    fetch         charged with the bytes of Fetch responses
    open_fetches  for the proxy to count in: fetches of this client that wait for their response
    """

    __slots__ = ("__weakref__", "client_id", "fetch", "generation", "open_fetches", "produce", "user")

    def __init__(self, user: str, client_id: str) -> None:
        self.user = user
        self.client_id = client_id
        self.produce: LimitSet = NO_LIMITS
        self.fetch: LimitSet = NO_LIMITS
        self.generation = -1
        self.open_fetches = 0


class Registry:
    """All quotas of this process.

    entries        what is configured; read once, not kept
    share          factor on every rate (`--quota-share`), taken as the decimal it is written as: 0.1 is one tenth
    burst_seconds  for entries that do not say it themselves

    Raises ValueError when the share is not above zero or the burst is below zero.
    """

    def __init__(
        self,
        entries: Iterable[QuotaEntry] = (),
        *,
        share: float | Fraction = 1,
        burst_seconds: float | Fraction = 1,
    ) -> None:
        self.generation = 0
        self._share = _exact_share(share)
        self._burst_ns = int(exact(burst_seconds) * 1_000_000_000)
        if self._burst_ns < 0:
            raise ValueError(f"burst_seconds must not be below zero, not {burst_seconds}")
        self._table = QuotaTable(entries)
        self._clients: WeakValueDictionary[tuple[str, str], ClientLimits] = WeakValueDictionary()
        self._limits: dict[str, dict[Entity, Limit]] = {name: {} for name in LIMIT_NAMES}
        # When to look at a limit again, by the minute: each is looked at once an hour, however many there are.
        self._new: list[Limit] = []
        self._due: dict[int, list[Limit]] = {}

    def __len__(self) -> int:
        """Configured entities."""
        return len(self._table)

    @property
    def share(self) -> Fraction:
        return self._share

    def resolve(self, user: str, client_id: str) -> ClientLimits:
        """The limits of this client: one object for all its sessions, and one bucket for each entity."""
        key = (user, client_id)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = ClientLimits(user, client_id)
        if client.generation != self.generation:
            applies = self._table.find(user, client_id)
            client.produce = self._set_of(PRODUCER_BYTE_RATE, applies)
            client.fetch = self._set_of(CONSUMER_BYTE_RATE, applies)
            client.generation = self.generation
        return client

    def replace(self, entries: Iterable[QuotaEntry], now_ns: int, *, share: float | Fraction | None = None) -> None:
        """Put these quotas in place of all there were, as one step: when the entries cannot be used nothing changes.

        A bucket whose owner still has that limit keeps its debt, at the new rate (see `quotas.token_bucket`). One whose
        owner has it no more, or at another level with another bucket, is dropped, and starts anew if it comes back.
        Sessions that wait on a dropped limit have to be woken by the caller.
        """
        new_share = self._share if share is None else _exact_share(share)
        table = QuotaTable(entries)
        self._table, self._share = table, new_share
        for name, limits in self._limits.items():
            for entity, limit in list(limits.items()):
                applies = table.find_for_bucket(name, entity)
                if applies is None:
                    del limits[entity]
                else:
                    limit.algorithm.set_rate(self._rate(applies), self._burst(applies), now_ns)
                    limit.origin, limit.mode = applies.origin, applies.mode
        self.generation += 1

    def limits_in_use(self) -> Iterator[Limit]:
        """Every limit that has a bucket now; a snapshot, safe against changes while it is read."""
        for limits in self._limits.values():
            yield from list(limits.values())

    def expire(self, now_ns: int) -> int:
        """Forget the limits that were idle for an hour; returns how many. Call it about once a minute.

        Costs O(limits that are due for a look): each is looked at once an hour.
        """
        now_slot = now_ns // _SLOT_NS
        for limit in self._new:
            self._look_again(limit, now_ns + IDLE_NS)
        self._new.clear()
        forgotten = 0
        for slot in [slot for slot in self._due if slot <= now_slot]:  # at most 62 slots exist
            for limit in self._due.pop(slot):
                limits = self._limits[limit.name]
                if limits.get(limit.entity) is not limit:
                    continue  # dropped by `replace`
                idle_until = limit.algorithm.last_ns + IDLE_NS
                if idle_until > now_ns:
                    self._look_again(limit, idle_until)
                elif limit.waiters.waiting or limit.debt_ns(now_ns):
                    self._look_again(limit, now_ns + IDLE_NS)
                else:
                    del limits[limit.entity]
                    forgotten += 1
        if forgotten:
            self.generation += 1  # a session that was idle as long must not charge a bucket that nobody else sees
        return forgotten

    def _look_again(self, limit: Limit, due_ns: int) -> None:
        self._due.setdefault(due_ns // _SLOT_NS + 1, []).append(limit)

    def _set_of(self, name: str, found: dict[str, Applies]) -> LimitSet:
        applies = found.get(name)
        if applies is None:
            return NO_LIMITS
        limit = self._limits[name].get(applies.entity)
        if limit is None:
            bucket = TokenBucket(self._rate(applies), self._burst(applies))
            limit = Limit(name, applies.entity, bucket, origin=applies.origin, mode=applies.mode)
            self._limits[name][applies.entity] = limit
            self._new.append(limit)
        return limit_set((limit,))

    def _rate(self, applies: Applies) -> int | Fraction:
        rate = applies.rate * self._share
        return rate.numerator if rate.denominator == 1 else rate

    def _burst(self, applies: Applies) -> int:
        return self._burst_ns if applies.burst_ns is None else applies.burst_ns


def _exact_share(share: float | Fraction) -> Fraction:
    fraction = exact(share)
    if fraction <= 0:
        raise ValueError(f"share must be above zero, not {share}")
    return fraction
