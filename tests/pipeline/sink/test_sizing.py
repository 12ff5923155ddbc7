"""From a quota to micro-batches and producer settings: no record expires, whatever the rate."""

from argparse import ArgumentTypeError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sink.sizing import MAX_BUFFER, MIN_BUFFER, Sizing, parse_rate

rates = st.floats(min_value=1, max_value=1e12)
producers = st.integers(min_value=1, max_value=10_000)


@given(rates, producers)
def test_a_full_buffer_drains_before_its_records_expire(rate: float, number: int) -> None:
    sizing = Sizing(rate, number)
    settings = {name: int(value) for name, value in sizing.producer_settings.items() if value.isdigit()}
    drain_ms = 1000 * settings["buffer.memory"] * number / rate
    assert drain_ms * 2 <= settings["request.timeout.ms"]
    # Java's own rule: a request may time out before its records expire, with the linger on top.
    assert settings["delivery.timeout.ms"] >= settings["request.timeout.ms"] + settings["linger.ms"]
    assert drain_ms * 4 <= settings["delivery.timeout.ms"]
    assert settings["max.block.ms"] >= drain_ms
    assert MIN_BUFFER <= settings["buffer.memory"] <= MAX_BUFFER


@given(rates, st.floats(min_value=0.1, max_value=3600))
def test_a_micro_batch_takes_its_seconds_at_the_rate(rate: float, seconds: float) -> None:
    assert Sizing(rate, 1, seconds).batch_bytes == pytest.approx(rate * seconds, abs=1)


def test_the_figures_of_the_docs() -> None:
    sizing = Sizing(5e6)
    assert (sizing.batch_bytes, sizing.buffer_bytes, sizing.drain_seconds) == (50_000_000, 10_000_000, 2.0)
    assert sizing.producer_settings["delivery.timeout.ms"] == "120000"
    slow = Sizing(100e3, 40)
    assert (slow.buffer_bytes, round(slow.drain_seconds)) == (MIN_BUFFER, 419)
    assert slow.producer_settings["delivery.timeout.ms"] == "1677724"


@pytest.mark.parametrize(
    ("text", "rate"),
    [("5MB", 5e6), ("5MB/s", 5e6), ("0.5MiB", 2**19), ("512KiB", 2**19), ("5000000", 5e6), ("100kB", 1e5), ("7B", 7)],
)
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "5M", "5 parsecs", "-1MB", "0", "MB", "1e6", "5mb"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="expected bytes per second"):
        parse_rate(text)
