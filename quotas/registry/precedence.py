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

A million overrides are compact values (`override`) in one dict per level with plain strings as keys.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from quotas.entity import DEFAULT, Default, Entity
from quotas.registry.override import Applies, Override, apply, merged

_ANY_PAIR: Final = Entity(DEFAULT, DEFAULT)
_ANY_USER: Final = Entity(DEFAULT)
_ANY_CLIENT: Final = Entity(None, DEFAULT)


class QuotaTable:
    """All configured quotas of users and client ids, by level. Two entries of one entity are merged."""

    __slots__ = (
        "_any_client",
        "_any_pair",
        "_any_user",
        "_by_client",
        "_by_pair",
        "_by_user",
        "_pair_any",
        "_pair_user",
    )

    def __init__(self, overrides: Iterable[tuple[Entity, Override]] = ()) -> None:
        self._by_pair: dict[str, Override] = {}  # level 1
        self._pair_user: dict[str, Override] = {}  # 2, by user
        self._by_user: dict[str, Override] = {}  # 3
        self._pair_any: dict[str, Override] = {}  # 4, by client id
        self._any_pair: dict[str, Override] = {}  # 5, by ""
        self._any_user: dict[str, Override] = {}  # 6, by ""
        self._by_client: dict[str, Override] = {}  # 7
        self._any_client: dict[str, Override] = {}  # 8, by ""
        for entity, override in overrides:
            self.put(entity, override)

    def find(self, user: str, client_id: str | None) -> dict[str, Applies]:
        """The limits of this client, by name; None: those for any client id of the user."""
        found: dict[str, Applies] = {}
        lifted: set[str] = set()
        for override, entity, origin in self._matches(user, client_id):
            if override is not None:
                apply(override, found, lifted, entity, origin)
        return found

    def find_for_bucket(self, limit_name: str, bucket: Entity) -> Applies | None:
        """The configured limit of an existing bucket; None if no level uses this bucket any more."""
        user, client_id = bucket.user, bucket.client_id
        found = self.find(user if isinstance(user, str) else "", client_id if isinstance(client_id, str) else None)
        applies = found.get(limit_name)
        return applies if applies is not None and applies.entity == bucket else None

    def _matches(self, user: str, client_id: str | None) -> Iterator[tuple[Override | None, Entity, Entity]]:
        """Every level that could match, strongest first: its override or None, the bucket's entity, the origin."""
        if user and client_id is not None:
            pair = Entity(user, client_id)
            yield self._by_pair.get(_pair_key(user, client_id)), pair, pair
            yield self._pair_user.get(user), pair, Entity(user, DEFAULT)
        if user:
            only_user = Entity(user)
            yield self._by_user.get(user), only_user, only_user
        if user and client_id is not None:
            yield self._pair_any.get(client_id), pair, Entity(DEFAULT, client_id)
            yield self._any_pair.get(""), pair, _ANY_PAIR
        if user:
            yield self._any_user.get(""), only_user, _ANY_USER
        if client_id is not None:
            only_client = Entity(None, client_id)
            yield self._by_client.get(client_id), only_client, only_client
            yield self._any_client.get(""), only_client, _ANY_CLIENT

    def put(self, entity: Entity, override: Override) -> None:
        """Add an entry of this entity."""
        level, key = self._place(entity)
        level[key] = merged(level.get(key), override)

    def _place(self, entity: Entity) -> tuple[dict[str, Override], str]:
        """The dict and key of an entity."""
        match entity.user, entity.client_id:
            case Default(), Default():
                return self._any_pair, ""
            case Default(), None:
                return self._any_user, ""
            case None, Default():
                return self._any_client, ""
            case str(user), str(client_id):
                return self._by_pair, _pair_key(user, client_id)
            case str(user), None:
                return self._by_user, user
            case str(user), _:
                return self._pair_user, user
            case None, str(client_id):
                return self._by_client, client_id
        return self._pair_any, str(entity.client_id)


def _pair_key(user: str, client_id: str) -> str:
    """One string instead of a tuple: half the memory. The length makes it unambiguous."""
    return f"{len(user)}:{user}{client_id}"
