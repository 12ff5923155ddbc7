"""Whole proxies in virtual time: a backfill yields to an online producer when brokers get slow, and says why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from proxy.config.config import Config, ListeningOptions, ObservabilityOptions, QuotaOptions
from proxy.observability.metrics import MovingRate
from quotas.parsing.parse import parse_spec
from simulation.broker import Broker
from simulation.cluster import Cluster
from simulation.kernel import SECOND, Kernel
from simulation.network import Network
from simulation.process import ProxyProcess
from simulation.producer import Producer, Shape

HOST = "192.0.2.1"
BATCH = 16_384
QUOTA = (
    "resource-group=backfill,client-id=backfill-*,producer_byte_rate=2MB..100MB,yield_to=client-id:online,target=50ms"
)


class BusyBroker(Broker):
    """Appends one request after the other, so many bytes per second."""

    bytes_per_second = 50e6
    _free_ns = 0

    def work_ns(self, size: int) -> int:
        now_ns = self.kernel.now_ns
        self._free_ns = max(now_ns, self._free_ns) + int(size * SECOND / self.bytes_per_second)
        return self._free_ns - now_ns + super().work_ns(0)


class Scene:
    """Three brokers, a proxy, an online producer of 3 MB/s, and a backfill that would send all it can."""

    def __init__(self, kernel: Kernel) -> None:
        network = Network(kernel)
        network.buffer_bytes = 1 << 20
        cluster = Cluster({"events": 3}, 3)
        self.kernel = kernel
        self.brokers = [BusyBroker(kernel, network, cluster, n, (f"192.0.2.{n + 2}", 9092)) for n in range(3)]
        config = Config(
            bootstrap_servers=(("192.0.2.2", 9092),),
            listening=ListeningOptions(address=(HOST, 19092), advertised_host=HOST),
            observability=ObservabilityOptions(metrics_listen=(HOST, 19404)),
            quotas=QuotaOptions(entries=(parse_spec(QUOTA),)),
        )
        self.proxy = ProxyProcess(kernel, network, HOST, config)
        kernel.run(1)
        common = [self.proxy.listens_at], ["events"]
        shape = Shape(3e6, BATCH, 10, acks=-1, version=8, request_bytes=BATCH)
        self.online = Producer(kernel, network, "198.51.100.1", "online", *common, shape=shape, first=0)
        shape = Shape(300e6, 65_536, 10, acks=-1, version=8)
        self.backfill = Producer(kernel, network, "198.51.100.2", "backfill-1", *common, shape=shape, first=1 << 32)

    @property
    def moving(self) -> MovingRate:
        [found] = self.proxy.server.metrics.sources.moving()
        return found

    def slow_share(self, seconds: int) -> float:
        """Of the online records that were delivered in these seconds: how many took longer than the target."""
        before = len(self.online.waits_ns)
        self.kernel.run(seconds)
        waits = self.online.waits_ns[before:]
        return sum(wait_ns > 0.05 * SECOND for _, wait_ns in waits) / len(waits)


@contextmanager
def a_scene() -> Iterator[Scene]:
    scene = Scene(Kernel(1))
    try:
        yield scene
    finally:
        scene.online.stop()
        scene.backfill.stop()
        scene.proxy.close()


@pytest.mark.claim("limits", "a backfill yields within seconds if one broker gets slow, and explain names that broker")
def test_it_rises_while_there_is_room_and_yields_to_one_slow_broker() -> None:
    with a_scene() as scene:
        scene.kernel.run(20)
        raised = scene.moving.rate
        assert raised > 2e6 * 1.15**12
        assert scene.moving.cuts == 0
        scene.brokers[1].bytes_per_second = 4e6  # of which the online producer needs 1 MB/s
        scene.kernel.run(8)
        assert scene.moving.cuts > 0
        assert scene.moving.rate < 0.75 * raised
        assert "broker 192.0.2.3:9092" in scene.moving.why
        assert scene.slow_share(10) < 0.15, "a third, when it began"
        scene.brokers[1].bytes_per_second = 50e6
        low = scene.moving.rate
        scene.kernel.run(20)
        assert scene.moving.rate > 1.1 * low
