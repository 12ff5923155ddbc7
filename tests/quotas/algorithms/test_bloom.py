"""The shape by commons-collections' own numbers, and one filter: misses nothing, and seldom takes one for another."""

from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.algorithms.bloom import BloomFilter, Shape, spread

int64s = st.integers(-(1 << 63), (1 << 63) - 1)


SALT = 0x5EED


@pytest.mark.parametrize(
    ("ids", "probability", "bits", "hashes"),
    [
        # ShapeTest of commons-collections
        (3, 1.0 / 100_000, 72, 17),
        (10, 1.0 / 2_000_000, 302, 21),
        # by hand: ceil(-N ln P / ln2 ** 2), round(bits / N * ln2)
        (1_000_000, 0.01, 9_585_059, 7),
        (1, 0.5, 2, 1),
        (1000, 0.99, 21, 1),  # not less than one bit for each id
    ],
)
def test_the_shape_is_that_of_commons_collections(ids: int, probability: float, bits: int, hashes: int) -> None:
    shape = Shape(ids, probability)
    assert (shape.bits, shape.hashes) == (bits, hashes)


@given(st.integers(1, 1 << 53), st.floats(1e-9, 0.99))
def test_a_shape_keeps_its_probability_by_the_textbook_formula(ids: int, probability: float) -> None:
    shape = Shape(ids, probability)
    assert shape.hashes >= 1
    assert shape.bits == pytest.approx(-ids * log(probability) / log(2) ** 2, rel=1e-12, abs=1)
    if shape.hashes > 1:  # the number of hashes is rounded, which costs a little where it is small
        assert (1 - exp(-shape.hashes * ids / shape.bits)) ** shape.hashes <= 1.1 * probability


@given(st.lists(int64s), st.integers(1, 1000), st.sampled_from([0.5, 0.01, 1e-6]), st.integers(0, (1 << 64) - 1))
def test_what_was_put_in_is_held(numbers: list[int], ids: int, probability: float, salt: int) -> None:
    one = BloomFilter(Shape(ids, probability))
    for number in numbers:
        one.put(spread(number, salt))
    assert all(one.holds(spread(number, salt)) for number in numbers)
    assert one.count <= len(set(numbers))


def test_count_is_of_different_hashes() -> None:
    one = BloomFilter(Shape(100, 1e-9))
    for number in [*range(50), *range(50)]:
        one.put(spread(number, SALT))
    assert one.count == 50


@given(int64s, int64s, st.integers(0, (1 << 64) - 1))
def test_no_two_numbers_share_a_hash(one: int, other: int, salt: int) -> None:
    assert (spread(one, salt) == spread(other, salt)) == (one == other)
    assert 0 <= spread(one, salt) < 1 << 64


def test_spread_is_splitmix64() -> None:
    """The first outputs of the reference implementation seeded with 1234567; here the salt steps the seed."""
    golden = 0x9E3779B97F4A7C15
    outputs = [spread(1_234_567, golden * step) for step in (1, 2, 3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_ids_that_collide_under_one_salt_do_not_under_another() -> None:
    one, other = BloomFilter(Shape(100, 0.1)), BloomFilter(Shape(100, 0.1))
    for number in range(100):
        one.put(spread(number, 1))
        other.put(spread(number, 2))
    found = [number for number in range(100, 20_000) if one.holds(spread(number, 1))]
    assert len(found) > 500
    assert sum(other.holds(spread(number, 2)) for number in found) < len(found) / 5
