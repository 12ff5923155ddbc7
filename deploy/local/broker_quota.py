"""Sets and removes the broker's *own* quotas (AlterClientQuotas, KIP-546).

By kio, since none of the Python clients here offers this request.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest, EntityData, EntryData, OpData
from kio.schema.alter_client_quotas.v1.response import AlterClientQuotasResponse
from kio.schema.describe_client_quotas.v1.request import ComponentData, DescribeClientQuotasRequest
from kio.schema.describe_client_quotas.v1.response import DescribeClientQuotasResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import f64, i8

from deploy.local.errors import BrokerQuotaError
from deploy.local.probe import ask
from deploy.local.settings import Address

_TIMEOUT_SECONDS = 10.0
_MATCH_EXACT = i8(0)
_POLL_SECONDS = 0.05

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Types with names, as `(("user", "alice"), ("client-id", None))`; None: the default."""


@contextmanager
def client_quotas(broker: Address, client_id: str, limits: Mapping[str, float]) -> Iterator[None]:
    """The quotas apply inside the block, and are removed after it. limits: key, as `producer_byte_rate` → its value.

    Raises BrokerQuotaError, OSError.
    """
    entity: Entity = (("client-id", client_id),)
    alter_quotas(broker, {entity: limits})
    try:
        _wait_until_in_force(broker, client_id, limits)
        yield
    finally:
        alter_quotas(broker, {entity: dict.fromkeys(limits)})
        _wait_until_in_force(broker, client_id, {})


def in_force(broker: Address, client_id: str) -> dict[str, float]:
    """The quotas that this broker has for exactly that client id: key → value."""
    component = ComponentData(entity_type="client-id", match_type=_MATCH_EXACT, match=client_id)
    request = DescribeClientQuotasRequest(components=(component,), strict=True)
    entries = ask(*broker, request, DescribeClientQuotasResponse, _TIMEOUT_SECONDS).entries or ()
    return {value.key: float(value.value) for entry in entries for value in entry.values}


def alter_quotas(broker: Address, quotas: Mapping[Entity, Mapping[str, float | None]]) -> None:
    """Sets the quotas of entities in one request, by key; None: removed. Raises BrokerQuotaError, OSError."""
    entries = tuple(
        EntryData(
            entity=tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity),
            ops=tuple(
                OpData(key=key, value=f64(float(value or 0)), remove=value is None) for key, value in limits.items()
            ),
        )
        for entity, limits in quotas.items()
    )
    request = AlterClientQuotasRequest(entries=entries, validate_only=False)
    for answer in ask(*broker, request, AlterClientQuotasResponse, _TIMEOUT_SECONDS).entries:
        if answer.error_code is not ErrorCode.none:
            names = ", ".join(f"{each.entity_type} {each.entity_name}" for each in answer.entity)
            raise BrokerQuotaError(f"quotas of {names}: {answer.error_message or answer.error_code.name}")


def _wait_until_in_force(broker: Address, client_id: str, limits: Mapping[str, float]) -> None:
    """An altered quota reaches the broker through the metadata log, a moment after the answer."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while (found := in_force(broker, client_id)) != limits:
        if time.monotonic() > deadline:
            raise BrokerQuotaError(
                f"client id {client_id} has the quotas {found} instead of {dict(limits)} after {_TIMEOUT_SECONDS:g} s"
            )
        time.sleep(_POLL_SECONDS)
