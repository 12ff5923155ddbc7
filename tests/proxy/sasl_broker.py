"""A broker's side of SASL, without a socket: the response to each request of a login. SCRAM is scramp's server."""

import datetime
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v1.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v1.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.static.primitive import i64Timedelta
from scramp import ScramException, ScramMechanism

from protocol.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from protocol.messages import decode
from protocol.request_header import peek_request
from tests.proxy.frames import answer

REFUSED = "Authentication failed during authentication due to invalid credentials"


class SaslBroker:
    """Knows one user. `lifetime_ms`: of each session. `begun`: logins; `done`: those that succeeded. `words`: of a
    refusal, in place of Kafka's.
    """

    words = ""

    def __init__(self, user: str, password: str, lifetime_ms: int = 0, iterations: int = 4_096) -> None:
        self.user, self.password, self.lifetime_ms = user, password, lifetime_ms
        self.begun = self.done = 0
        self._credentials = {
            name: ScramMechanism(name).make_auth_info(password, iteration_count=iterations, salt=b"salt of the user")
            for name in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        }
        self._mechanism = ""
        self._server: Any = None
        self._others: dict[object, tuple[str, Any]] = {}

    def respond(self, frame: bytes, connection: object = None) -> bytes | None:
        """The response to a request of SASL, as a frame; None: it is another request."""
        self._mechanism, self._server = self._others.get(connection, ("", None))
        response = self._respond(frame)
        self._others[connection] = self._mechanism, self._server
        return response

    def _respond(self, frame: bytes) -> bytes | None:
        header = peek_request(bytearray(frame), 0, len(frame), 1 << 20, pass_unknown_apis=False)
        assert header is not None
        correlation = int.from_bytes(frame[8:12], "big")
        if header.api.key == SASL_HANDSHAKE:
            self.begun += 1
            self._mechanism = decode(SaslHandshakeRequest, frame, header.size).mechanism
            self._server = None
            offered = ("PLAIN", "OAUTHBEARER", *self._credentials)
            code = ErrorCode.none if self._mechanism in offered else ErrorCode.unsupported_sasl_mechanism
            return answer(SASL_HANDSHAKE, 1, correlation, SaslHandshakeResponse(error_code=code, mechanisms=offered))
        if header.api.key != SASL_AUTHENTICATE:
            return None
        token, code, message = b"", ErrorCode.none, None
        try:
            token = self._token(decode(SaslAuthenticateRequest, frame, header.size).auth_bytes)
        except ScramException:
            code = ErrorCode.sasl_authentication_failed
            message = self.words or f"{REFUSED} with SASL mechanism {self._mechanism}"
        body = SaslAuthenticateResponse(
            error_code=code,
            error_message=message,
            auth_bytes=token,
            session_lifetime=i64Timedelta.parse(datetime.timedelta(milliseconds=self.lifetime_ms)),
        )
        return answer(SASL_AUTHENTICATE, 1, correlation, body)

    def _token(self, message: bytes) -> bytes:
        """Raises ScramException: the login is refused."""
        if self._mechanism.startswith("SCRAM"):
            return self._scram(message.decode())
        if self._mechanism == "PLAIN":
            expected = f"\0{self.user}\0{self.password}".encode()
        elif self._server is not None:
            raise ScramException("the client has read the error")
        else:
            expected = f"n,,\x01auth=Bearer {self.password}\x01\x01".encode()
            if message != expected:
                self._server = "an error was sent"
                return b'{"status":"invalid_token"}'
        if message != expected:
            raise ScramException("wrong")
        self.done += 1
        return b""

    def _scram(self, message: str) -> bytes:
        if self._server is None:
            credentials = self._credentials[self._mechanism]
            self._server = ScramMechanism(self._mechanism).make_server(
                lambda user: credentials if user == self.user else None
            )
            self._server.set_client_first(message)
            first: str = self._server.get_server_first()
            return first.encode()
        self._server.set_client_final(message)
        self.done += 1
        final: str = self._server.get_server_final()
        return final.encode()
