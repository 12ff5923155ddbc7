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

Exactly one level applies to each limit: the first with this limit (a pair with only a `consumer_byte_rate` leaves
`producer_byte_rate` to the levels below), or the first that lifts it: then none does. A client without a client id is
one of the others, at the levels with `<default>` (in Kafka these skip it: it is unlimited unless its user is not). An
empty user, which Kafka does not have, matches no level with a user.

A million overrides are compact values (`override`) in one dict with strings as keys.
"""

from collections.abc import Iterator

from quotas.entity import DEFAULT, Default, Entity, Name
from quotas.registry.override import Applies, Override, apply, merged


class QuotaTable:
    """All configured quotas of users and client ids. Two entries of one entity are merged."""

    __slots__ = ("_overrides",)

    def __init__(self) -> None:
        self._overrides: dict[str, Override] = {}

    def put(self, entity: Entity, override: Override) -> None:
        """Add an entry of this entity."""
        key = _key(entity)
        self._overrides[key] = merged(self._overrides.get(key), override)

    def find(self, user: str, client_id: str | None) -> dict[str, Applies]:
        """The limits of this client, by name; None: those for any client id of the user."""
        found: dict[str, Applies] = {}
        lifted: set[str] = set()
        for origin, bucket in _levels(user, client_id):
            override = self._overrides.get(_key(origin))
            if override is not None:
                apply(override, found, lifted, bucket, bucket if origin == bucket else origin)  # one object: memory
        return found

    def find_for_bucket(self, limit_name: str, bucket: Entity) -> Applies | None:
        """The configured limit of an existing bucket; None if no level uses this bucket any more."""
        user, client_id = bucket.user, bucket.client_id
        found = self.find(user if isinstance(user, str) else "", client_id if isinstance(client_id, str) else None)
        applies = found.get(limit_name)
        return applies if applies is not None and applies.entity == bucket else None


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
