"""The prepared records: unique keys, honest JSON, checksums that fit."""

import json
import zlib
from pathlib import Path

from demo.flights import expected_checksums, record_line

FLIGHT: dict[str, object] = {"year": 2013, "dep_time": None, "carrier": "UA", "tailnum": "N14228\tÜ\n"}


def test_a_line_holds_key_checksum_and_value_and_no_stray_separator() -> None:
    line = record_line(17, FLIGHT)
    assert line.endswith("}\n")
    assert line.count("\t") == 2
    assert line.count("\n") == 1
    key, checksum, value = line.rstrip("\n").split("\t")
    assert key == "17"
    assert json.loads(value) == FLIGHT
    assert int(checksum, 16) == zlib.crc32(value.encode())


def test_expected_checksums_are_those_of_the_first_rows(tmp_path: Path) -> None:
    prepared = tmp_path / "flights.tsv"
    prepared.write_text("".join(record_line(number, {"flight": number}) for number in range(1, 6)))
    assert expected_checksums(prepared, 2) == {
        b"1": zlib.crc32(b'{"flight":1}'),
        b"2": zlib.crc32(b'{"flight":2}'),
    }
    assert len(expected_checksums(prepared)) == 5
