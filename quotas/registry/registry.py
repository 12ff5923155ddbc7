"""The live limits: finds those of a client, a topic or a connection in O(1), changes them while running.

Two kinds of state, with two ways to end:

- `ClientLimits`, one per (user, client id): ends when no session has used it for one to two hours, or sooner if there
  are very many names (see `quotas.registry.client_table`).
- `Limit`, one per bucket: outlives its sessions, so a reconnect does not clear debt, and ends after an hour without use
  (like Kafka's sensors), if it has no debt and no waiters.

`generation` grows whenever sessions must call `resolve` again, a dict lookup each. So no change needs to find the
affected sessions.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import chain

from quotas import limit_kinds as kinds
from quotas.adaptive.producer_guard import ProducerGuard
from quotas.admission.client_limits import ClientLimits, ProducerIdLimit, TopicLimits
from quotas.admission.limit import Limit, limits_for
from quotas.admission.limit_set import limit_set
from quotas.algorithms.algorithm import AlgorithmSettings
from quotas.algorithms.leased_bucket import LeasedBucket
from quotas.algorithms.producer_ids import ProducerIdQuota
from quotas.entity import AnyEntity, EntityKind
from quotas.entry import QuotaEntry
from quotas.limit_options import Yields
from quotas.rates import exact
from quotas.registry.client_table import ClientTable
from quotas.registry.configured import Configured
from quotas.registry.limit_store import Granter, LimitStore
from quotas.registry.networks import Networks
from quotas.registry.override import Applies
from quotas.registry.topic_table import TopicTable


class Registry:
    """All quotas of this process.

    entries    the configured quotas; read once, not kept
    share      factor on every rate (`--quota-share`), as its written decimal: 0.1 is one tenth
    settings   the algorithms of entries without their own
    observers  called after each change of the configuration, so that held frames are checked again
    rate_observers
               called with a limit whose rate was granted, so that its waiters are served when they are due now
    reads_topics  whether Produce requests of all clients are parsed for their topics, even if no limit needs them
    topics     those in use, and seed 004's thresholds
    rejects    whether some entry refuses records (`action=reject`), or did so before a change, because refused batches
               come back
    guard      the disk guard while it slows producers; otherwise None: see `guard_producers`

    Raises ValueError if the share is not above zero, ThresholdError if thresholds of topics exceed their total.
    """

    def __init__(
        self,
        entries: Iterable[QuotaEntry] | Configured = (),
        *,
        share: float | Fraction = 1,
        settings: AlgorithmSettings | None = None,
        reads_topics: bool = False,
    ) -> None:
        self._reads_topics = reads_topics
        self.guard: ProducerGuard | None = None
        self._may_have_refused = False
        self.generation = 0
        self.observers: list[Callable[[], None]] = []
        self.rate_observers: list[Callable[[Limit], None]] = []
        settings = AlgorithmSettings() if settings is None else settings
        self._store = LimitStore(_configured(entries), settings, _exact_share(share))
        self.topics = TopicTable(self._store)
        self._clients = ClientTable()
        self.rejects = self._store.configured.rejects

    @property
    def share(self) -> Fraction:
        return self._store.share

    @property
    def learns_topics(self) -> bool:
        """Whether some limit needs the names of topic ids, or numbers of partitions."""
        configured = self._store.configured
        return configured.counts_records or configured.counts_mutations

    @property
    def limits_topics(self) -> bool:
        """Whether some limit needs the name of the topic that records are produced to."""
        return self._store.configured.limits_topics

    @property
    def networks(self) -> Networks:
        """The networks that have limits; another object after each change of the quotas."""
        return self._store.configured.networks

    @property
    def yielding(self) -> Mapping[str, Yields]:
        """The resource groups whose rate moves, by name."""
        return self._store.configured.yielding

    # ---- looking up

    def yielding_to(self, user: str, client_id: str) -> tuple[tuple[str, int], ...]:
        """The resource groups that yield to a client, with the target of its responses in ns."""
        return self._store.configured.yielding_to(user, client_id)

    def resolve(self, user: str, client_id: str, now_ns: int | None = None) -> ClientLimits:
        """The limits of this client: one object for all its sessions. Without a time the number of limits is not
        bounded (see `quotas.registry.limit_store`).
        """
        client, has_rotated = self._clients.get(user, client_id)
        if has_rotated:
            self.generation += 1
        if client.generation != self.generation:
            self._refresh(client, now_ns)
        return client

    def is_in_use(self, limit: Limit) -> bool:
        """Whether this limit was not replaced, forgotten or removed since its look-up."""
        if limit.name == kinds.DISK_GUARD:
            return self.guard is not None and limit is self.guard.limit
        return self._store.is_in_use(limit)

    def topic(self, name: str, now_ns: int, *, exists: bool = False) -> TopicLimits:
        """The limits of records produced to this topic. `exists`: whether a broker has confirmed the topic (see
        `TopicTable.confirm`).
        """
        return self.topics.get(name, self.generation, now_ns, exists)

    def place_limit(self, limit_name: str, kind: EntityKind, now_ns: int, *names: str) -> Limit | None:
        """The limit of an address, a listener (each under any of its names) or the total; None without one."""
        applies = self.configured_value(limit_name, kind, *names)
        return None if applies is None else self._store.get(limit_name, applies, now_ns)

    def configured_value(self, limit_name: str, kind: EntityKind, *names: str) -> Applies | None:
        """Like `place_limit`, but makes no bucket."""
        return self._store.configured.find(kind, *names).get(limit_name)

    def source_of(self, limit_name: str, owner: AnyEntity) -> str:
        """The source (see `Configured`) of a limit that is in use, with its line if it is a file; "" if the entry has
        been removed.
        """
        configured = self._store.configured
        applies = configured.find_for_bucket(limit_name, owner)
        if applies is None:
            return "--disk-guard" if limit_name == kinds.DISK_GUARD else ""
        line = configured.lines.get((applies.source, applies.origin))
        return f"{applies.source}:{line}" if line else applies.source

    def entry_of(self, limit_name: str, owner: AnyEntity) -> str:
        """The entity, as in a SPEC, of the entry that set a limit in use; "" if the entry has been removed."""
        applies = self._store.configured.find_for_bucket(limit_name, owner)
        return "" if applies is None else applies.origin.spec

    def limits_in_use(self) -> Iterator[Limit]:
        """Every limit with a bucket; safe against changes during iteration. O(limits)."""
        return iter(self._store) if self.guard is None else chain((self.guard.limit,), self._store)

    def produced(self, now_ns: int) -> Iterator[tuple[str, str, float]]:
        """Records under a total threshold: unit, outcome, and the one-minute rate per second."""
        for unit, name in (("bytes", kinds.BYTES_THRESHOLD), ("messages", kinds.MESSAGES_THRESHOLD)):
            thresholds = self.topics.thresholds[name]
            if thresholds.total is not None:
                yield unit, "accepted", thresholds.accepted.one_minute_rate(now_ns)
                yield unit, "erroneous", thresholds.erroneous.one_minute_rate(now_ns)
                yield unit, "throttled", thresholds.throttled.one_minute_rate(now_ns)

    # ---- changing

    def grant_by(self, granter: Granter) -> None:
        """Let this one set the rates of all limits. Call it before any limit is looked up."""
        self._store.granter = granter

    def replace(
        self,
        entries: Iterable[QuotaEntry] | Configured,
        now_ns: int,
        *,
        share: float | Fraction | None = None,
        most: int = sys.maxsize,
    ) -> None:
        """Replace all quotas in one step; nothing changes if it raises, as the class does.

        A bucket keeps its debt, at the new rate (see `token_bucket`), if its entity still has the limit. It is dropped
        if the limit was removed, is at another level with another bucket, or has another algorithm.
        O(entries and limits in use); entries that are `Configured` already cost nothing. `most`: limits that are
        updated at once. The others are updated at their next use; call `refresh` until all are.
        """
        new_share = self.share if share is None else _exact_share(share)
        configured = _configured(entries)
        self.topics.check(configured)
        self.generation += 1
        self.rejects |= configured.rejects
        self._store.replace(configured, new_share, now_ns)
        self._store.refresh(most)
        self.topics.replace()
        for observer in self.observers:
            observer()

    def guard_producers(self, guard: ProducerGuard | None, *, may_have_refused: bool = True) -> None:
        """Add the limit of the disk guard to those of all producers that are not exempt; None: remove it. While it may
        have refused batches, requests are parsed, because batches that follow have to wait for them.
        """
        self.guard, self._may_have_refused = guard, may_have_refused
        self.generation += 1
        for observer in self.observers:
            observer()

    def set_rate(
        self, limit: Limit, rate: int | Fraction, burst_ns: int, until_ns: int, floor: int | Fraction, now_ns: int
    ) -> None:
        """Grant a rate to one limit until `until_ns`; then it earns its floor. O(1): its debt stays, no other limit and
        no session is touched. Its bucket is a `LeasedBucket` (`AlgorithmSettings.leases`); TypeError for another one.
        """
        if not isinstance(limit.algorithm, LeasedBucket):
            raise TypeError(f"no rate can be granted to {limit!r}")
        limit.algorithm.grant(rate, burst_ns, until_ns, floor, now_ns)
        for observer in self.rate_observers:
            observer(limit)

    def forget_debts(self, now_ns: int, most: int) -> None:
        """Reset the limits in debt: no client has to wait for what a dry run has let through. Known producer ids stay
        known. `most`: as for `replace`; the caller notifies the observers.
        """
        self.generation += 1
        self._store.forget_debts(now_ns)
        self._store.refresh(most)

    def refresh(self, most: int) -> bool:
        """Update `most` limits after such a change. Returns whether some are left."""
        return self._store.refresh(most)

    def expire(self, now_ns: int) -> int:
        """Remove the limits that were idle for an hour; returns their number, with that of the limits that were dropped
        for new clients (see `quotas.registry.limit_store`). Call it about once a minute.

        Costs O(limits that are due for a check): each is checked once an hour.
        """
        topics = self.topics.expire(now_ns)
        forgotten = self._store.expire(now_ns)
        if self._clients.expire(now_ns) or forgotten or topics:
            self.generation += 1  # an idle session must not charge a removed bucket
        return forgotten

    # ---- inside

    def _refresh(self, client: ClientLimits, now_ns: int | None) -> None:
        configured = self._store.configured
        user, client_id = client.key
        own, bounds = configured.clients.find(user, client_id)
        of_groups = configured.of_groups(configured.groups.groups_of_client(user, client_id))
        found = [own, bounds, *of_groups, configured.of_total]

        def limits(name: str, found: list[dict[str, Applies]] = found) -> tuple[Limit, ...]:
            return limits_for(user, client_id, self._store.get_all(name, found, now_ns))

        guard = self.guard
        guarded = () if guard is None or not guard.applies_to(user, client_id) else (guard.limit,)
        produce = guarded + limits(kinds.PRODUCER_BYTE_RATE)
        client.set_produce(limit_set(produce), limit_set(limits(kinds.REQUEST_RATE)))
        client.fetch = limit_set(limits(kinds.CONSUMER_BYTE_RATE))
        client.mutations = limit_set(limits(kinds.CONTROLLER_MUTATION_RATE))
        client.bytes_in = limits(kinds.BYTES_IN_RATE, of_groups)
        client.messages_in = limits(kinds.MESSAGES_IN_RATE, of_groups)
        client.producer_ids = self._producer_ids(own | bounds, now_ns)
        counts_records = configured.counts_records or client.producer_ids is not None
        client.walks = counts_records or self._reads_topics or self.rejects or self._may_have_refused
        client.generation = self.generation

    def _producer_ids(self, own: dict[str, Applies], now_ns: int | None) -> ProducerIdLimit | None:
        if kinds.PRODUCER_IDS_RATE not in own:
            return None
        limit = self._store.get(kinds.PRODUCER_IDS_RATE, own[kinds.PRODUCER_IDS_RATE], now_ns)
        known = limit.algorithm
        assert isinstance(known, ProducerIdQuota)  # noqa: S101 - its only algorithm
        return ProducerIdLimit(limit, known)


def _configured(entries: Iterable[QuotaEntry] | Configured) -> Configured:
    return entries if isinstance(entries, Configured) else Configured({"": entries})


def _exact_share(share: float | Fraction) -> Fraction:
    fraction = exact(share)
    if fraction <= 0:
        raise ValueError(f"share must be above zero, not {share}")
    return fraction
