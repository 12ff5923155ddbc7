"""Proxies that many tests share, and the proof after each test that its client saw no broker's address."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from deploy.local.cluster import KafkaCluster
from deploy.local.tap import Tap
from tests.integration.scanned_proxy import ScannedProxy

Fronts = Callable[[str], ScannedProxy]

FRONTS = {
    "one": ("kafka_cluster", "uvloop"),
    "one-asyncio": ("kafka_cluster", "asyncio"),
    "three": ("kafka_cluster3", "uvloop"),
}


@pytest.fixture
def tap() -> Iterator[Tap]:
    with Tap() as running:
        yield running


@pytest.fixture
def tapped_cluster(tap: Tap) -> Iterator[KafkaCluster]:
    """One broker of the test's own, which everyone reaches through the tap: that notes what crosses the sockets."""
    with KafkaCluster(1, advertised=tap.advertise) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def fronts(request: pytest.FixtureRequest) -> Iterator[Fronts]:
    """A proxy for each name in FRONTS, started when first asked for and drained, with exit code 0, at the end."""
    started: dict[str, ScannedProxy] = {}
    with ExitStack() as stack:

        def front(name: str) -> ScannedProxy:
            if name not in started:
                cluster_name, event_loop = FRONTS[name]
                cluster: KafkaCluster = request.getfixturevalue(cluster_name)
                started[name] = stack.enter_context(ScannedProxy(cluster, event_loop=event_loop))
            return started[name]

        yield front


@pytest.fixture(params=["three", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("one", "one-asyncio"))])
def front(request: pytest.FixtureRequest, fronts: Fronts) -> Iterator[ScannedProxy]:
    """Three brokers, and one on either event loop."""
    yield from _scanned(fronts(request.param))


@pytest.fixture
def front_of_three(fronts: Fronts) -> Iterator[ScannedProxy]:
    """Three brokers."""
    yield from _scanned(fronts("three"))


def _scanned(proxied: ScannedProxy) -> Iterator[ScannedProxy]:
    """The proof belongs to each test: something was scanned, and no broker's address was in it."""
    relay = proxied.relay
    bytes_before, sightings_before = relay.bytes_scanned, relay.sightings
    events_before = len(proxied.proxy.events)
    yield proxied
    for event in proxied.proxy.events[events_before:]:
        print(event)  # shown when the test fails
    assert relay.bytes_scanned > bytes_before, "the client did not come through the relay: nothing is proven"
    assert relay.sightings == sightings_before, "a broker's own address reached the client"
