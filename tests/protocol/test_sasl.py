"""SASL: the name is the broker's, or none."""

import json
import struct
from base64 import b64encode, urlsafe_b64encode
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from protocol.errors import ProtocolError
from protocol.sasl import MECHANISMS, Exchange
from protocol.wire import encode_varint

ALICE = b"\0alice\0secret"
FIRST = b"n,,n=alice,r=nonce"
FINAL = b"c=biws,r=nonce,p=cHJvb2Y="


def jwt(claims: object, encode: bool = True) -> bytes:
    parts = ({"alg": "none"}, claims)
    return b".".join(urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in parts) + b".sig"


def bearer(token: bytes, more: bytes = b"") -> bytes:
    return b"n,,\x01auth=Bearer " + token + b"\x01" + more + b"\x01"


def handshake(mechanism: str) -> bytes:
    return struct.pack(">h", len(mechanism)) + mechanism.encode()


def chosen(error: int = 0) -> bytes:
    return struct.pack(">hi", error, 0)


def message(token: bytes, version: int) -> bytes:
    if version < 2:
        return struct.pack(">i", len(token)) + token
    return encode_varint(len(token) + 1) + token + b"\0"


def reply(token: bytes, version: int, error: int = 0, lifetime_ms: int = 0) -> bytes:
    if version == 2:
        return struct.pack(">hb", error, 0) + encode_varint(len(token) + 1) + token + struct.pack(">qb", lifetime_ms, 0)
    return struct.pack(">hhi", error, -1, len(token)) + token + struct.pack(">q", lifetime_ms)[: 8 * version]


class Talk:
    """A client and a broker that take turns."""

    def __init__(self, mechanism: str = "", version: int = 1, sub_claim: str = "sub") -> None:
        self.exchange = Exchange(sub_claim)
        self.version = version
        if mechanism:
            assert self.choose(mechanism) is None

    def choose(self, mechanism: str, error: int = 0) -> str | None:
        self.exchange.ask(SASL_HANDSHAKE, 1, handshake(mechanism), 0)
        return self.exchange.answer(SASL_HANDSHAKE, 1, chosen(error), 0)

    def send(self, token: bytes, answer: bytes = b"", error: int = 0) -> str | None:
        self.exchange.ask(SASL_AUTHENTICATE, self.version, message(token, self.version), 0)
        return self.exchange.answer(SASL_AUTHENTICATE, self.version, reply(answer, self.version, error), 0)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_names_are_proven_by_the_last_response(version: int) -> None:
    assert Talk("PLAIN", version).send(ALICE) == "alice"
    scram = Talk("SCRAM-SHA-512", version)
    assert scram.send(FIRST, b"r=nonce1,s=c2FsdA==,i=4096") is None
    assert scram.send(FINAL, b"v=cHJvb2Y=") == "alice"
    assert Talk("OAUTHBEARER", version).send(bearer(jwt({"sub": "alice"}))) == "alice"


def test_what_proves_nothing() -> None:
    assert Talk().send(ALICE) is None  # without a handshake
    assert Talk("PLAIN").send(ALICE, error=58) is None
    refused = Talk()
    refused.choose("PLAIN", error=33)
    assert refused.send(ALICE) is None
    failed = Talk("PLAIN")
    failed.send(ALICE, error=58)
    assert failed.send(b"") is None  # a success that nobody asked for
    done = Talk("PLAIN")
    assert (done.send(ALICE), done.send(b"\0bob\0x")) == ("alice", None)
    gssapi = Talk("GSSAPI")
    assert gssapi.send(b"\x60" + ALICE, b"v=") is None
    assert gssapi.send(FIRST, b"") is None
    switched = Talk("SCRAM-SHA-256")
    switched.send(FIRST, b"r=nonce1,s=c2FsdA==,i=4096")
    switched.choose("SCRAM-SHA-256")
    assert switched.send(FINAL, b"v=cHJvb2Y=") == ""  # accepted, by whatever name
    restarted = Talk("SCRAM-SHA-256")
    restarted.send(FIRST, b"r=nonce1,s=c2FsdA==,i=4096")
    assert restarted.send(b"n,,n=bob,r=nonce", b"v=cHJvb2Y=") == "bob"  # no broker does; the latest name would be meant


def name_in(mechanism: str, token: bytes, sub_claim: str = "sub") -> str | None:
    talk = Talk(mechanism, sub_claim=sub_claim)
    if not mechanism.startswith("SCRAM"):
        return talk.send(token)
    talk.send(token, b"r=nonce1,s=c2FsdA==,i=4096")
    return talk.send(FINAL, b"v=cHJvb2Y=")


@pytest.mark.parametrize(
    ("token", "name"),
    [
        (ALICE, "alice"),
        (b"alice\0alice\0x", "alice"),
        ("\0ümit, =\0x".encode(), "ümit, ="),
        (b"\0a\xff\0x", "a\ufffd"),  # as Java decodes it
        (b"bob\0alice\0x", ""),
        (b"\0\0x", ""),
        (b"\0alice\0", ""),
        (b"alice\0x", ""),
        (b"\0alice\0x\0", ""),
        (b"", ""),
        (b"\0" + b"a" * 1_024 + b"\0x", "a" * 1_024),
        (b"\0" + b"a" * 1_025 + b"\0x", ""),
    ],
)
def test_names_of_plain(token: bytes, name: str) -> None:
    assert name_in("PLAIN", token) == name


@pytest.mark.claim(
    "security", "SASL messages are parsed with Kafka's own expressions; a message that they reject has no name"
)
@pytest.mark.parametrize(
    ("token", "name"),
    [
        (FIRST, "alice"),
        (b"n,a=alice,n=alice,r=x", "alice"),
        (b"n,,n=a=2Cb=3Dc=3D2C,r=x", "a,b=c=2C"),
        (b"n,,m=v,n=alice,r=x", "alice"),
        (b"n,,n=3c5b-token-id,r=x,tokenauth=true", "3c5b-token-id"),
        (b"n,,n=alice,r=x,a=b=c,b=d", "alice"),
        (b"n,a=bob,n=alice,r=x", ""),
        (b"n,a=a=2Cb,n=a=2Cb,r=x", ""),  # the broker compares what is written with what it means
        (b"y,,n=alice,r=x", ""),
        (b"p=tls-unique,,n=alice,r=x", ""),
        (b"n,,n=alice,r=", ""),
        (b"n,,n=,r=x", ""),
        (b"n,,n=a=2cb,r=x", ""),
        (b"n,,n=a=b,r=x", ""),
        (b"n,,n=alice,r=x,1=b", ""),
        (b"n,,n=alice,r=x,", ""),
        (b"n,,n=alice,r=x y", ""),
        ("n,,n=ü,r=x".encode(), ""),
        (b"n,,n=alice,r=x\n", ""),
    ],
)
def test_names_of_scram(token: bytes, name: str) -> None:
    assert name_in("SCRAM-SHA-256", token) == name


@pytest.mark.claim(
    "security", "SASL messages are parsed with Kafka's own expressions; a message that they reject has no name"
)
@pytest.mark.parametrize(
    ("token", "name"),
    [
        (bearer(jwt({"sub": "alice"})), "alice"),
        (bearer(jwt({"sub": " al?>ice é \n"})), "al?>ice é"),
        (bearer(jwt({"sub": "alice"}), b"logicalCluster=lkc-1\x01"), "alice"),
        (bearer(jwt({"sub": "bob"}), b"auth=bEARER   " + jwt({"sub": "alice"}) + b"\x01"), "alice"),
        (b"n,a=alice,\x01auth=Bearer " + jwt({"sub": "alice"}) + b"\x01\x01", "alice"),
        (bearer(b"e30." + b64encode(b'{"sub":"\xc3\xbf\xc3\xbe?"}') + b"."), "ÿþ?"),
        (bearer(jwt({"sub": 7})), ""),
        (bearer(jwt({"sub": ""})), ""),
        (bearer(jwt({"sub": " "})), ""),
        (bearer(jwt({"other": "alice"})), ""),
        (bearer(jwt(["alice"])), ""),
        (bearer(b"e30.eyJzdWIiOiJcdWQ4MDAifQ."), ""),  # half of a surrogate pair
        (bearer(b"e30." + b64encode(b"[" * 60_000) + b"."), ""),
        (bearer(b"opaque"), ""),
        (bearer(b"a.b.c.d.e"), ""),  # encrypted
        (bearer(b"a.!.c"), ""),
        (bearer(jwt({"sub": "alice"})) + b"\x01", ""),
        (b"n,,\x01x=y\x01\x01", ""),
        (b"y,,\x01auth=Bearer " + jwt({"sub": "alice"}) + b"\x01\x01", ""),
        (b"n,,\x01auth=Basic " + jwt({"sub": "alice"}) + b"\x01\x01", ""),
    ],
)
def test_names_of_tokens(token: bytes, name: str) -> None:
    assert name_in("OAUTHBEARER", token) == name


def test_the_claim_is_configurable() -> None:
    assert name_in("OAUTHBEARER", bearer(jwt({"sub": "x", "email": "a@b"})), "email") == "a@b"


def test_bytes_after_a_request_are_ignored_as_by_brokers() -> None:
    talk = Talk("PLAIN")
    talk.exchange.ask(SASL_AUTHENTICATE, 1, message(ALICE, 1) + b"more", 0)
    assert talk.exchange.answer(SASL_AUTHENTICATE, 1, reply(b"", 1), 0) == "alice"


@given(
    st.sampled_from(sorted(MECHANISMS)), st.lists(st.tuples(st.binary(max_size=60), st.binary(max_size=8)), max_size=4)
)
def test_messages_of_any_bytes_are_forwarded(mechanism: str, messages: list[tuple[bytes, bytes]]) -> None:
    talk = Talk(mechanism)
    for token, answer in messages:
        name = talk.send(token, answer)
        assert name is None or len(name) <= 60


@given(st.sampled_from([SASL_HANDSHAKE, SASL_AUTHENTICATE]), st.sampled_from([1, 2]), st.binary(max_size=40))
def test_frames_of_any_bytes_are_read_or_refused(api_key: int, version: int, body: bytes) -> None:
    exchange = Exchange("sub")
    version = 1 if api_key == SASL_HANDSHAKE else version
    for take in (exchange.ask, exchange.answer):
        with suppress(ProtocolError):
            take(api_key, version, body, 0)
