"""OAUTHBEARER where the broker verifies signed tokens, by the keys of their issuer (JWKS)."""

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

from deploy.local.cluster import KafkaCluster
from deploy.local.security import Security
from tests.integration.librdkafka import produce, records_in
from tests.integration.proxy_process import ProxyProcess
from tests.integration.wire import Wire

pytestmark = pytest.mark.nightly

SASL = "SASL_PLAINTEXT"
OAUTH = "org.apache.kafka.common.security.oauthbearer"
#: The claim that is the user, for the broker and for the proxy.
SUB_CLAIM = ("--sasl-oauthbearer-sub-claim-name", "azp")
VALUES = [bytes(10_000)] * 40


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def jwks(key: RSAPrivateKey) -> str:
    """What an issuer publishes of its key."""
    numbers = key.public_key().public_numbers()
    public = {"n": base64url(numbers.n.to_bytes(256, "big")), "e": base64url(numbers.e.to_bytes(3, "big"))}
    return json.dumps({"keys": [{"kty": "RSA", "kid": "k", "alg": "RS256", "use": "sig", **public}]})


def signed(key: RSAPrivateKey, user: str, *, seconds: int = 600, **claims: str) -> str:
    """A token, valid for so long."""
    now = int(datetime.now(UTC).timestamp())
    body = {"azp": user, "sub": "no-user", "aud": "kafka", "iss": "issuer", "iat": now, "exp": now + seconds, **claims}
    token = ".".join(base64url(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "k"}, body))
    return f"{token}.{base64url(key.sign(token.encode(), PKCS1v15(), SHA256()))}"


@pytest.fixture(scope="module")
def key() -> RSAPrivateKey:
    return generate_private_key(65_537, 2_048)


@pytest.fixture(scope="module")
def cluster(key: RSAPrivateKey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    keys = tmp_path_factory.mktemp("issuer") / "jwks.json"
    keys.write_text(jwks(key))
    listener = f"listener.name.{SASL.lower()}.oauthbearer.sasl"
    overrides = {
        f"{listener}.server.callback.handler.class": f"{OAUTH}.OAuthBearerValidatorCallbackHandler",
        f"{listener}.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.expected.issuer": "issuer",
        "sasl.oauthbearer.sub.claim.name": "azp",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys.as_uri()}")
        running = KafkaCluster(overrides=overrides, security=Security()).start()
    with running:
        yield running


def refusal(bootstrap: str, token: str) -> list[tuple[int, bytes]]:
    """Error codes and messages of a broker that is shown this token."""
    with Wire(bootstrap) as wire:
        wire.ask_entity(SaslHandshakeRequest(mechanism="OAUTHBEARER"))
        messages = (f"n,,\x01auth=Bearer {token}\x01\x01".encode(), b"\x01")
        answers = [wire.ask_entity(SaslAuthenticateRequest(auth_bytes=message))[0] for message in messages]
    return [(int(answer.error_code), answer.auth_bytes) for answer in answers]


@pytest.mark.claim(
    "security",
    "forged, expired and foreign tokens get the broker's own response and name nobody, where the "
    "broker verifies tokens with the issuer's keys (JWKS); the proxy replaces its own token "
    "before it expires",
)
def test_tokens_of_clients(cluster: KafkaCluster, key: RSAPrivateKey) -> None:
    """Who shows a good one is the user of its claim; others get the broker's answer, and are nobody."""
    direct, stranger = cluster.secure_addresses(SASL), generate_private_key(65_537, 2_048)
    with ProxyProcess(direct, *SUB_CLAIM) as proxy:
        settings: dict[str, Any] = {"bootstrap.servers": proxy.bootstrap_servers, "security.protocol": SASL}
        settings |= {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: (signed(key, "alice"), 2_000_000_000.0)}
        produce(Producer(settings), "tokens-of-clients", VALUES)
        assert proxy.metric("bytes_total", direction="produce", user="alice") > sum(map(len, VALUES))
        for token in (
            signed(stranger, "mallory"),
            signed(key, "mallory", seconds=-3_600),
            signed(key, "mallory", aud="other"),
            signed(key, "mallory", iss="other"),
        ):
            [challenge, end] = refusal(proxy.bootstrap_servers, token)
            assert [challenge, end] == refusal(direct, token)
            assert (challenge[0], json.loads(challenge[1])["status"], end[0]) == (0, "invalid_token", 58)
        assert "mallory" not in proxy.metrics()


@pytest.mark.claim(
    "security",
    "forged, expired and foreign tokens get the broker's own response and name nobody, where the "
    "broker verifies tokens with the issuer's keys (JWKS); the proxy replaces its own token "
    "before it expires",
)
def test_the_proxys_token_is_replaced_in_time(cluster: KafkaCluster, key: RSAPrivateKey, tmp_path: Path) -> None:
    """The session of its login ends with its token, and the producer runs for longer."""
    topic = "token-of-the-proxy"
    token, file = tmp_path / "token", tmp_path / "client.properties"
    token.write_text(signed(key, "etl", seconds=8))
    file.write_text(
        f"security.protocol={SASL}\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.jaas.config={OAUTH}.OAuthBearerLoginModule required;\nsasl.oauthbearer.token.endpoint.url=file:{token}\n"
    )
    flags = ("--command-config", str(file), "--quota", "user=etl,producer_byte_rate=25kB,burst_seconds=0.1")
    errors: list[KafkaError] = []
    with ProxyProcess(cluster.secure_addresses(SASL), *SUB_CLAIM, *flags) as proxy:
        settings = {"message.max.bytes": 1_000_000, "batch.num.messages": 1, "max.in.flight": 1}
        producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, "error_cb": errors.append, **settings})
        produce(producer, topic, VALUES[:1])
        token.write_text(signed(key, "etl"))
        produce(producer, topic, VALUES[1:])
        assert errors == []
        assert proxy.metric("throttled_total", user="etl") > 0
    assert records_in(cluster, topic) == len(VALUES)
