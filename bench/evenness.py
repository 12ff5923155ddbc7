"""How evenly a client that wants more is held to 5 MB/s, second by second, at a real broker.

A tap between proxy and broker notes each complete Produce frame; `deploy.local.evenness` judges the seconds as the
project's contract says: all but the first and the last, each within 2 % of the limit (or one request per connection,
where that is more), their mean within 0.5 %. The same client straight at the broker under the broker's own quota of the
same size is there for comparison.
"""

from collections.abc import Iterator, Sequence

from bench.flooding_clients import LIBRARIES
from bench.options import Options
from bench.peers import proxy
from bench.processes import PeerError
from bench.real_broker import Broker, flood, tapped_broker
from bench.report import Figure
from deploy.local.broker_quota import client_quotas
from deploy.local.errors import PlaygroundError
from deploy.local.evenness import MEAN_TOLERANCE, SHARE_THAT_MUST_HOLD, Evenness, measure, share_holding
from deploy.local.settings import Address

NAME = "evenness"
LIMIT = 5_000_000
QUOTA = f"client-id=<default>,producer_byte_rate={LIMIT}"
COMPARED_LIBRARY = "aiokafka"


def run(options: Options) -> list[Figure]:
    """Each client library through the proxy, one under the broker's own quota too. Raises PeerError, LoadError."""
    rounds, seconds = options.rounds or (1 if options.quick else 3), 12 if options.quick else 30
    chosen = [library for library in LIBRARIES if options.scenario in library]
    if not chosen:
        return []
    through: dict[str, list[Evenness]] = {library: [] for library in chosen}
    try:
        with tapped_broker() as broker:
            for number in range(rounds):
                for library in chosen:
                    with proxy(broker.address, None, quotas=[QUOTA]) as peer:
                        client_id = f"{library}-{number}"
                        options.progress(f"{library} through the proxy, {seconds} s, run {number + 1} of {rounds}")
                        run_ = _run(broker, library, peer.address, client_id, seconds)
                    options.progress(_seconds(run_))
                    through[library].append(run_)
            figures = [figure for library, runs in through.items() for figure in _figures(library, "proxy", runs)]
            if COMPARED_LIBRARY in chosen:
                client_id = f"{COMPARED_LIBRARY}-broker-quota"
                options.progress(f"{COMPARED_LIBRARY} under the broker's own quota, {seconds} s")
                with client_quotas(broker.address, client_id, {"producer_byte_rate": LIMIT}):
                    run_ = _run(broker, COMPARED_LIBRARY, broker.address, client_id, seconds)
                options.progress(_seconds(run_))
                figures += _figures(COMPARED_LIBRARY, "broker's quota", [run_])
    except PlaygroundError as error:
        raise PeerError(str(error)) from error
    return figures


def _run(broker: Broker, library: str, bootstrap: Address, client_id: str, seconds: int) -> Evenness:
    """Let the client send for `seconds` and the last second, which is not judged."""
    frames = flood(broker.tap, library, bootstrap, client_id, f"evenness-{client_id}", seconds + 1).frames
    connections = len({frame.connection for frame in frames})
    return measure([(frame.time_ns, frame.size) for frame in frames], LIMIT, connections=connections)


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
