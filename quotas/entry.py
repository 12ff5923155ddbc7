"""One configured quota, as the flags and the quotas file give it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from quotas.entity import Entity

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
LIMIT_NAMES: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)
"""The limits that are enforced, in Kafka's spelling."""


@dataclass(frozen=True, slots=True)
class QuotaEntry:
    """What one entity may do.

    entity          whom it is for; names may be `DEFAULT`
    limits          name (one of `LIMIT_NAMES`) to rate in units per second, exact, before any share; at least one
    mode            throttle mode of this entity, None: the proxy's
    algorithm       None: the proxy's
    burst_seconds   the bucket's size as seconds of the rate, None: the registry's
    """

    entity: Entity
    limits: Mapping[str, int | Fraction] = field(hash=False)
    mode: str | None = None
    algorithm: str | None = None
    burst_seconds: int | Fraction | None = None
