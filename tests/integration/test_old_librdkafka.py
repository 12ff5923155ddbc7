"""librdkafka before 2.11.1 tests for SaslHandshake 0 before it sends version 1; before 1.2.0 it sends version 0.

By PLAIN: in SCRAM those before 2.6.1 repeat a nonce, which Kafka 4 refuses.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.cluster import KafkaCluster
from deploy.local.security import Security
from protocol.apis import SASL_HANDSHAKE
from tests.conftest import UniqueName
from tests.integration import old_librdkafka
from tests.integration.proxy_process import ProxyProcess
from tests.integration.test_sasl import SASL, log_in
from tests.integration.topics import create_topics
from tests.integration.wire import Wire, minima

#: Sends version 0.
REFUSED = "1.1.0"


@pytest.fixture(scope="module")
def proxy(secured_cluster: KafkaCluster) -> Iterator[ProxyProcess]:
    with ProxyProcess(secured_cluster.secure_addresses(SASL)) as running:
        yield running


def test_the_conversation_of_an_old_one(secured_cluster: KafkaCluster, proxy: ProxyProcess, security: Security) -> None:
    """The range has version 0, version 1 logs in, and version 0 is refused with a reason in the log."""
    with Wire(secured_cluster.secure_addresses(SASL)) as wire:
        direct = minima(wire)
    with Wire(proxy.bootstrap_servers) as wire:
        proxied = minima(wire)
        assert log_in(wire, "alice", security.users["alice"]) == 0
    assert proxied == {key: direct[key] for key in proxied}
    assert proxied[SASL_HANDSHAKE] == 0
    with Wire(proxy.bootstrap_servers) as wire, pytest.raises(EOFError):
        wire.ask(SASL_HANDSHAKE, 0, b"\x00\x05PLAIN")
    refused = proxy.wait_for_event("protocol_error", 20, reason="unsupported_version")
    assert refused["detail"] == "the proxy does not forward SaslHandshake version 0"
    assert "librdkafka 1.2.0" in refused["hint"]


def refusals(proxy: ProxyProcess) -> float:
    return proxy.metric("protocol_errors_total", reason="unsupported_version")


def both_ways(
    version: str,
    cluster: KafkaCluster,
    proxy: ProxyProcess,
    security: Security,
    directory: Path,
    topics: tuple[str, str],
) -> list[dict[str, Any]]:
    """What the version prints directly and by the proxy."""
    create_topics(cluster, *topics)
    library = old_librdkafka.library(version, directory)
    user = {"sasl.username": "alice", "sasl.password": security.users["alice"], "client.id": topics[1]}
    settings = {"security.protocol": "sasl_plaintext", "sasl.mechanisms": "PLAIN", **user}
    return [
        old_librdkafka.produce_and_read(library, {**settings, "bootstrap.servers": bootstrap}, topic, "its value")
        for bootstrap, topic in zip((cluster.secure_addresses(SASL), proxy.bootstrap_servers), topics, strict=True)
    ]


@pytest.mark.claim(
    "security", "so are librdkafka releases from 2019 to 2025 that log in only if SaslHandshake 0 is offered"
)
@pytest.mark.nightly
@pytest.mark.parametrize("version", [version for version in old_librdkafka.WHEELS if version != REFUSED])
def test_old_librdkafkas_do_the_same_with_the_proxy_and_without(
    secured_cluster: KafkaCluster,
    proxy: ProxyProcess,
    security: Security,
    unique_name: UniqueName,
    tmp_path: Path,
    version: str,
) -> None:
    topics = (unique_name("direct"), unique_name("proxied"))
    results = both_ways(version, secured_cluster, proxy, security, tmp_path, topics)
    assert results == [{"version": version, "read": "its value", "errors": []}] * 2
    for direction in ("produce", "fetch"):
        assert proxy.metric("bytes_total", direction=direction, user="alice", client_id=topics[1]) > 0


@pytest.mark.nightly
def test_a_librdkafka_that_sends_version_0_is_refused(
    secured_cluster: KafkaCluster, proxy: ProxyProcess, security: Security, unique_name: UniqueName, tmp_path: Path
) -> None:
    topics, before = (unique_name("direct"), unique_name("proxied")), refusals(proxy)
    direct, proxied = both_ways(REFUSED, secured_cluster, proxy, security, tmp_path, topics)
    assert direct == {"version": REFUSED, "read": "its value", "errors": []}
    assert (proxied["version"], proxied["read"]) == (REFUSED, None)
    assert proxied["errors"]
    assert refusals(proxy) > before
