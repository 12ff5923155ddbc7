"""Kafka's eight levels: which configured quota applies to one (user, client id).

From the strongest (DefaultQuotaCallback of ClientQuotaManager, KIP-55), with the scope of the bucket:

    1  (user, client-id)            the pair
    2  (user, <default>)            the pair
    3  (user)                       the user, over all client ids
    4  (<default>, client-id)       the pair
    5  (<default>, <default>)       the pair
    6  (<default>) as a user        the user, over all client ids
    7  (client-id)                  the client id, over all users
    8  (<default>) as a client id   the client id, over all users

At most one level applies to each limit: the first that sets it (a pair with only a `consumer_byte_rate` leaves
`producer_byte_rate` to the levels below), unless an earlier one lifts it. A client without a client id is treated like
any other at the levels with `<default>` (in Kafka, these skip it, so only a limit of its user applies). An empty user,
which Kafka does not have, matches no level with a user.

One source may be bounded by those that are stronger: if these limit a client at any level, that limit applies, too. So
the bounded source, whoever writes it, can only lower what the stronger ones allow. A bucket that clients share has one
rate: that of its own two levels (3 and 6, or 7 and 8), whatever a source has for, or lifts from, one of their pairs.

A million overrides are compact values (`override`) in one dict with strings as keys.
"""

from collections.abc import Container, Iterator
from dataclasses import replace

from quotas.entity import DEFAULT, Default, Entity, Name
from quotas.registry.override import Applies, Override, apply, merged


class QuotaTable:
    """All configured quotas of users and client ids. Two entries of one entity are merged.

    bounded, bounding  the name of the bounded source, and those that bound it; none: no source is
    """

    __slots__ = ("_bounded", "_bounding", "_overrides")

    def __init__(self, bounded: str = "", bounding: Container[str] = ()) -> None:
        self._overrides: dict[str, Override] = {}
        self._bounded = bounded
        self._bounding = bounding

    def put(self, entity: Entity, override: Override) -> None:
        """Add an entry of this entity."""
        key = _key(entity)
        self._overrides[key] = merged(self._overrides.get(key), override)

    def find(self, user: str, client_id: str | None) -> tuple[dict[str, Applies], dict[str, Applies]]:
        """The limits of this client, by name; None: those for any client id of the user. And those of bounding sources
        that apply beside them, because they are at another level.
        """
        found, bounds = self._found(user, client_id, None), dict[str, Applies]()
        if self._bounding:
            for name, bound in self._found(user, client_id, self._bounding).items():
                self._bound(name, bound, found, bounds)
            if user and client_id is not None:
                # Clients that share a bucket differ in the levels of their pairs; the levels below decide its rate.
                for shared in (self.find(user, None)[0], self.find("", client_id)[0]):
                    for limits in (found, bounds):
                        limits.update((name, each) for name, each in shared.items() if _is_in(limits, name, each))
        return found, bounds

    def _bound(self, name: str, bound: Applies, found: dict[str, Applies], bounds: dict[str, Applies]) -> None:
        """Apply the limit of a bounding source."""
        applies = found.get(name)
        if applies is not None and applies.source != self._bounded:
            return
        if applies is None or (applies.entity == bound.entity and applies.rate >= bound.rate):
            found[name] = bound
        elif applies.entity == bound.entity:  # with the stronger source's burst
            found[name] = replace(applies, options=bound.options)
        else:
            bounds[name] = bound

    def find_for_bucket(self, limit_name: str, bucket: Entity) -> Applies | None:
        """The configured limit of an existing bucket; None if no level uses this bucket any more."""
        user, client_id = bucket.user, bucket.client_id
        all_found = self.find(user if isinstance(user, str) else "", client_id if isinstance(client_id, str) else None)
        of_name = (found.get(limit_name) for found in all_found)
        return next((applies for applies in of_name if applies is not None and applies.entity == bucket), None)

    def _found(self, user: str, client_id: str | None, sources: Container[str] | None) -> dict[str, Applies]:
        found: dict[str, Applies] = {}
        lifted: set[str] = set()
        for origin, bucket in _levels(user, client_id):
            override = self._overrides.get(_key(origin))
            if override is not None:
                entity = bucket if origin == bucket else origin  # one object: memory
                apply(override, found, lifted, bucket, entity, sources, self._bounded)
        return found


def _is_in(limits: dict[str, Applies], name: str, applies: Applies) -> bool:
    """Whether the limit of this name has the same bucket there."""
    return name in limits and limits[name].entity == applies.entity


def _levels(user: str, client_id: str | None) -> Iterator[tuple[Entity, Entity]]:
    """Every level that could match, strongest first: the configured entity, and that of the bucket."""
    users: tuple[Name, ...] = (user, DEFAULT) if user else ()
    client_ids: tuple[Name, ...] = () if client_id is None else (client_id, DEFAULT)
    for each in users:
        for client in client_ids:
            yield Entity(each, client), Entity(user, client_id)
        yield Entity(each), Entity(user)
    for client in client_ids:
        yield Entity(None, client), Entity(None, client_id)


def _key(entity: Entity) -> str:
    """One string instead of a tuple: half the memory. The lengths make it unambiguous."""
    return _part(entity.user) + _part(entity.client_id)


def _part(name: Name | None) -> str:
    if name is None:
        return "-"
    return "*" if isinstance(name, Default) else f"{len(name)}:{name}"
