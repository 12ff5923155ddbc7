"""librdkafka before 2.11.1 tests for SaslHandshake 0 before it sends version 1; before 1.2.0 it sends version 0.

By PLAIN: in SCRAM those before 2.6.1 repeat a nonce, which Kafka 4 refuses.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.cluster import KafkaCluster
from deploy.local.errors import DownloadFailed
from deploy.local.security import Security
from protocol.apis import SASL_HANDSHAKE
from tests.integration import old_librdkafka
from tests.integration.flood import create_topics
from tests.integration.proxy_process import ProxyProcess
from tests.integration.test_sasl import SASL, log_in
from tests.integration.wire import Wire, minima

#: Sends version 0.
REFUSED = "1.1.0"


@pytest.fixture(scope="module")
def proxy(secured_cluster: KafkaCluster) -> Iterator[ProxyProcess]:
    with ProxyProcess(secured_cluster.secure_addresses(SASL)) as running:
        yield running


def connect(bootstrap: str) -> Wire:
    host, port = bootstrap.split(":")
    return Wire(host, int(port))


def test_the_conversation_of_old_clients(
    secured_cluster: KafkaCluster, proxy: ProxyProcess, security: Security
) -> None:
    """The range has version 0, version 1 logs in, and version 0 is refused with a reason in the log."""
    with connect(secured_cluster.secure_addresses(SASL)) as wire:
        direct = minima(wire)
    with connect(proxy.bootstrap_servers) as wire:
        proxied = minima(wire)
        assert log_in(wire, "alice", security.users["alice"]) == 0
    assert proxied == {key: direct[key] for key in proxied}
    assert proxied[SASL_HANDSHAKE] == 0
    with connect(proxy.bootstrap_servers) as wire, pytest.raises(EOFError):
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


@pytest.mark.nightly
@pytest.mark.parametrize("version", [version for version in old_librdkafka.WHEELS if version != REFUSED])
def test_old_librdkafkas_do_the_same_with_the_proxy_and_without(
    secured_cluster: KafkaCluster,
    proxy: ProxyProcess,
    security: Security,
    unique_name: Callable[[str], str],
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
    secured_cluster: KafkaCluster,
    proxy: ProxyProcess,
    security: Security,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topics, before = (unique_name("direct"), unique_name("proxied")), refusals(proxy)
    direct, proxied = both_ways(REFUSED, secured_cluster, proxy, security, tmp_path, topics)
    assert direct == {"version": REFUSED, "read": "its value", "errors": []}
    assert (proxied["version"], proxied["read"]) == (REFUSED, None)
    assert proxied["errors"]
    assert refusals(proxy) > before


WHEEL = "confluent_kafka-9.9.9-cp38-cp38-manylinux1_x86_64.whl"
GOOD = b"a wheel"
#: Downloads, at its nth run, the nth of its first arguments; the last one again and again.
FAKE_PIP = """
import pathlib, sys
*contents, = sys.argv[1].split(",")
dest = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
runs = pathlib.Path(__file__).with_name("runs")
number = len(runs.read_text()) if runs.exists() else 0
runs.write_text("x" * (number + 1))
content = contents[min(number, len(contents) - 1)]
if content:
    (dest / NAME).write_text(content)
else:
    sys.exit("WARNING: retrying\\nERROR: no route to host")
"""


def fetch(directory: Path, *contents: str) -> Path:
    script = directory / "pip.py"
    script.write_text(f"NAME = {WHEEL!r}\n{FAKE_PIP}")
    return old_librdkafka.fetch(
        WHEEL,
        hashlib.sha256(GOOD).hexdigest(),
        cache=directory / "cache",
        pip=(sys.executable, str(script), ",".join(contents)),
        retry_pauses_seconds=(0.0, 0.0),
    )


def test_a_wheel_is_downloaded_until_it_is_the_pinned_one_and_kept(tmp_path: Path) -> None:
    path = fetch(tmp_path, "", "half a", GOOD.decode())
    assert path.read_bytes() == GOOD
    assert fetch(tmp_path, "", "never asked") == path
    path.write_bytes(b"damaged")
    assert fetch(tmp_path, "", "", "", GOOD.decode()).read_bytes() == GOOD
    assert [each.name for each in path.parent.iterdir()] == [WHEEL]


@pytest.mark.parametrize(("content", "what"), [("", "missing"), ("another", "damaged")])
def test_a_download_that_fails_is_one_line_with_the_next_step(tmp_path: Path, content: str, what: str) -> None:
    with pytest.raises(DownloadFailed) as caught:
        fetch(tmp_path, content)
    text = str(caught.value)
    assert text.startswith(f"cannot fetch {WHEEL}: it is {what} after 3 attempts")
    assert ("(ERROR: no route to host)" in text) == (content == "")
    assert "check the network" in text
    assert "\n" not in text
