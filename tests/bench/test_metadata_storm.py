"""A small storm through nothing, and how the loop's lag is read from the proxy's metrics."""

import pytest

from bench import metadata_storm
from bench.metadata_storm import lag_counts, largest_lag
from bench.null_broker import null_brokers
from bench.options import Options
from bench.peers import direct
from bench.processes import Cores

METRICS = """# TYPE kafka_quota_proxy_event_loop_lag_seconds histogram
kafka_quota_proxy_event_loop_lag_seconds_bucket{le="0.001"} 10.0
kafka_quota_proxy_event_loop_lag_seconds_bucket{le="0.01"} 12.0
kafka_quota_proxy_event_loop_lag_seconds_bucket{le="+Inf"} 12.0
kafka_quota_proxy_event_loop_lag_seconds_count 12.0
"""


@pytest.mark.parametrize(
    ("after", "largest"),
    [
        ({0.001: 10.0, 0.01: 12.0, float("inf"): 12.0}, 0.0),
        ({0.001: 15.0, 0.01: 17.0, float("inf"): 17.0}, 0.001),
        ({0.001: 15.0, 0.01: 18.0, float("inf"): 18.0}, 0.01),
        ({0.001: 10.0, 0.01: 12.0, float("inf"): 13.0}, float("inf")),
    ],
)
def test_the_longest_lag_is_the_highest_bucket_that_gained(after: dict[float, float], largest: float) -> None:
    assert largest_lag(lag_counts(METRICS), after) == largest


def test_a_small_storm() -> None:
    options = Options(
        quick=True,
        rounds=1,
        scenario="",
        peers={"direct": direct},
        cores=Cores(None, None, None),
        progress=lambda _: None,
    )
    storm = metadata_storm.Storm(clients=5, partitions=1000, asks=2)
    with null_brokers(2, partitions=1000, niceness=(10, 0)) as [address, _], direct(address, None) as peer:
        result = metadata_storm.measure(peer, storm, options, alone_seconds=0.1)

    assert result.alone.requests > 0
    assert result.storm.requests > 0
    assert result.length_seconds > 0
    assert result.largest_lag_seconds == 0
