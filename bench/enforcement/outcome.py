"""What one client library did under one enforcement, and the figures of that."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.flooding_clients import BATCH_BYTES
from bench.load import percentile
from bench.report import Figure, compare
from deploy.local.evenness import BIN_NS, bins_per_second

NAME = "enforcement"
LIMIT = 5_000_000
BURST_SECONDS = 0.1
BROKER = "broker's quota"
#: No quota: the client paces itself to the limit.
SELF_LIMITED = "self-limited"
NEIGHBOUR_RATIO = 1.2
#: What clients print of a request, a record or a connection that timed out.
_TIMEOUT = re.compile(rb"timed[ _-]?out|timeout ?(?:exception|error)|due to request timeout", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One cell of the table.

    bins: bytes of Produce requests in each whole second from the first request on; timeouts, duplicates, rebalances:
    counts; alone_ns, beside_ns: latencies of the neighbour before the noisy client started and while it sent.
    """

    library: str
    enforcement: str
    bins: tuple[int, ...]
    timeouts: int
    duplicates: int
    rebalances: int
    alone_ns: tuple[int, ...]
    beside_ns: tuple[int, ...]

    @property
    def peak_ratio(self) -> float:
        """The fullest second over the limit, that of the burst too."""
        return max(self.bins) / LIMIT

    @property
    def mean_ratio(self) -> float:
        """Bytes per second of the whole run over the limit, the burst too."""
        return sum(self.bins) / len(self.bins) / LIMIT

    @property
    def neighbour_p99_ms(self) -> float:
        """The neighbour's p99 beside the noisy client."""
        return percentile(self.beside_ns, 0.99) / 1e6

    @property
    def neighbour_ratio(self) -> float:
        """That p99 over the neighbour's p99 alone, of the same run."""
        return percentile(self.beside_ns, 0.99) / percentile(self.alone_ns, 0.99)


def whole_seconds(frames: Sequence[tuple[int, int]], seconds: int) -> tuple[int, ...]:
    """Bytes in each of the first `seconds` from the first frame on, empty seconds too. frames: (monotonic ns, bytes).

    Raises ValueError when there is no frame.
    """
    if not frames:
        raise ValueError("no data request")
    end_ns = min(time_ns for time_ns, _ in frames) + seconds * BIN_NS
    bins = bins_per_second(frame for frame in frames if frame[0] < end_ns)
    return bins + (0,) * (seconds - len(bins))


def timeouts_in(output: bytes) -> int:
    """Lines of a client's output that report a timeout."""
    return sum(1 for line in output.splitlines() if _TIMEOUT.search(line))


def duplicates_in(records: Iterable[bytes]) -> int:
    """Records that are there more than once, without the first of each."""
    seen = list(records)
    return len(seen) - len(set(seen))


def rebalances_in(broker_log: str, group: str) -> int:
    """Rebalances of the group that the broker's log reports."""
    return len(re.findall(rf"Preparing to rebalance group {re.escape(group)} ", broker_log))


def figures(outcomes: Sequence[Outcome]) -> list[Figure]:
    """A row for each library and metric, a column for each enforcement.

    Of several rounds the worst; of latencies the median, set against the one beside a client that paces itself.
    """
    cells: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        cells.setdefault((outcome.library, outcome.enforcement), []).append(outcome)
    found = [figure for cell, rounds in cells.items() for figure in _cell(*cell, rounds)]
    compared = iter(compare((figure for figure in found if figure.unit == "ms"), other=SELF_LIMITED))
    return [next(compared) if figure.unit == "ms" else figure for figure in found]


def _cell(library: str, enforcement: str, rounds: Sequence[Outcome]) -> Iterator[Figure]:
    """The targets are the proxy's: burst + rate × t + one request, and no error at all."""
    is_judged = enforcement not in (SELF_LIMITED, BROKER)
    extra = BURST_SECONDS + BATCH_BYTES / LIMIT

    def worst(metric: str, of: Callable[[Outcome], float], target: float) -> Figure:
        value = max(map(of, rounds))
        return Figure(NAME, library, metric, "", enforcement, (value,), target=target if is_judged else None)

    yield worst("peak second / limit", lambda outcome: outcome.peak_ratio, 1 + extra)
    yield worst("mean / limit", lambda outcome: outcome.mean_ratio, 1 + extra / min(len(each.bins) for each in rounds))
    yield worst("timeouts", lambda outcome: outcome.timeouts, 0.0)
    yield worst("duplicates", lambda outcome: outcome.duplicates, 0.0)
    yield worst("rebalances", lambda outcome: outcome.rebalances, 0.0)
    p99 = tuple(outcome.neighbour_p99_ms for outcome in rounds)
    ratio_target = NEIGHBOUR_RATIO if is_judged else None
    yield Figure(NAME, library, "neighbour's p99", "ms", enforcement, p99, ratio_target=ratio_target)
    ratios = tuple(outcome.neighbour_ratio for outcome in rounds)
    yield Figure(NAME, library, "neighbour's p99", "times alone", enforcement, ratios)
