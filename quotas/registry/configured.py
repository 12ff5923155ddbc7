"""All configured entries, found by entity in O(1)."""

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Final

from quotas import limit_kinds as kinds
from quotas.entity import DEFAULT, TOTAL, AnyEntity, Default, Entity, EntityKind, Name, Named
from quotas.entry import QuotaEntry
from quotas.limit_options import Yields
from quotas.registry.networks import Networks, is_network
from quotas.registry.override import Applies, Compactor, Override, apply, limits_of, merged
from quotas.registry.precedence import QuotaTable
from quotas.resource_groups import GroupIndex, ResourceGroup

_TOTAL_THRESHOLDS: Final = frozenset(kinds.THRESHOLDS.values())
_OF_RECORDS: Final = _TOTAL_THRESHOLDS | {kinds.BYTES_IN_RATE, kinds.MESSAGES_IN_RATE}


class Configured:
    """All entries, by the name of their source, the weakest first. If two entries have the same entity, limits and
    group members of the later one replace those of the same name. What `bounded`, if it is one of the sources, has for
    a client, a topic or a place applies only as far as the sources after it allow.

    lines             of entries in a file, by source and entity
    of_total          the limits of all traffic
    networks          the networks that have entries
    counts_records    whether some limit counts records
    counts_mutations  whether some limit counts created and deleted partitions
    limits_topics     whether some limit needs the name of the topic that records are produced to
    rejects           whether some entry refuses records
    yielding          the resource groups whose `producer_byte_rate` moves, by name
    """

    def __init__(self, sources: Mapping[str, Iterable[QuotaEntry]], bounded: str = "") -> None:
        names = list(sources)
        bounding = frozenset(names[names.index(bounded) + 1 :] if bounded in sources else ())
        self.clients = QuotaTable(bounded, bounding)
        #: Sources that are applied before all: see `find`.
        self._first = (bounding, None) if bounding else (None,)
        self._named: dict[EntityKind, dict[Name, Override]] = {kind: {} for kind in EntityKind}
        compactor = Compactor()
        limit_names: set[str] = set()
        groups: list[ResourceGroup] = []
        yielding: dict[str, Yields | None] = {}
        self.lines: dict[tuple[str, AnyEntity], int] = {}
        self.rejects = self.limits_topics = False
        for source, entries in sources.items():
            for entry in entries:
                self.rejects |= _may_reject(entry)
                self.limits_topics |= _limits_topics(entry)
                if entry.group is not None:
                    groups.append(entry.group)
                    yielding[entry.group.name] = entry.options.yields
                if entry.line:
                    self.lines[source, entry.entity] = entry.line
                self._put(entry.entity, compactor.compact(entry, source))
                limit_names.update(entry.limits)
        self.groups = GroupIndex(groups)
        self.yielding = {name: each for name, each in yielding.items() if each is not None}
        addresses = [name for name in self._named[EntityKind.IP] if isinstance(name, str)]
        self.networks = Networks(filter(is_network, addresses))
        self.of_total = self.find(EntityKind.TOTAL, "")
        self.counts_records = not limit_names.isdisjoint(_OF_RECORDS)
        self.counts_mutations = kinds.CONTROLLER_MUTATION_RATE in limit_names

    def limits_of(self, kind: EntityKind, name: str = "") -> dict[str, int | Fraction]:
        """The limits of a topic, group, place or the total, by name; empty if it has no entry of its own."""
        override = self._named[kind].get(name)
        return {} if override is None else limits_of(override)

    def _put(self, entity: AnyEntity, override: Override) -> None:
        """Add an entry of an entity."""
        if isinstance(entity, Entity):
            self.clients.put(entity, override)
        else:
            named = self._named[entity.kind]
            named[entity.name] = merged(named.get(entity.name), override)

    def find(self, kind: EntityKind, *names: str) -> dict[str, Applies]:
        """The limits of an entity other than a client. If it has several names, each limit and its bucket are those of
        the first name with this limit; a limit of the default has the bucket of the first name. Sources that bound
        another one come first: it counts for limits that they do not have.
        """
        found: dict[str, Applies] = {}
        lifted: set[str] = set()
        default = self._named[kind].get(DEFAULT)
        for sources in self._first:
            for name in names:
                override = self._named[kind].get(name)
                if override is not None:
                    owner = TOTAL if kind is EntityKind.TOTAL else Named(kind, name)
                    apply(override, found, lifted, owner, owner, sources)
            if default is not None:
                apply(default, found, lifted, Named(kind, names[0]), Named(kind, DEFAULT), sources)
        return found

    def yielding_to(self, user: str, client_id: str) -> tuple[tuple[str, int], ...]:
        """The resource groups that yield to a client, with the target of its responses. A client that is a member of
        such a group yields itself: it is not protected from that group.
        """
        if not self.yielding:
            return ()
        groups = self.groups.groups_of_client(user, client_id)
        return tuple(
            (name, each.target_ns)
            for name, each in self.yielding.items()
            if name not in groups and (each.group in groups or each.clients.covers(user, client_id))
        )

    def of_groups(self, names: Iterable[str]) -> list[dict[str, Applies]]:
        """The limits of each of these resource groups."""
        return [self.find(EntityKind.RESOURCE_GROUP, name) for name in names]

    def find_for_bucket(self, limit_name: str, bucket: AnyEntity) -> Applies | None:
        """The configured limit of an existing bucket; None if none uses this bucket any more."""
        if isinstance(bucket, Entity):
            return self.clients.find_for_bucket(limit_name, bucket)
        name = "" if isinstance(bucket.name, Default) else bucket.name
        names = self.networks.names_of(name) if bucket.kind is EntityKind.IP else (name,)
        applies = self.find(bucket.kind, *names).get(limit_name)
        # A network may now have the limit of an address. A default has buckets for addresses, but not for networks.
        is_other = applies is not None and bucket != (applies.origin if is_network(name) else applies.entity)
        return None if is_other else applies

    def topics_with(self, limit_name: str) -> Iterator[tuple[str, int | Fraction]]:
        """Every topic with its own entry of this limit, and the value."""
        for topic, override in self._named[EntityKind.TOPIC].items():
            rate = limits_of(override).get(limit_name)
            if rate is not None and isinstance(topic, str):
                yield topic, rate


def _limits_topics(entry: QuotaEntry) -> bool:
    if entry.group is not None:
        return bool(entry.group.topics)
    of_topic = isinstance(entry.entity, Named) and entry.entity.kind is EntityKind.TOPIC
    return of_topic or not _TOTAL_THRESHOLDS.isdisjoint(entry.limits)


def _may_reject(entry: QuotaEntry) -> bool:
    """Whether it may refuse records: by `action=reject`, or by thresholds without another action."""
    if entry.options.rejects is not None:
        return entry.options.rejects
    return any(name in kinds.THRESHOLDS or name in kinds.THRESHOLDS.values() for name in entry.limits)
