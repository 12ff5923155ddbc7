"""What is counted: clients come and go, names are bounded, and windows and histograms are exact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire import MAX_NAME
from proxy.observability.entities import ENTITY_IDLE_NS
from proxy.observability.labels import label_value
from proxy.observability.metrics import MAX_REQUEST_CELLS, Metrics
from proxy.observability.tallies import WINDOW_SLOTS, Histogram, ThrottleWindow
from tests.proxy.conversation import Clock
from tests.proxy.metrics import NAMES, metrics_with


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> Metrics:
    """With room for one client."""
    return metrics_with(clock, max_metric_entities=1)


def expire(metrics: Metrics, clock: Clock, after_ns: int = 0) -> None:
    clock.now_ns += after_ns
    metrics.entities.expire(clock.now_ns)


def test_an_idle_client_makes_room_for_another(metrics: Metrics, clock: Clock) -> None:
    metrics.entities.of("u", "first").produce_bytes += 1
    expire(metrics, clock)
    expire(metrics, clock, ENTITY_IDLE_NS - 1)
    assert metrics.entities.of("u", "second").client_id == "other"
    expire(metrics, clock, 1)
    assert metrics.entities.of("u", "second").client_id == "second"


def test_a_client_that_is_still_counted_stays(metrics: Metrics, clock: Clock) -> None:
    entity = metrics.entities.of("u", "c")
    for after_ns in (ENTITY_IDLE_NS - 1, 2) * 3:
        entity.fetch_bytes += 1
        expire(metrics, clock, after_ns)
    assert metrics.entities.of("u", "c") is entity


@given(NAMES)
def test_a_label_is_printable_bounded_and_the_same_when_cut_again(name: str) -> None:
    label = label_value(name)
    assert label.isprintable()
    assert len(label) <= MAX_NAME
    assert label_value(label) == label
    if name.isprintable() and len(name) <= MAX_NAME:
        assert label == name


def test_request_cells_are_bounded(metrics: Metrics) -> None:
    for number in range(MAX_REQUEST_CELLS + 100):
        metrics.request_cell("Unknown", number).value += 1
    assert (len(metrics.requests), metrics.requests["other", "other"].value) == (MAX_REQUEST_CELLS + 1, 100)
    assert metrics.request_cell("Unknown", 5) is metrics.request_cell("Unknown", 5)


@given(
    st.lists(
        st.tuples(st.integers(0, WINDOW_SLOTS + 2), st.lists(st.none() | st.floats(0, 100), max_size=5)), max_size=30
    )
)
def test_the_throttle_window_agrees_with_a_list_of_all_requests(steps: list[tuple[int, list[float | None]]]) -> None:
    """KIP-13: the largest and the mean throttle time; 0 without any.

    Each step: so many slots pass, with a `roll` in each; then requests, None for one that was not throttled.
    """
    window = ThrottleWindow(0)
    slot = 0
    requests: list[tuple[int, float | None]] = []
    for slots, made in steps:
        for _ in range(slots):
            slot += 1
            window.roll(slot, len(requests))
        for seconds in made:
            requests.append((slot, seconds))
            if seconds is not None:
                window.record(seconds, slot, len(requests))
        seen = [seconds for at, seconds in requests if at > slot - WINDOW_SLOTS]
        throttled = [seconds for seconds in seen if seconds is not None]
        largest, mean = window.max_and_mean(len(requests))
        assert largest == max(throttled, default=0)
        assert mean == pytest.approx(sum(throttled) / len(seen) if throttled else 0)


@given(st.lists(st.floats(0, 100)))
def test_a_histogram_counts_each_observation_once_and_bounds_are_inclusive(observations: list[float]) -> None:
    histogram = Histogram((0.1, 1.0, 10.0))
    for seconds in observations:
        histogram.observe(seconds)
    for bound, count in histogram.cumulative():
        assert count == sum(seconds <= bound for seconds in observations)
    assert (histogram.count, histogram.sum_seconds) == pytest.approx((len(observations), sum(observations)))
