"""The handler of each treatment."""

from collections.abc import Mapping
from typing import Final

from protocol.apis import Treatment
from protocol.request_header import RequestHeader
from proxy.streams.connection import Handler
from proxy.streams.context import Context
from proxy.streams.handlers.fetch import Fetch
from proxy.streams.handlers.forward import Forward
from proxy.streams.handlers.hide import Hide
from proxy.streams.handlers.login import Login
from proxy.streams.handlers.metadata import Metadata
from proxy.streams.handlers.mutations import Mutations
from proxy.streams.handlers.negotiate import Negotiate
from proxy.streams.handlers.produce import Produce
from proxy.streams.handlers.rewrite import Rewrite

HANDLERS: Final[Mapping[Treatment, type[Handler]]] = {
    Treatment.FORWARD: Forward,
    Treatment.PRODUCE: Produce,
    Treatment.FETCH: Fetch,
    Treatment.METADATA: Metadata,
    Treatment.REWRITE: Rewrite,
    Treatment.HIDE: Hide,
    Treatment.MUTATIONS: Mutations,
    Treatment.NEGOTIATE: Negotiate,
    Treatment.INSPECT: Forward,
}


class Handlers:
    """One of each, for all connections."""

    __slots__ = ("_by_treatment", "context", "login")

    def __init__(self, context: Context) -> None:
        self.context: Final = context
        made = {handler: handler(context) for handler in set(HANDLERS.values())}
        self._by_treatment = {treatment: made[handler] for treatment, handler in HANDLERS.items()}
        #: Of the proxy's own login.
        self.login: Final = Login(context)
        if context.config.upstream.login is not None:
            self._by_treatment[Treatment.INSPECT] = self.login

    def of(self, header: RequestHeader) -> Handler:
        """The handler of a request."""
        return self._by_treatment[header.api.treatment]
