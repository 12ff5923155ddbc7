"""The clients that the limits of a topic, a resource group or the total neither charge nor hold."""

from dataclasses import dataclass
from functools import lru_cache

from quotas.resource_groups import parse_pattern


@dataclass(frozen=True, slots=True)
class Exemption:
    """Users and client ids, as patterns of `quotas.resource_groups`; one that matches is enough."""

    users: tuple[str, ...] = ()
    client_ids: tuple[str, ...] = ()

    def covers(self, user: str, client_id: str) -> bool:
        """Whether this client is exempt. O(patterns)."""
        return _matches(_parsed(self.users), user) or _matches(_parsed(self.client_ids), client_id)

    def __or__(self, other: "Exemption") -> "Exemption":
        return Exemption(self.users + other.users, self.client_ids + other.client_ids)

    def __str__(self) -> str:
        named = (("user", self.users), ("client-id", self.client_ids))
        return ", ".join(f"{kind}:{name}" for kind, names in named for name in names)


@lru_cache(maxsize=1024)
def _parsed(patterns: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    """The names and the prefixes. Cached: after a reload each client is compared once with each exemption."""
    parsed = [parse_pattern(text) for text in patterns]
    names = frozenset([pattern.text for pattern in parsed if not pattern.is_prefix])
    return names, tuple([pattern.text for pattern in parsed if pattern.is_prefix])


def _matches(parsed: tuple[frozenset[str], tuple[str, ...]], name: str) -> bool:
    names, prefixes = parsed
    return name in names or name.startswith(prefixes)
