"""The handler of each treatment."""

from collections.abc import Mapping
from typing import Final

from protocol.apis import Treatment
from proxy.streams.connection import Context
from proxy.streams.handlers.authenticate import Authenticate
from proxy.streams.handlers.client_quotas import ClientQuotas
from proxy.streams.handlers.end_transaction import EndTransaction
from proxy.streams.handlers.fetch import Fetch
from proxy.streams.handlers.forward import Forward
from proxy.streams.handlers.groups import GroupRequests
from proxy.streams.handlers.login import RefuseLogin
from proxy.streams.handlers.mutations import Mutations
from proxy.streams.handlers.negotiate import Negotiate
from proxy.streams.handlers.produce import Produce
from proxy.streams.handlers.rewrite import Hide, Metadata, Rewrite
from proxy.streams.handlers.telemetry import Telemetry
from proxy.streams.request import Handler

HANDLERS: Final[Mapping[Treatment, type[Handler]]] = {
    Treatment.FORWARD: Forward,
    Treatment.PRODUCE: Produce,
    Treatment.FETCH: Fetch,
    Treatment.GROUP: GroupRequests,
    Treatment.END_TRANSACTION: EndTransaction,
    Treatment.METADATA: Metadata,
    Treatment.REWRITE: Rewrite,
    Treatment.HIDE: Hide,
    Treatment.MUTATIONS: Mutations,
    Treatment.NEGOTIATE: Negotiate,
    Treatment.INSPECT: Authenticate,
    Treatment.CLIENT_QUOTAS: ClientQuotas,
    Treatment.TELEMETRY: Telemetry,
}


def handlers_of(context: Context) -> Mapping[Treatment, Handler]:
    """The handler of each treatment, for all connections."""
    by_treatment = {treatment: handler(context) for treatment, handler in HANDLERS.items()}
    if context.config.upstream.login is not None:
        by_treatment[Treatment.INSPECT] = RefuseLogin(context)
    return by_treatment
