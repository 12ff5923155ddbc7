"""Replicas of a shared proxy, with the chart's own arguments, behind a Service: `kubectl scale` changes no total."""

import asyncio
import itertools
import threading
from asyncio import StreamReader, StreamWriter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Self

import pytest

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.deploy.operator.test_chart import CHART, rendered
from tests.integration.flood import Flood, written
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.topics import create_topics

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(400),
    pytest.mark.claim("fleet", "one, two and four replicas of the chart behind one Service keep one limit"),
]

#: `port` of the chart here, and `adminPort`.
PORT, ADMIN = 29792, 29804
RATE: Final = 1_000_000
SECONDS: Final = 5.0
CLIENTS: Final = 6
#: The fleet's first members wait 16 s, and parts of a limit take their time to move on a busy machine.
PATIENCE_SECONDS: Final = 90


class Service:
    """As a Service without session affinity: each connection goes to another of its `endpoints`, on the same port."""

    def __init__(self, host: str, ports: list[int]) -> None:
        self._host, self._ports = host, ports
        self.endpoints: list[str] = []
        self._turns = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        for port in self._ports:

            async def serve(reader: StreamReader, writer: StreamWriter, port: int = port) -> None:
                host = self.endpoints[next(self._turns) % len(self.endpoints)]
                with suppress(OSError):
                    back, forth = await asyncio.open_connection(host, port)
                    await asyncio.gather(self._pass(reader, forth), self._pass(back, writer))
                writer.close()

            self._servers.append(await asyncio.start_server(serve, self._host, port))

    async def _pass(self, reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def arguments(cluster: KafkaCluster, quotas: Path, host: str, *options: str) -> list[str]:
    """What the chart gives to a replica, as flags and values, with files and the pod's address of this machine."""
    sets = {
        "bootstrapServers": cluster.bootstrap_servers.replace(",", r"\,"),
        "port": str(PORT),
        "adminPort": str(ADMIN),
        "shared.advertisedHost": "127.0.0.1",
    }
    flags = [part for name, value in sets.items() for part in ("--set", f"{name}={value}")]
    objects = rendered(CHART / "ci/shared-values.yaml", *flags, *options)
    [pod] = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Deployment"]
    own = ("--bootstrap-servers", "--log-format")  # ProxyProcess gives them itself
    found = []
    for each in pod["containers"][0]["args"][1:]:
        flag, _, value = each.partition("=")
        value = value.replace("[::]", host).replace("/etc/kafka-quota-proxy/quotas", str(quotas.parent))
        found += [] if flag in own else [flag, value]
    return found


def test_replicas_share_one_limit(kafka_cluster: KafkaCluster, unique_name: UniqueName, tmp_path: Path) -> None:
    topic = unique_name("replicas")
    create_topics(kafka_cluster, topic, partitions=6)
    quotas = tmp_path / "quotas.toml"
    quotas.write_text(f'[[quota]]\nclient-id = "etl"\nproducer_byte_rate = {RATE}\n')
    chosen = ("--set", f"fleet.topic={unique_name('fleet')}")
    with ExitStack() as stack:
        service = stack.enter_context(Service("127.0.0.1", [*range(PORT, PORT + 4)]))
        replicas: list[ProxyProcess] = []

        def scale_to(number: int) -> None:
            while len(replicas) > number:
                service.endpoints.pop()
                replicas.pop().stop()
            while len(replicas) < number:
                host = f"127.0.0.{11 + len(replicas)}"
                replica = ProxyProcess(
                    kafka_cluster.bootstrap_servers, *arguments(kafka_cluster, quotas, host, *chosen)
                )
                stack.callback(replica.kill)
                replicas.append(replica.start())
                service.endpoints.append(host)
            for each in replicas:
                each.wait_for_event("fleet_joined", PATIENCE_SECONDS)

        def rate_of_all() -> float:
            seconds, *sizes = written(SECONDS, *floods)
            return sum(sizes) / seconds

        scale_to(2)
        floods = [stack.enter_context(Flood(f"127.0.0.1:{PORT}", "etl", topic)) for _ in range(CLIENTS)]
        for number in (2, 4, 1):
            scale_to(number)
            # A new replica gets new connections only.
            floods += [stack.enter_context(Flood(f"127.0.0.1:{PORT}", "etl", topic)) for _ in range(number)]
            eventually(lambda: 0.6 * RATE < rate_of_all() < 1.25 * RATE, PATIENCE_SECONDS, f"one limit for {number}")
            for each in replicas:
                assert each.metric("connections"), "each has clients"
