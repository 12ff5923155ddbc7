"""Each way in which a topic can differ from what was written is counted as just that."""

import zlib

import pytest

from demo.verify import Tally, compare

VALUES = {b"1": b'{"flight":1545}', b"2": b'{"flight":1714}', b"3": b'{"flight":1141}'}
EXPECTED = {key: zlib.crc32(value) for key, value in VALUES.items()}


@pytest.mark.parametrize(
    ("records", "tally"),
    [
        ({b"1": VALUES[b"1"], b"3": VALUES[b"3"]}, Tally(2, 30, missing=1, examples=["missing key b'2'"])),
        (
            VALUES | {b"2": b'{"flight":9999}'},
            Tally(3, 45, wrong_checksum=1, examples=["wrong checksum at key b'2'"]),
        ),
        (VALUES | {b"4": b"x"}, Tally(4, 46, unexpected=1, examples=["unexpected key b'4'"])),
        (VALUES | {None: b"x"}, Tally(4, 46, unexpected=1, examples=["unexpected key None"])),
        (VALUES | {b"2": None}, Tally(3, 30, wrong_checksum=1, examples=["wrong checksum at key b'2'"])),
        ({}, Tally(missing=3, examples=["missing key b'1'", "missing key b'2'", "missing key b'3'"])),
    ],
    ids=["missing", "changed", "unexpected", "without a key", "without a value", "empty"],
)
def test_a_fault_is_a_loss(records: dict[bytes | None, bytes | None], tally: Tally) -> None:
    found = compare(records.items(), EXPECTED)
    assert found == tally
    assert not found.nothing_lost


def test_a_record_that_came_twice_is_a_duplicate_and_no_loss() -> None:
    tally = compare([*VALUES.items(), (b"2", VALUES[b"2"])], EXPECTED)
    assert tally == Tally(records=4, value_bytes=60, duplicates=1)
    assert tally.nothing_lost


def test_a_duplicate_does_not_stand_in_for_a_missing_record() -> None:
    tally = compare([(b"1", VALUES[b"1"]), (b"1", VALUES[b"1"]), (b"3", VALUES[b"3"])], EXPECTED)
    assert (tally.records, tally.duplicates, tally.missing, tally.nothing_lost) == (3, 1, 1, False)
