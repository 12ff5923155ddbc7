"""A dry run: the streams are those of a proxy without quotas, and the excess is that of the limits when enforced."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.config.config import EnforcementOptions, QuotaOptions, UsageOptions
from proxy.streams.limited_request import MOST_DRY_RUN_DEBT_NS
from quotas.entry import QuotaEntry
from quotas.limit_options import LimitOptions
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import without_burst
from tests.proxy.frames import batch, fetch, fetched, produce, produce_records
from tests.proxy.streams.exchanges import HANDLED, NOISE, Exchange
from tests.proxy.streams.pair import Pair, World, run_until

DRY_RUN = EnforcementOptions(dry_run=True)
USAGE = UsageOptions(file=Path("unused"))
PRODUCE = "producer_byte_rate"
CLIENT = without_burst(
    "client-id=etl,producer_byte_rate=5000,consumer_byte_rate=5000,request_rate=20,controller_mutation_rate=5"
)
TOTAL = without_burst("total,producer_byte_rate=20000")
TOPIC = without_burst("topic=topic-1,bytes_in_rate=900,messages_in_rate=9")
USER = parse_spec("user=ANONYMOUS,producer_ids_rate=1")

# ---- bytes


@given(
    requests_are_read=st.booleans(),
    drawn=st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 100_000)), min_size=1, max_size=12),
    sizes=st.lists(st.integers(1, 400), max_size=8),
    breaks=st.booleans(),
    at_once=st.integers(1, 12),
    seconds=st.sampled_from([0, 0.1, 3]),
)
def test_both_streams_are_those_without_quotas(
    requests_are_read: bool, drawn: list[tuple[int, int]], sizes: list[int], breaks: bool, at_once: int, seconds: float
) -> None:
    """Requests of every handler, cut anywhere, some at once, under limits that each of them soon exceeds."""
    quotas = [CLIENT, TOTAL, TOPIC, USER] if requests_are_read else [CLIENT, TOTAL]
    kinds: dict[str, Callable[[int], Exchange]] = HANDLED if requests_are_read else HANDLED | NOISE
    makes = [kinds[name] for name in sorted(kinds)]
    said = [makes[kind % len(makes)](number * 100 + at) for at, (kind, number) in enumerate(drawn)]
    dry = Pair(World(quotas, enforcement=DRY_RUN), cuts=sizes, breaks=breaks)
    free = Pair(World(), cuts=sizes, breaks=breaks)
    for first in range(0, len(said), at_once):
        part = said[first : first + at_once]
        for pair in (dry, free):
            pair.client_sends(*(each.request for each in part))
            pair.broker_sends(*(each.response for each in part))
            pair.world.clock.pass_seconds(seconds)
    assert dry.to_broker == free.to_broker == b"".join(each.forwarded for each in said)
    assert dry.to_client == free.to_client
    assert not dry.world.queues
    assert dry.connection.identity.notice.until_ns == dry.connection.identity.request_notice.until_ns == 0


# ---- excess
RATE = 10_000
ETL = ("client-id:etl", PRODUCE)
#: Bytes per second, seconds: a load above the limit, below it, or none.
LOADS = st.lists(st.tuples(st.sampled_from([0, 3_000, 15_000, 40_000]), st.floats(0.5, 3)), min_size=1, max_size=4)
Arrival = tuple[int, int, bytes]
"""Time in ns, which connection, request."""


def trace(loads: list[tuple[int, float]], size: int, connections: int, version: int) -> list[Arrival]:
    """Requests of `size` to twice as many bytes at these rates, on each connection in turn."""
    times: list[float] = []
    began = 0.0
    for rate, seconds in loads:
        number = int(rate * seconds / (1.5 * size))
        times += [began + seconds * each / number for each in range(number)]
        began += seconds
    return [
        (
            int(at * 1e9),
            n % connections,
            produce_records(n, {"rows": [batch(1, size + n * 7_919 % size)]}, version, acks=0),
        )
        for n, at in enumerate([*times, began])
    ]


def replay(arrivals: list[Arrival], quotas: list[QuotaEntry], *, dry_run: bool) -> tuple[World, int]:
    """Send each request at its time, whatever is held before it; held frames pass when they are due.

    Returns how many bytes have not been forwarded at the end.
    """
    world = World(quotas, enforcement=EnforcementOptions(dry_run=dry_run), usage=USAGE)
    began_ns = world.clock()
    pairs = [Pair(world) for _ in range(1 + max(pair for _, pair, _ in arrivals))]
    for at_ns, pair, frame in arrivals:
        run_until(world, began_ns + at_ns)
        pairs[pair].client_sends(frame)
    return world, sum(len(pair.requests.backlog.kept) + len(pair.client.received) for pair in pairs)


def excess(world: World) -> dict[str, int]:
    """Bytes that found a limit in debt, by its name, once all that was sent has passed."""
    run_until(world, world.clock() + 100_000_000_000)
    (entity,) = world.metrics.entities
    for_usage = Counter[str]()
    tallies = world.metrics.entities.throttle_tallies
    for tally in () if tallies is None else tallies:
        is_dry = world.report.is_dry_run
        for_usage[tally.limit_name] += tally.would_have_bytes if is_dry else tally.delayed_bytes
        assert (tally.delayed_bytes if is_dry else tally.would_have_bytes) == 0
        assert not (is_dry and tally.throttled_ns)
    assert +for_usage == +Counter(entity.excess), "usage records have the same"
    return entity.excess


def close(rehearsed: float, enforced: float, slack: float) -> bool:
    return abs(rehearsed - enforced) <= max(0.05 * enforced, slack)


@settings(max_examples=25)
@given(
    LOADS,
    st.integers(300, 1_500),
    st.integers(1, 4),
    st.sampled_from([3, 9, 12]),
    st.sampled_from([1, Fraction(1, 10)]),
)
@pytest.mark.parametrize(
    "specs",
    [[f"client-id=etl,{PRODUCE}={RATE}"], [f"client-id=etl,{PRODUCE}={2 * RATE}", f"topic=rows,bytes_in_rate={RATE}"]],
    ids=["client", "topic"],
)
def test_the_excess_is_that_under_enforcement(
    specs: list[str], loads: list[tuple[int, float]], size: int, connections: int, version: int, burst: int | Fraction
) -> None:
    """The same requests at the same times. `excess_bytes`, and what the limit's debt says is left, within 5 %."""
    quotas = [replace(parse_spec(spec), options=LimitOptions(burst_seconds=burst)) for spec in specs]
    arrivals = trace(loads, size, connections, version)
    (dry, _), (enforced, left) = (replay(arrivals, quotas, dry_run=each) for each in (True, False))
    slack = 2 * connections * size + 200
    if len(specs) == 1:
        owed, behind = (world.debts().get(ETL, 0.0) * RATE for world in (dry, enforced))
        assert close(owed, behind + left, slack)
    rehearsed, real = excess(dry), excess(enforced)
    assert close(sum(rehearsed.values()), sum(real.values()), slack)


@pytest.mark.parametrize("algorithm", ["token-bucket", "sampled-window"])
@pytest.mark.parametrize("sends", [True, False], ids=["produce", "fetch"])
def test_the_debt_of_a_dry_run_is_bounded(sends: bool, algorithm: str) -> None:
    """After a long time over the limit, a change of it shows its effect within two minutes. All that passes counts, so
    it is visible how many times the limit would be exceeded.
    """
    quota = parse_spec("client-id=etl,producer_byte_rate=10,consumer_byte_rate=10")
    pair = Pair(world := World(QuotaOptions(entries=(quota,), algorithm=algorithm), enforcement=DRY_RUN))
    for number in range(50):
        if sends:
            pair.client_sends(produce(number, 500))
        else:
            pair.exchange(fetch(number), fetched(number, size=500))
        world.clock.pass_seconds(1)
    passed = sum(limit.passed for limit in world.registry.limits_in_use())
    assert passed == (len(pair.to_broker) - 4 * 50 if sends else len(pair.to_client))
    (debt,) = world.debts().values()
    assert 0.8 * MOST_DRY_RUN_DEBT_NS <= debt * 1e9 <= 1.5 * MOST_DRY_RUN_DEBT_NS
