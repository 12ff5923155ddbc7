"""How many milliseconds the proxy adds to what an application waits for, at a real broker.

One producer connects to the broker and one to the proxy in front of it. They take turns to send one record and wait for
its acknowledgement (`acks=all`), so that both meet the same moments of a busy machine. "delivery" is the time from
sending a record to reading it with a consumer that waits for it; producer and consumer use the same route. No limit is
reached: what a limit adds is its purpose.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from confluent_kafka.admin import AdminClient, NewTopic

from bench.load import percentile
from bench.options import Options
from bench.peers import ONE_LIMIT, proxy
from bench.processes import PeerError
from bench.real_broker import host_port
from bench.report import Figure
from deploy.local.cluster import KafkaCluster
from deploy.local.errors import PlaygroundError

NAME = "added_latency"
SIZES = {"1 KiB": 1 << 10, "100 KiB": 100 << 10}
PRODUCE, DELIVERY = "produce {}", "delivery {}"
DIRECT, PROXY = "direct", "proxy"
TOPIC = "added-latency"
WARM_UP = 50
#: Sends one record and returns when the application has what it waits for.
Exchange = Callable[[bytes], Awaitable[None]]


def run(options: Options) -> list[Figure]:
    """p50 and p99 of each route, in ms, and the medians' difference for each round. Raises PeerError."""
    scenarios = [(text.format(name), size) for text in (PRODUCE, DELIVERY) for name, size in SIZES.items()]
    wanted = [(name, size) for name, size in scenarios if options.scenario in name]
    if not wanted:
        return []
    rounds, records = options.rounds or (1 if options.quick else 5), 200 if options.quick else 1000
    try:
        with KafkaCluster(1) as cluster:
            [address] = cluster.node_addresses.values()
            admin = AdminClient({"bootstrap.servers": host_port(address)})
            admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(30)
            with proxy(address, None, quotas=ONE_LIMIT) as peer:
                routes = {DIRECT: host_port(address), PROXY: host_port(peer.address)}
                return asyncio.run(_measure(routes, wanted, rounds, records, options.progress))
    except (PlaygroundError, KafkaError) as error:
        raise PeerError(str(error)) from error


async def _measure(
    routes: dict[str, str],
    scenarios: list[tuple[str, int]],
    rounds: int,
    records: int,
    progress: Callable[[str], None],
) -> list[Figure]:
    figures = []
    for name, size in scenarios:
        opened = _delivery if name.startswith(DELIVERY.format("")) else _acknowledgement
        async with AsyncExitStack() as stack:
            exchanges = {route: await stack.enter_async_context(opened(at)) for route, at in routes.items()}
            await _times_ns(exchanges, bytes(size), WARM_UP)
            taken = []
            for number in range(rounds):
                progress(f"{name}, {records} records on each route, round {number + 1} of {rounds}")
                taken.append(await _times_ns(exchanges, bytes(size), records))
        for quantile, metric in ((0.5, "p50"), (0.99, "p99")):
            values = {
                route: tuple(percentile(times[route], quantile) / 1e6 for times in taken) for route in (DIRECT, PROXY)
            }
            figures += [Figure(NAME, name, metric, "ms", route, each) for route, each in values.items()]
            added = tuple(through - direct for through, direct in zip(values[PROXY], values[DIRECT], strict=True))
            figures.append(Figure(NAME, name, metric, "ms", "added", added))
    return figures


async def _times_ns(exchanges: dict[str, Exchange], value: bytes, records: int) -> dict[str, list[int]]:
    """How long each exchange took, by route. The routes take turns, record by record."""
    times: dict[str, list[int]] = {route: [] for route in exchanges}
    for _ in range(records):
        for route, exchange in exchanges.items():
            began = time.perf_counter_ns()
            await exchange(value)
            times[route].append(time.perf_counter_ns() - began)
    return times


@asynccontextmanager
async def _acknowledgement(bootstrap: str) -> AsyncIterator[Exchange]:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=0) as producer:

        async def exchange(value: bytes) -> None:
            await producer.send_and_wait(TOPIC, value)

        yield exchange


@asynccontextmanager
async def _delivery(bootstrap: str) -> AsyncIterator[Exchange]:
    """Reads what it has sent itself: records of the other route are skipped."""
    partition = TopicPartition(TOPIC, 0)
    async with (
        AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=0) as producer,
        AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False) as consumer,
    ):
        consumer.assign([partition])
        await consumer.seek_to_end(partition)
        await consumer.position(partition)

        async def exchange(value: bytes) -> None:
            sent = await producer.send(TOPIC, value, partition=0)
            while (await consumer.getone()).offset != (await sent).offset:
                pass

        yield exchange
