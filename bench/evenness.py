"""How evenly a client that wants more is held to 5 MB/s, second by second, at a real broker.

A tap between proxy and broker notes each complete Produce frame; `deploy.local.evenness` judges the seconds as the
project's contract says: all but the first and the last, each within 2 % of the limit (or one request per connection,
where that is more), their mean within 0.5 %. The same client straight at the broker under the broker's own quota of the
same size is there for comparison.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench.flooding_clients import LIBRARIES, command
from bench.load import LoadError
from bench.options import Options
from bench.peers import proxy
from bench.processes import PeerError, running
from bench.report import Figure
from deploy.local.cluster import KafkaCluster
from deploy.local.errors import PlaygroundError
from deploy.local.evenness import MEAN_TOLERANCE, SHARE_THAT_MUST_HOLD, Evenness, measure, share_holding
from deploy.local.settings import Address
from deploy.local.tap import Tap
from pipeline.demo.broker_quota import producer_byte_rate

NAME = "evenness"
LIMIT = 5_000_000
COMPARED_LIBRARY = "aiokafka"
PATIENCE_SECONDS = 30.0


def run(options: Options) -> list[Figure]:
    """Each client library through the proxy, one under the broker's own quota too. Raises PeerError, LoadError."""
    rounds, seconds = options.rounds or (1 if options.quick else 3), 12 if options.quick else 30
    chosen = [library for library in LIBRARIES if options.scenario in library]
    if not chosen:
        return []
    through: dict[str, list[Evenness]] = {library: [] for library in chosen}
    try:
        with _taps() as (tap, broker):
            for number in range(rounds):
                for library in chosen:
                    with proxy(broker, None, quotas=[f"client-id=<default>,producer_byte_rate={LIMIT}"]) as peer:
                        client_id = f"{library}-{number}"
                        options.progress(f"{library} through the proxy, {seconds} s, run {number + 1} of {rounds}")
                        run_ = _flood(tap, library, peer.address, client_id, seconds)
                    options.progress(_seconds(run_))
                    through[library].append(run_)
            figures = [figure for library, runs in through.items() for figure in _figures(library, "proxy", runs)]
            if COMPARED_LIBRARY in chosen:
                client_id = f"{COMPARED_LIBRARY}-broker-quota"
                options.progress(f"{COMPARED_LIBRARY} under the broker's own quota, {seconds} s")
                with producer_byte_rate(broker, client_id, float(LIMIT)):
                    run_ = _flood(tap, COMPARED_LIBRARY, broker, client_id, seconds)
                options.progress(_seconds(run_))
                figures += _figures(COMPARED_LIBRARY, "broker's quota", [run_])
    except PlaygroundError as error:
        raise PeerError(str(error)) from error
    return figures


@contextmanager
def _taps() -> Iterator[tuple[Tap, Address]]:
    """A real broker behind a tap: the tap, and the address that everybody is told."""
    with Tap() as tap, KafkaCluster(1, advertised=tap.advertise) as cluster:
        yield tap, next(iter(cluster.advertised_addresses.values()))


def _flood(tap: Tap, library: str, bootstrap: Address, client_id: str, seconds: int) -> Evenness:
    """Let the client send for `seconds` from its first data frame on."""
    before = tap.unreadable
    argv = command(library, f"{bootstrap[0]}:{bootstrap[1]}", client_id, f"evenness-{client_id}")
    with running(argv, None) as (process, output):
        deadline = time.monotonic() + PATIENCE_SECONDS
        ends_ns = None
        while ends_ns is None or time.monotonic_ns() < ends_ns:
            if process.poll() is not None or (ends_ns is None and time.monotonic() > deadline):
                output.seek(0)
                text = output.read()[-2000:].decode(errors="replace")
                raise LoadError(f"{library} sent nothing, or ended with {process.returncode}:\n{text}")
            time.sleep(0.1)
            if ends_ns is None and (frames := tap.sizes("produce", client_id)):
                ends_ns = frames[0][0] + (seconds + 1) * 1_000_000_000
    seen = tap.frames("produce", client_id)
    if tap.unreadable > before:
        raise LoadError(f"{tap.unreadable - before} connections were not Kafka's: nothing of them was measured")
    connections = len({frame.connection for frame in seen})
    return measure([(frame.time_ns, frame.size) for frame in seen], LIMIT, connections=connections)


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
