"""Changes of single limits, made while running: what one is, and which ones cannot be made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from quotas.entity import Default, Named
from quotas.limit_kinds import BYTES_THRESHOLD, LIMIT_KINDS, MESSAGES_THRESHOLD, Client

if TYPE_CHECKING:
    from collections.abc import Iterable
    from fractions import Fraction

    from quotas.entity import AnyEntity

_NOT_OF_DEFAULTS: Final = (BYTES_THRESHOLD, MESSAGES_THRESHOLD)


@dataclass(frozen=True, slots=True)
class Change:
    """One limit of one entity, set to `rate` (units per second, before any share), or with None taken away."""

    entity: AnyEntity
    limit_name: str
    rate: int | Fraction | None


def check_changes(changes: Iterable[Change]) -> None:
    """Raises ValueError for a limit that does not exist or that its entity cannot have, and for a rate not above zero.

    This is what the engine cannot do without; Kafka's rules, with its messages, are in `quotas.spec.limits`.
    """
    for change in changes:
        if not _can_have(change.entity, change.limit_name):
            raise ValueError(f"{change.entity} cannot have a limit {change.limit_name!r}")
        if change.rate is not None and change.rate <= 0:
            raise ValueError(f"{change.limit_name} of {change.entity} must be above zero, not {change.rate}")


def _can_have(entity: AnyEntity, limit_name: str) -> bool:
    kind = LIMIT_KINDS.get(limit_name)
    if kind is None:
        return False
    if isinstance(entity, Named):
        is_default = isinstance(entity.name, Default)
        return entity.kind in kind.whose and not (is_default and limit_name in _NOT_OF_DEFAULTS)
    return Client.ANY in kind.whose or (Client.USER in kind.whose and entity.client_id is None)
