"""The clients that the limits of a topic, a resource group or the total never hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quotas.resource_groups import parse_pattern


@dataclass(frozen=True, slots=True)
class Exemption:
    """Users and client ids, as patterns of `quotas.resource_groups`; one that matches is enough."""

    users: tuple[str, ...] = ()
    client_ids: tuple[str, ...] = ()

    def covers(self, user: str, client_id: str) -> bool:
        """Whether this client is exempt. O(patterns)."""
        return _matches(self.users, user) or _matches(self.client_ids, client_id)

    def __or__(self, other: Exemption) -> Exemption:
        return Exemption(self.users + other.users, self.client_ids + other.client_ids)

    def __str__(self) -> str:
        named = (("user", self.users), ("client-id", self.client_ids))
        return ", ".join(f"{kind}:{name}" for kind, names in named for name in names)


def _matches(patterns: Iterable[str], name: str) -> bool:
    return any(parse_pattern(text).matches(name) for text in patterns)
