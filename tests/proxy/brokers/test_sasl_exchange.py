"""The proxy's own login as a conversation with a broker, without a socket."""

import hashlib
import hmac
import json
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from scramp import ScramException

from protocol.apis import SASL_HANDSHAKE
from protocol.errors import MalformedFrame
from proxy.brokers import sasl_exchange
from proxy.brokers.sasl_exchange import CORRELATION_ID, Login, LoginRefused
from proxy.config.client_settings import LoginSettings
from tests.proxy.frames import answer as in_frame
from tests.proxy.sasl_broker import REFUSED, SaslBroker

PASSWORD = "pä=,ss\u00ad\\word"  # Kafka takes it as it is: SASLprep would remove the soft hyphen
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def settings_of(mechanism: str, tmp_path: Path, password: str = PASSWORD) -> LoginSettings:
    if mechanism != "OAUTHBEARER":
        return LoginSettings(mechanism=mechanism, username="e=t,l", password=password)
    token = tmp_path / "token"
    token.write_text(f"\ufeff{password}\r\n")  # as editors of Windows write it
    return LoginSettings(mechanism=mechanism, token_file=token)


def converse(broker: SaslBroker, settings: LoginSettings) -> Login:
    """A login to its end. Raises what it raises."""
    found = Login(settings)
    while found.frame:
        response = broker.respond(found.frame)
        assert response is not None
        found.advance(response[4:])
    return found


class Kafka(SaslBroker):
    """Derives keys from passwords as they are, as Kafka does and scramp does not."""

    def __init__(self, *arguments: object) -> None:
        super().__init__("e=t,l", PASSWORD, 3_600_000)
        for name, (salt, _, _, iterations) in self._credentials.items():
            digest = name.removeprefix("SCRAM-").replace("-", "").lower()
            salted = sasl_exchange._salted(digest, PASSWORD.encode(), salt, iterations)
            key = hmac.digest(salted, b"Client Key", digest)
            server_key = hmac.digest(salted, b"Server Key", digest)
            self._credentials[name] = (salt, hashlib.new(digest, key).digest(), server_key, iterations)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_proxy_logs_in(mechanism: str, tmp_path: Path) -> None:
    broker = Kafka()
    found = converse(broker, settings_of(mechanism, tmp_path))
    assert (broker.done, found.lifetime_ms) == (1, 3_600_000)
    assert found.user == ("" if mechanism == "OAUTHBEARER" else "e=t,l")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_error_is_in_the_words_of_the_broker(mechanism: str, tmp_path: Path) -> None:
    wrong = settings_of(mechanism, tmp_path, "hidden")
    with pytest.raises(LoginRefused) as raised:
        converse(Kafka(), wrong)
    assert str(raised.value) == f"sasl_authentication_failed: {REFUSED} with SASL mechanism {mechanism}"


def test_the_mechanisms_that_a_broker_offers_are_in_the_error(tmp_path: Path) -> None:
    broker = Kafka()
    broker._credentials.clear()
    expected = "unsupported_sasl_mechanism: the broker offers PLAIN, OAUTHBEARER, not SCRAM-SHA-256"
    with pytest.raises(LoginRefused, match=expected):
        converse(broker, settings_of("SCRAM-SHA-256", tmp_path))


class Parrot(Kafka):
    """Refuses, and repeats a text: in its error, in its list of mechanisms, or in a message of the mechanism."""

    def __init__(self, where: str, text: str) -> None:
        super().__init__()
        self.where, self.words = where, text

    def respond(self, frame: bytes, connection: object = None) -> bytes | None:
        if self.where == "mechanisms":
            answer = SaslHandshakeResponse(error_code=ErrorCode.unsupported_sasl_mechanism, mechanisms=(self.words,))
            return in_frame(SASL_HANDSHAKE, 1, CORRELATION_ID, answer)
        return super().respond(frame, connection)

    def _token(self, message: bytes) -> bytes:
        if self.where == "message":
            return f"e={self.words}".encode()
        raise ScramException("refused")


@pytest.mark.parametrize(
    ("where", "mechanism"),
    [*((where, mechanism) for where in ("mechanisms", "error") for mechanism in MECHANISMS)]
    + [("message", mechanism) for mechanism in MECHANISMS if mechanism != "PLAIN"],
)
def test_a_broker_that_repeats_a_secret_brings_it_nowhere(mechanism: str, where: str, tmp_path: Path) -> None:
    """Kafka's authenticators may put anything into their error text: here the message, with a password of the file."""
    settings = replace(settings_of(mechanism, tmp_path), secrets=("of the key",))
    broker = Parrot(where, f"bad password {PASSWORD}, {json.dumps(PASSWORD)} and of the key")
    with pytest.raises(LoginRefused) as raised:
        converse(broker, settings)
    shown = "".join(traceback.format_exception(raised.value))
    assert PASSWORD not in shown
    assert json.dumps(PASSWORD) not in shown
    if not (where == "message" and mechanism.startswith("SCRAM")):  # there only names of errors are shown
        assert 'bad password ***, "***" and ***' in shown


def test_a_token_is_read_for_each_login(tmp_path: Path) -> None:
    settings = settings_of("OAUTHBEARER", tmp_path, "old")
    begun = Login(settings)
    (tmp_path / "token").write_text("new")
    broker = SaslBroker("", "new")
    converse(broker, settings)
    assert broker.done == 1
    (tmp_path / "token").unlink()
    with pytest.raises(LoginRefused, match="token: No such file"):
        converse(broker, settings)
    assert "old" not in str(vars(begun).values())


class Says(Kafka):
    """Sends what this makes of its token and of the message that it answers."""

    def __init__(self, says: Callable[[bytes, bytes], bytes]) -> None:
        super().__init__()
        self.says = says

    def _token(self, message: bytes) -> bytes:
        return self.says(super()._token(message), message)


def test_a_broker_that_does_not_know_the_password_is_refused(tmp_path: Path) -> None:
    impostor = Says(lambda token, _: b"v=" + bytes(reversed(token[2:])) if token.startswith(b"v=") else token)
    with pytest.raises(LoginRefused, match="does not prove that it knows the password"):
        converse(impostor, settings_of("SCRAM-SHA-512", tmp_path))


WRONG = "the broker's messages of SCRAM-SHA-256 are wrong"


@pytest.mark.parametrize(
    ("challenge", "said"),
    [
        (b"", WRONG),
        (b"r=other,s=c2FsdHNhbHRzYWx0,i=4096", WRONG),
        (b"\xff", WRONG),
        (b"e=unknown-user", WRONG),
        (b"r={nonce}x,s=c2E=,i=4096", WRONG),
        # It cannot use up the thread of all logins.
        (b"r={nonce}x,s=c2FsdHNhbHRzYWx0,i=65537", "asks for 65537 iterations; at most 65536 are allowed"),
    ],
)
def test_a_challenge_that_is_not_valid_ends_the_login(challenge: bytes, said: str, tmp_path: Path) -> None:
    broker = Says(lambda _, message: challenge.replace(b"{nonce}", message.rpartition(b"r=")[2]))
    with pytest.raises(LoginRefused, match=said):
        converse(broker, settings_of("SCRAM-SHA-256", tmp_path))


def test_responses_that_are_no_messages_of_sasl(tmp_path: Path) -> None:
    settings = settings_of("PLAIN", tmp_path)
    good = Kafka().respond(Login(settings).frame)
    assert good is not None
    for response in [good[4:at] for at in range(4, len(good))]:
        with pytest.raises(MalformedFrame):
            Login(settings).advance(response)
