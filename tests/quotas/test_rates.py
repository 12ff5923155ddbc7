"""Numbers with units, exact, and Kafka's rules for what may be a quota."""

from fractions import Fraction
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.problems import InvalidValue
from quotas.rates import (
    LONG_MAX,
    SMALLEST_RATE,
    UNITS,
    exact,
    kafka_rate,
    of_double,
    parse_rate,
)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("5MB", 5_000_000),
        ("5MiB", 5_242_880),
        ("5MB/s", 5_000_000),
        (" 1.5 GB / s ", 1_500_000_000),
        ("16kB", 16_000),
        ("16KiB", 16_384),
        ("2GiB", 2_147_483_648),
        ("500B", 500),
        ("500", 500),
        ("500/s", 500),
        ("1e6", 1_000_000),
        (".5", Fraction(1, 2)),
        (5_000_000, 5_000_000),
        (0.1, Fraction(1, 10)),
        ("-3", -3),
    ],
)
def test_reads(text: object, rate: int | Fraction) -> None:
    assert parse_rate(text) == rate


@given(st.integers(0, 10**15), st.integers(0, 999), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " "]))
def test_what_is_written_is_what_counts(whole: int, thousandths: int, unit: str, space: str) -> None:
    assert (
        parse_rate(f"{whole}.{thousandths:03}{space}{unit}") == Fraction(1000 * whole + thousandths, 1000) * UNITS[unit]
    )


@pytest.mark.parametrize(
    "value",
    ["", "MB", "5 MB per second", "5,000", "0x10", "1e9999", "9" * 50, "nan", True, None, [5], inf, nan, "\u0665"],
)
def test_refuses(value: object) -> None:
    with pytest.raises(InvalidValue, match=r"expected a (number|rate per second such as)"):
        parse_rate(value)


BYTES, RATE = "producer_byte_rate", "request_rate"


@pytest.mark.parametrize(
    ("name", "rate", "message"),
    [
        (BYTES, Fraction(0), "Quota producer_byte_rate must be greater than 0"),
        (BYTES, Fraction(-5), "Quota producer_byte_rate must be greater than 0"),
        (BYTES, Fraction(LONG_MAX + 1), "Proposed value for producer_byte_rate is too large for a LONG."),
        (BYTES, Fraction(5, 2), "producer_byte_rate cannot be a fractional value."),
        (BYTES, Fraction(1) + Fraction(2, 10**6), "producer_byte_rate cannot be a fractional value."),
        (BYTES, Fraction(1, 10**9), "producer_byte_rate cannot be a fractional value."),
        (RATE, Fraction(0), "Quota request_rate must be greater than 0"),
        (RATE, SMALLEST_RATE / 2, f"request_rate must be from 0.000001 to {LONG_MAX}"),
        (RATE, LONG_MAX + Fraction(1, 2), f"request_rate must be from 0.000001 to {LONG_MAX}"),
    ],
)
def test_what_no_rate_may_be(name: str, rate: Fraction, message: str) -> None:
    """With Kafka's messages."""
    with pytest.raises(InvalidValue) as caught:
        kafka_rate(name, rate, "LONG" if name == BYTES else "DOUBLE")
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("rate", "whole"),
    [
        (Fraction(5), 5),
        (5 + Fraction(1, 10**6), 5),
        (Fraction(LONG_MAX), LONG_MAX),
        (of_double(float(LONG_MAX)), LONG_MAX),  # a broker accepts it: in its comparison, both are doubles
    ],
)
def test_kafka_takes_what_is_whole_within_a_millionth(rate: Fraction, whole: int) -> None:
    assert kafka_rate("producer_byte_rate", rate, "LONG") == whole


@pytest.mark.parametrize("value", ["20B", "5MB", "5MB/s", "20s"])
def test_a_plain_rate_has_no_unit(value: str) -> None:
    with pytest.raises(InvalidValue, match="expected a number per second without a unit, not"):
        parse_rate(value, is_bytes=False)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_exact_is_the_shortest_decimal(number: float) -> None:
    assert exact(number) == Fraction(repr(number))
