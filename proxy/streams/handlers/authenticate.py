"""SASL passes through: the name that a client proves to the broker becomes its user.

While a SASL request is in flight, no other request passes. So each response belongs to the request before it, and each
frame is charged to the user for whom the broker takes it. Clients wait anyway, and brokers refuse other requests during
a login.
"""

from typing import Final, final

from kio.schema.errors import ErrorCode

from protocol.apis import SASL_HANDSHAKE
from protocol.errors import ProtocolError
from protocol.request_header import unpack_prefix
from protocol.sasl import MECHANISMS, Exchange
from proxy.enforcement.identity import Client
from proxy.observability.logs import EventLog, RateLimited
from proxy.streams.connection import Context
from proxy.streams.handlers.forward import MAX_KEPT, MAX_PARTIAL, Forward
from proxy.streams.pending import Responses
from proxy.streams.request import Kind, Requests
from proxy.streams.steps import NEED

#: How many mechanisms are named in the log.
_MOST_NAMED: Final = 10

_log = EventLog(__name__)


class SaslMessageTooLarge(ProtocolError):
    """The message is so long that the user would remain unknown, which would let a client escape its limits."""

    reason = "sasl_message_too_large"

    def __init__(self, length: int) -> None:
        most = f"{MAX_KEPT} are the most, {MAX_PARTIAL} while memory is short"
        super().__init__(f"SASL request of {length} bytes: {most}", -1)


@final
class Authenticate(Forward):
    """Forwards SASL, and reads who the client is. With `--principal`, nothing is read."""

    unseen = False
    batchable = False
    identifies = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        #: Mechanisms whose names cannot be read, and that the log has reported.
        self._named: Final[set[str]] = set()
        self._lines: Final = RateLimited()

    def on_request(self, requests: Requests, kind: Kind, pos: int, end: int, now_ns: int) -> int:
        connection, config = requests.connection, self.context.config
        exchange = connection.exchange
        if config.quotas.principal is None:
            if exchange is None:
                exchange = connection.exchange = Exchange(config.security.sasl_oauthbearer_sub_claim_name)
            if kind.api_key == SASL_HANDSHAKE or exchange.mechanism in MECHANISMS:
                length = unpack_prefix(requests.buf, pos)[0]
                if not self.may_keep(pos, end, length):
                    raise SaslMessageTooLarge(length)
                whole = requests.whole(pos, end, length)
                if not whole:
                    return NEED
                exchange.ask(kind.api_key, kind.version, whole, kind.header.body_offset - 4)
            connection.max_in_flight = 0
        return super().on_request(requests, kind, pos, end, now_ns)

    def respond(self, responses: Responses, kind: Kind, pos: int, end: int, length: int, now_ns: int) -> int:
        connection = responses.connection
        exchange = connection.exchange
        if exchange is None:
            return responses.forward(pos, end, length)
        if length > MAX_KEPT:  # so long a message proves nothing
            exchange.forget()
        else:
            whole = responses.whole(pos, end, length)
            if not whole:
                return NEED
            body_at = 5 if kind.header.api.response_header_is_flexible(kind.version) else 4
            mechanism = exchange.mechanism
            try:
                user = exchange.answer(kind.api_key, kind.version, whole, body_at)
            except ProtocolError:
                exchange.forget()
                user = ""
            if exchange.refused is not None:
                self._report(connection.identity.client, exchange.refused, now_ns)
            if user:
                connection.identity.authenticate(user, now_ns)
            elif user is not None or exchange.mechanism not in {"", *MECHANISMS}:
                self._name_unknown(mechanism or exchange.mechanism)
        connection.max_in_flight = self.context.config.security.max_pending_requests
        return responses.forward(pos, end, length)

    def _report(self, client: Client, refused: tuple[str, str, str], now_ns: int) -> None:
        """Report a login that the broker refused, without its text, which may repeat what the client sent."""
        error, mechanism, user = refused
        self.context.metrics.errors.logins += 1
        at = {"user": user or None, "mechanism": mechanism, "peer": client.peer, "client_id": client.client_id}
        hint = "see sasl.mechanism, the name and the password of the client, and security.protocol"
        if error == ErrorCode.illegal_sasl_state.name:  # from a listener without SASL
            hint = "the broker's listener accepts no logins: set security.protocol=PLAINTEXT or SSL in the client"
        fields = {**at, "error": error, "hint": hint}
        self.context.metrics.errors.latest["login"] = now_ns, fields
        self._lines.event(_log.warning, "client_login_refused", error, now_ns, **fields)

    def _name_unknown(self, mechanism: str) -> None:
        """Report, once, a mechanism whose names cannot be read."""
        if mechanism not in self._named and len(self._named) < _MOST_NAMED:
            self._named.add(mechanism)
            effect = "the proxy cannot read the name in it: these clients still count as the user that they were before"
            hint = "limit them by client-id, or by user=ANONYMOUS or <default>; or set --principal"
            _log.warning("sasl_name_unknown", mechanism=mechanism, effect=effect, hint=hint)
