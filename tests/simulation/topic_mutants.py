"""More broken rules: of the topic of quotas, and of the disk guard."""

import asyncio
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from proxy.adaptive.disk_guard import DiskGuardTask
from proxy.config import quota_sources
from proxy.config.quota_sources import TOPIC
from proxy.internal_clients.quota_changes import QuotaChanges
from proxy.internal_clients.quotas_topic import QuotasTopic
from quotas.adaptive.disk_guard import Disk
from quotas.admission.limit_set import limit_set
from quotas.registry.registry import Registry
from quotas.stored.record import Record
from quotas.stored.table import Table
from simulation.draws import DISK_GUARD, QUOTAS_TOPIC, Options
from tests.simulation.mutants import MUTANTS, Patch, mutant

__all__ = ["MUTANTS"]

WITH_TOPIC, WITH_GUARD = Options(seconds=12, parts=QUOTAS_TOPIC), Options(seconds=12, parts=DISK_GUARD)


@mutant(seed=2, options=WITH_TOPIC)
def a_change_is_answered_before_it_is_read_back(patch: Patch) -> None:
    patch.setattr(QuotasTopic, "_has_read_back", True)


@mutant(seed=31, options=WITH_TOPIC)
def an_offset_of_a_topic_that_is_gone_counts(patch: Patch) -> None:
    """A change is answered because its offset was applied, of a topic that was deleted."""

    async def writing(self: QuotasTopic, records: Sequence[Record]) -> None:
        self._awaited_offset = await self.log.append(records)
        async with self._has_applied:
            await self._has_applied.wait_for(lambda: self._has_read_back)

    patch.setattr(QuotasTopic, "write", writing)


@mutant(seed=9, options=WITH_TOPIC)
def the_topic_is_stronger_than_the_file(patch: Patch) -> None:
    def merging(sources: Any) -> Any:
        return {name: sources[name] for name in sorted(sources, key=lambda name: bool(name == TOPIC))}

    patch.setattr(quota_sources, "merged", merging)


@mutant(seed=2, options=WITH_TOPIC)
def a_broken_record_ends_the_reading(patch: Patch) -> None:
    refuse, read = QuotasTopic._refuse, QuotasTopic._read
    ended: set[QuotasTopic] = set()

    def refusing(self: QuotasTopic, key: Any, error: Any) -> None:
        ended.add(self)
        refuse(self, key, error)

    async def reading(self: QuotasTopic, table: Table) -> bool:
        if self in ended:
            await asyncio.Event().wait()
        return await read(self, table)

    patch.setattr(QuotasTopic, "_refuse", refusing)
    patch.setattr(QuotasTopic, "_read", reading)


@mutant(seed=3, options=WITH_TOPIC)
def each_broken_record_is_reported(patch: Patch) -> None:
    """Anyone who can write to the topic can fill the log."""
    refuse = QuotasTopic._refuse

    def refusing(self: QuotasTopic, key: Any, error: Any) -> None:
        self._refusals._seen.clear()
        refuse(self, key, error)

    patch.setattr(QuotasTopic, "_refuse", refusing)


@mutant(seed=2, options=WITH_TOPIC)
def a_broken_record_removes_the_last_valid_one(patch: Patch) -> None:
    apply = Table.apply

    def applying(self: Table, offset: int, key: bytes | None, value: bytes | None) -> None:
        self._drop(key or b"")
        apply(self, offset, key, value)

    patch.setattr(Table, "apply", applying)


@mutant(seed=60, options=WITH_TOPIC)
def quotas_are_dropped_while_the_topic_is_away(patch: Patch) -> None:
    failed = QuotasTopic._failed
    dropping: set[Any] = set()

    def failing(self: QuotasTopic, reason: str, message: str, **options: Any) -> None:
        failed(self, reason, message, **options)
        if self._take is not None:
            dropping.add(asyncio.ensure_future(self._take(())))

    patch.setattr(QuotasTopic, "_failed", failing)


@mutant(seed=31, options=WITH_TOPIC)
def a_topic_that_was_made_anew_is_not_read(patch: Patch) -> None:
    follow = QuotasTopic._follow

    async def following(self: QuotasTopic) -> None:
        if self._retries.is_failing and self.is_read:
            await asyncio.Event().wait()
        await follow(self)

    patch.setattr(QuotasTopic, "_follow", following)


@mutant(seed=21, options=WITH_TOPIC)
def a_removal_is_ignored(patch: Patch) -> None:
    apply = Table.apply

    def applying(self: Table, offset: int, key: bytes | None, value: bytes | None) -> None:
        before = self._records.get(key or b"")
        apply(self, offset, key, value)
        if before is not None and key is not None and key not in self._records:
            self._records[key] = before

    patch.setattr(Table, "apply", applying)


@mutant(seed=2, options=WITH_TOPIC)
def what_is_described_is_old(patch: Patch) -> None:
    """Nodes describe the quotas before the latest change."""
    apply = QuotasTopic._apply
    shown: dict[QuotasTopic, Table] = {}
    latest: dict[QuotasTopic, Table] = {}

    async def applying(self: QuotasTopic) -> bool:
        shown[self], latest[self] = latest.get(self, Table()), deepcopy(self.table)
        return await apply(self)

    patch.setattr(QuotasTopic, "_apply", applying)
    patch.setattr(QuotaChanges, "table", property(lambda self: shown.get(self._topic, Table())))


# ---- the disk guard


@mutant(seed=11, options=WITH_GUARD)
def the_factors_of_other_members_are_ignored(patch: Patch) -> None:
    patch.setattr(DiskGuardTask, "_others", lambda self, now_ns: (1.0, 1))


@mutant(seed=54, options=WITH_GUARD)
def a_full_disk_stays_full(patch: Patch) -> None:
    take = Disk._take

    def taking(self: Disk, *arguments: Any) -> None:
        before = self.state
        take(self, *arguments)
        self.state = max(self.state, before)

    patch.setattr(Disk, "_take", taking)


@mutant(seed=62, options=WITH_GUARD)
def producers_never_stop(patch: Patch) -> None:
    """A full disk slows them only."""
    factor = Disk.factor
    patch.setattr(Disk, "factor", lambda self, passed, now_ns: max(0.5, factor(self, passed, now_ns)))


@mutant(seed=54, options=WITH_GUARD)
def brokers_that_do_not_answer_are_forgotten(patch: Patch) -> None:
    """The guard opens when the brokers refuse to tell how full they are."""
    take = DiskGuardTask.take

    def taking(self: DiskGuardTask, answers: Any, asked_ns: int) -> None:
        lost = {each.broker for each in answers if each.failure is not None}
        self.rules.disks = {key: disk for key, disk in self.rules.disks.items() if key[0] not in lost}
        self.rules._tightest = [each for each in self.rules._tightest if each.broker not in lost]
        take(self, answers, asked_ns)

    patch.setattr(DiskGuardTask, "take", taking)


@mutant(seed=8, options=WITH_GUARD)
def the_guard_holds_consumers(patch: Patch) -> None:
    refresh = Registry._refresh

    def refreshing(self: Registry, client: Any, now_ns: int | None) -> None:
        refresh(self, client, now_ns)
        if self.guard is not None:
            client.fetch = limit_set((self.guard.limit, *client.fetch.limits))

    patch.setattr(Registry, "_refresh", refreshing)
