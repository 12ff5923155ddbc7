"""How evenly a client that wants more is held to 5 MB/s, second by second, at a real broker.

A tap between proxy and broker notes each complete Produce frame, and one between proxy and client each complete Fetch
response; `deploy.local.evenness` judges the seconds as the
project's contract says: all but the first and the last, each within 2 % of the limit (or one request per connection,
where that is more), their mean within 0.5 %. The same client straight at the broker under the broker's own quota of the
same size is there for comparison.
"""

from collections.abc import Iterator, Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from bench.flooding_clients import LIBRARIES
from bench.options import Options
from bench.peers import proxy
from bench.processes import LOOPBACK, PeerError
from bench.real_broker import NODE, Broker, Flood, fill, flood, host_port, read, tapped_broker
from bench.report import Figure
from demo.proxy_process import reserve_port
from deploy.local.broker_quota import client_quotas
from deploy.local.errors import PlaygroundError
from deploy.local.evenness import MEAN_TOLERANCE, SHARE_THAT_MUST_HOLD, Evenness, measure, share_holding
from deploy.local.settings import Address
from deploy.local.tap import Tap

NAME = "evenness"
LIMIT = 5_000_000
QUOTA = f"client-id=<default>,producer_byte_rate={LIMIT}"
#: A response brings as much as the burst allows, at least a batch.
FETCH_QUOTA = f"client-id=<default>,consumer_byte_rate={LIMIT},burst_seconds=0.1"
#: Where consumers connect: a relay of the tap stands there, in front of each port of the proxy.
CLIENT_SIDE = "127.0.0.9"
COMPARED_LIBRARY = "aiokafka"
CONSUMER = "{}, consumer"
TOPIC = "evenness-consumers"


def run(options: Options) -> list[Figure]:
    """Each client library through the proxy, one under the broker's own quota too. Raises PeerError, LoadError."""
    rounds, seconds = options.rounds or (1 if options.quick else 3), 12 if options.quick else 30
    loads = {**dict.fromkeys(LIBRARIES, _produce), **dict.fromkeys(map(CONSUMER.format, LIBRARIES), _consume)}
    through: dict[str, list[Evenness]] = {name: [] for name in loads if options.scenario in name}
    if not through:
        return []
    try:
        with tapped_broker() as broker:
            if any(loads[name] is _consume for name in through):
                options.progress(f"{LIMIT * (seconds + 10) / 1e6:.0f} MB for the consumers")
                _fill(broker, LIMIT * (seconds + 10))
            for number in range(rounds):
                for name, runs in through.items():
                    options.progress(f"{name} through the proxy, {seconds} s, run {number + 1} of {rounds}")
                    library = name.partition(",")[0]
                    runs.append(_measure(loads[name](broker, library, f"{library}-{number}", seconds + 1)))
                    options.progress(_seconds(runs[-1]))
            figures = [figure for name, runs in through.items() for figure in _figures(name, "proxy", runs)]
            if COMPARED_LIBRARY in through:
                client_id = f"{COMPARED_LIBRARY}-broker-quota"
                options.progress(f"{COMPARED_LIBRARY} under the broker's own quota, {seconds} s")
                with client_quotas(broker.address, client_id, {"producer_byte_rate": LIMIT}):
                    run_ = _measure(_flood(broker, COMPARED_LIBRARY, broker.address, client_id, seconds + 1))
                options.progress(_seconds(run_))
                figures += _figures(COMPARED_LIBRARY, "broker's quota", [run_])
    except (PlaygroundError, KafkaException) as error:
        raise PeerError(str(error)) from error
    return figures


def _produce(broker: Broker, library: str, client_id: str, seconds: int) -> Flood:
    with proxy(broker.address, None, quotas=[QUOTA]) as peer:
        return _flood(broker, library, peer.address, client_id, seconds)


def _flood(broker: Broker, library: str, bootstrap: Address, client_id: str, seconds: int) -> Flood:
    return flood(broker.tap, library, bootstrap, client_id, f"evenness-{client_id}", seconds)


def _consume(broker: Broker, library: str, client_id: str, seconds: int) -> Flood:
    """Through a tap in front of each port of the proxy, which names the tap's address in what it rewrites."""
    port, sockets = reserve_port(LOOPBACK, CLIENT_SIDE)
    arguments = ("--broker-port", f"{NODE}={port}", "--advertised-host", CLIENT_SIDE)
    with Tap() as tap, proxy(broker.address, None, quotas=[FETCH_QUOTA], arguments=arguments) as peer:
        try:
            bootstrap = tap.relay(peer.address, (CLIENT_SIDE, 0))
            tap.relay((LOOPBACK, port), (CLIENT_SIDE, port))
            return read(tap, library, bootstrap, client_id, TOPIC, seconds)
        finally:
            for each in sockets:
                each.close()


def _fill(broker: Broker, size: int) -> None:
    bootstrap = host_port(broker.address)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(30)
    fill(bootstrap, TOPIC, size)


def _measure(run_: Flood) -> Evenness:
    """The last second is not judged."""
    connections = len({frame.connection for frame in run_.frames})
    return measure([(frame.time_ns, frame.size) for frame in run_.frames], LIMIT, connections=connections)


def _seconds(run_: Evenness) -> str:
    return "MB in each second: " + " ".join(f"{size / 1e6:.2f}" for size in run_.bins)


def _figures(library: str, peer: str, runs: Sequence[Evenness]) -> Iterator[Figure]:
    """Worst of all runs where there is a worst; the contract asks it of every run."""
    judged = peer == "proxy"
    bins = [size for run_ in runs for size in run_.judged]

    def figure(metric: str, unit: str, value: float, target: float | None = None, *, at_least: bool = False) -> Figure:
        target = target if judged else None
        return Figure(NAME, library, metric, unit, peer, (value,), target=target, at_least=at_least)

    yield figure("seconds that hold", "%", share_holding(runs) * 100, SHARE_THAT_MUST_HOLD * 100, at_least=True)
    yield figure("mean off the limit", "%", max(abs(run_.mean_error) for run_ in runs) * 100, MEAN_TOLERANCE * 100)
    yield figure("tolerance of a second", "%", max(run_.tolerance_bytes for run_ in runs) / LIMIT * 100)
    yield figure("first second", "MB", max(run_.bins[0] for run_ in runs) / 1e6)
    yield figure("slowest other second", "MB", min(bins) / 1e6)
    yield figure("fastest other second", "MB", max(bins) / 1e6)
