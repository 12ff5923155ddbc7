"""The proxy's own login on one connection to a broker: frames out, responses in, and how long it is valid. No socket.

SaslHandshake 1 names the mechanism, SaslAuthenticate 1 carries its messages (KIP-152), and the last response contains
how long the session is valid (KIP-368), in brokers since Kafka 2.2. Nothing here logs, and no error contains a secret,
because the broker's words are masked.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from base64 import b64encode
from collections.abc import Awaitable, Callable, Generator
from functools import lru_cache
from operator import xor
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v1.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v1.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

from protocol.messages import decode, request_frame
from protocol.sasl import subject
from proxy.background.threads import OutsideThreads
from proxy.brokers.upstream import BrokerFailed
from proxy.config.client_settings import LoginSettings, masked

CORRELATION_ID: Final = 1
"""The correlation id of every request of a login, because brokers answer in order."""
MAX_RESPONSE: Final = 65_536
"""The most bytes of a response, counted from its correlation id."""
THREAD: Final = OutsideThreads("login")
"""Where `Login.advance` runs: a single thread, so that a thousand logins at once leave time for the event loop."""

MAX_ITERATIONS: Final = 65_536
"""The most SCRAM iterations: about 50 ms of `THREAD`, which all logins share. Kafka stores passwords with at most
16,384."""
_BODY: Final = 4  # after the correlation id


class LoginRefused(BrokerFailed):
    """A login failed. `str()` is the broker's words, or why the proxy did not finish it."""

    def __init__(self, detail: str) -> None:
        super().__init__("login_refused", detail)


class Login:
    """One login.

    frame         the frame to send now; empty once the proxy is logged in
    user          the name that the broker knows the proxy by; for a token its `sub_claim`, or "" if that is unreadable
    lifetime_ms   how long the session is valid; 0 if that is unlimited, or the login has not finished
    """

    def __init__(self, settings: LoginSettings, sub_claim: str = "sub") -> None:
        self.user = settings.username
        self.sub_claim: Final = sub_claim
        self.lifetime_ms = 0
        self._settings = settings
        #: For `masked`; the token is added when it is read.
        self._secrets = [settings.password, *settings.secrets]
        self._frames = self._exchange()
        self.frame = next(self._frames)

    def advance(self, response: bytes) -> None:
        """Set `frame` to what follows a response, which is given from its correlation id on.

        Takes as long as a file takes to be read, or a key to be derived: 5 ms. Raises LoginRefused or ProtocolError.
        """
        try:
            self.frame = self._frames.send(response)
        except StopIteration:
            self.frame = b""
        except LoginRefused as error:
            raise LoginRefused(masked(str(error), self._secrets)) from None
        except OSError as error:
            raise LoginRefused(f"{error.filename}: {error.strerror}") from None

    def close(self) -> None:
        """End the login, perhaps unfinished. Dropping the exchange breaks its reference cycle with this object."""
        del self._frames

    def _exchange(self) -> Generator[bytes, bytes, None]:
        mechanism = self._settings.mechanism
        response = yield request_frame(SaslHandshakeRequest(mechanism=mechanism), CORRELATION_ID)
        messages = _MESSAGES[mechanism](self, self._settings)
        message = next(messages)  # reads the token, which the broker's words may repeat
        offer = decode(SaslHandshakeResponse, response, _BODY)
        if offer.error_code is not ErrorCode.none:
            offered = f"the broker offers {', '.join(offer.mechanisms) or 'no SASL mechanism'}, not {mechanism}"
            raise LoginRefused(f"{offer.error_code.name}: {offered}")
        while True:
            response = yield request_frame(SaslAuthenticateRequest(auth_bytes=message), CORRELATION_ID)
            answer = decode(SaslAuthenticateResponse, response, _BODY)
            if answer.error_code is not ErrorCode.none:
                raise LoginRefused(f"{answer.error_code.name}: {answer.error_message}")
            self.lifetime_ms = int(answer.session_lifetime.total_seconds() * 1_000)
            try:
                message = messages.send(answer.auth_bytes)
            except StopIteration:
                return


# ---- the messages of each mechanism: tokens out, the broker's in


def _plain(_: Login, settings: LoginSettings) -> Generator[bytes, bytes, None]:
    yield f"\0{settings.username}\0{settings.password}".encode()


def _oauthbearer(login: Login, settings: LoginSettings) -> Generator[bytes, bytes, None]:
    assert settings.token_file is not None  # noqa: S101 - for the type checker: the client file has it
    token = settings.token_file.read_text(encoding="utf-8-sig").strip()
    login._secrets.append(token)
    login.user = subject(token.encode(), login.sub_claim)
    error = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    if error:
        yield b"\x01"  # RFC 7628: the broker answers this with its error
        raise LoginRefused(error.decode(errors="replace"))


def _scram(_: Login, settings: LoginSettings) -> Generator[bytes, bytes, None]:
    """RFC 5802. Like Kafka's own clients, it uses the password as it is, without SASLprep."""
    from scramp import ScramClient, ScramException  # 5 MB, if there is such a login

    client = ScramClient([settings.mechanism], settings.username, "")
    challenge = yield client.get_client_first().encode()
    try:
        client.set_server_first(challenge.decode())
    except (ScramException, UnicodeDecodeError) as error:
        raise LoginRefused(f"the broker's messages of {settings.mechanism} are wrong: {error}") from None
    if int(client.iterations) > MAX_ITERATIONS:
        raise LoginRefused(f"the broker asks for {client.iterations} iterations; at most {MAX_ITERATIONS} are allowed")
    digest = client.hf().name
    salted = _salted(digest, settings.password.encode(), bytes(client.salt), int(client.iterations))
    client_key = hmac.digest(salted, b"Client Key", digest)
    without_proof = f"c=biws,r={client.nonce}"
    signed = f"{client.client_first_bare},{client.server_first},{without_proof}".encode()
    proof = map(xor, client_key, hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest))
    final = yield f"{without_proof},p={b64encode(bytes(proof)).decode()}".encode()
    server_key = hmac.digest(salted, b"Server Key", digest)
    if not hmac.compare_digest(final.split(b",")[0], b"v=" + b64encode(hmac.digest(server_key, signed, digest))):
        raise LoginRefused("the broker does not prove that it knows the password: its signature is wrong")


@lru_cache(maxsize=8)
def _salted(digest: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """The salted password, which RFC 5802 permits to keep: deriving it takes milliseconds."""
    return hashlib.pbkdf2_hmac(digest, password, salt, iterations)


_MESSAGES: Final = {"PLAIN": _plain, "SCRAM-SHA-256": _scram, "SCRAM-SHA-512": _scram, "OAUTHBEARER": _oauthbearer}


async def log_in(ask: Callable[[bytes], Awaitable[bytes]], settings: LoginSettings) -> None:
    """Log in on a new connection; `ask` returns the response to a frame. Raises LoginRefused, ProtocolError, and what
    `ask` raises.
    """
    login = Login(settings)
    try:
        while login.frame:
            response = await ask(login.frame)
            await asyncio.get_running_loop().run_in_executor(THREAD, login.advance, response)
    finally:
        login.close()
