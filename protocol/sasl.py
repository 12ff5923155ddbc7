"""SASL: which name a client claims, and whether the broker has accepted it. No secret is kept.

SaslHandshake names the mechanism, SaslAuthenticate carries its messages (KIP-43, KIP-152):

    PLAIN                the second of three parts between NULs; proven by a response without error
    SCRAM-SHA-256, -512  `n=` of the first message, of a delegation token its id (KIP-48); the last response has `v=`
    OAUTHBEARER          a claim of the JWT in the latest message; the last response is empty, an error comes as JSON

A message is matched by the expressions of Kafka's brokers, so that what these accept is read as they read it:
`PlainSaslServer.java`, `ScramMessages.java`, `OAuthBearerClientInitialResponse.java`. The name of other mechanisms is
not known: the one in a client's last GSSAPI token is what the client writes there, and no broker compares it.
"""

import json
import re
from base64 import b64decode
from typing import Any, Final, final

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from protocol.apis import SASL_HANDSHAKE
from protocol.messages import read
from protocol.wire import read_text

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = frozenset({PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER})
"""Those whose names are read."""

# Possessive: each part ends where it cannot go on, and 128 KiB take 2 ms.
_SASL_NAME: Final = rb"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]++|=2C|=3D)++"
_VALUE: Final = rb"[\x01-\x2b\x2d-\x7f]++"
_CLIENT_FIRST: Final = re.compile(
    rb"n,(?:a=(%b))?,(?:m=%b,)?n=(%b),r=[\x21-\x2b\x2d-\x7e]++(?:,[A-Za-z]++=%b)*+"
    % (_SASL_NAME, _VALUE, _SASL_NAME, _VALUE)
)
_BEARER: Final = re.compile(
    rb"n,(?:a=%b)?,\x01((?:[A-Za-z]++=[\x21-\x7e \t\r\n]++\x01)*+)\x01" % _SASL_NAME  # the broker checks `a`
)
#: Characters of a name: it is kept while the broker takes its time.
_LONGEST_NAME: Final = 1_024
_TOKEN: Final = re.compile(rb"bearer +([-_~+/.a-zA-Z0-9]+=*)", re.IGNORECASE)


@final
class Exchange:
    """The exchange of one connection. Give it each request and then the response to it, both whole.

    sub_claim   the claim of a JWT that is the user
    mechanism   of the handshake that the broker accepted last, until its outcome; "": none
    has_ended   an exchange was successful; with a mechanism whose outcome cannot be read: has begun
    refused     of the latest response, if it is an error: its name, the mechanism, and the name that was claimed
    """

    __slots__ = ("_asked", "_name", "_sub_claim", "has_ended", "mechanism", "refused")

    def __init__(self, sub_claim: str) -> None:
        self._sub_claim: Final = sub_claim
        self.mechanism = ""
        self.has_ended = False
        self.refused: tuple[str, str, str] | None = None
        #: Of the latest handshake.
        self._asked = ""
        #: What the client claims; "": nothing that can be read.
        self._name = ""

    def ask(self, api_key: int, version: int, frame: bytes, body_at: int) -> None:
        """A request. Raises ProtocolError if it is malformed. Like brokers, it ignores what follows the last field."""
        body = _decoded(api_key, version, EntityType.request, frame, body_at)
        if api_key == SASL_HANDSHAKE:
            self._asked = body.mechanism
            self.mechanism = self._name = ""
        elif not body.auth_bytes.startswith(b"c=") or not self.mechanism.startswith("SCRAM"):  # not SCRAM's last one
            name = self._claimed(body.auth_bytes)
            self._name = name if len(name) <= _LONGEST_NAME else ""

    def answer(self, api_key: int, version: int, frame: bytes, body_at: int) -> str | None:
        """The response. Returns the name that it proves, "" if that could not be read; None: it proves nothing.

        Raises ProtocolError: it is malformed.
        """
        body = _decoded(api_key, version, EntityType.response, frame, body_at)
        mechanism, name = self.mechanism, self._name
        self.refused = None
        if body.error_code is not ErrorCode.none:
            self.refused = body.error_code.name, mechanism or self._asked, name
            self.forget()
        elif api_key == SASL_HANDSHAKE:
            self.mechanism = self._asked
            self.has_ended |= self.mechanism not in MECHANISMS
        elif mechanism in MECHANISMS and _is_last(mechanism, body.auth_bytes):
            self.forget()
            self.has_ended = True
            return name
        return None

    def forget(self) -> None:
        """The exchange has ended: only a new handshake starts another."""
        self._asked = self.mechanism = self._name = ""

    def _claimed(self, message: bytes) -> str:
        if self.mechanism == PLAIN:
            return _plain_name(message)
        if self.mechanism == OAUTHBEARER:
            return _bearer_name(message, self._sub_claim)
        return _scram_name(message) if self.mechanism in MECHANISMS else ""


def _decoded(api_key: int, version: int, kind: EntityType, frame: bytes, body_at: int) -> Any:
    load: Any = load_request_schema if kind is EntityType.request else load_response_schema
    return read(load(api_key, version), frame, body_at)[0]


def _is_last(mechanism: str, token: bytes) -> bool:
    """Whether a broker's response without error ends the exchange."""
    if mechanism == OAUTHBEARER:
        return not token
    return mechanism == PLAIN or token.startswith(b"v=")


def _plain_name(message: bytes) -> str:
    parts = read_text(message).split("\0", 3)
    if len(parts) != 3 or not parts[1] or not parts[2] or parts[0] not in {"", parts[1]}:
        return ""
    return parts[1]


def _scram_name(message: bytes) -> str:
    found = _CLIENT_FIRST.fullmatch(message)
    if found is None:
        return ""
    name = found[2].replace(b"=2C", b",").replace(b"=3D", b"=")
    return name.decode() if found[1] in {None, name} else ""  # the broker compares it as it was written


def _bearer_name(message: bytes, sub_claim: str) -> str:
    found = _BEARER.fullmatch(message)
    if found is None:
        return ""
    pairs = dict(pair.split(b"=", 1) for pair in found[1].split(b"\x01") if pair)  # of several the last counts
    token = _TOKEN.fullmatch(pairs.get(b"auth", b""))
    return "" if token is None else subject(token[1], sub_claim)


def subject(token: bytes, claim: str) -> str:
    """The user that a JWT names (RFC 7519), which is not verified; "": it cannot be read."""
    parts = token.split(b".")
    if len(parts) != 3:  # opaque, or encrypted
        return ""
    try:
        claims = json.loads(b64decode(parts[1].rstrip(b"=") + b"==", altchars=b"-_"))
        name = claims.get(claim) if isinstance(claims, dict) else None
        return name.strip() if isinstance(name, str) and name.encode() else ""
    except (ValueError, RecursionError):  # not in Base64, JSON or UTF-8; or too deep
        return ""
