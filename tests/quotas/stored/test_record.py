"""Records of the quotas topic: what is written is read, and any bytes are a record or are refused."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec
from quotas.problems import InvalidValue
from quotas.stored.record import MAX_RECORD_BYTES, Author, Record, encode, key_of, parse
from quotas.stored.table import MAX_BYTES, MAX_ENTITIES, Table
from tests.quotas.stored.entries import ENTRIES

AUTHOR = Author("alice", "pod-7", "2026-11-29T07:40:12Z")
ETL = parse_spec("client-id=etl,producer_byte_rate=60MB")
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON: st.SearchStrategy[Any] = st.recursive(SCALARS, lambda each: st.lists(each) | st.dictionaries(st.text(), each))


def record_of(entry: QuotaEntry) -> Record:
    return Record(entry.entity, entry, author=AUTHOR)


def changed(**fields: Any) -> tuple[bytes, bytes]:
    """The record of `ETL` with these fields instead of its own."""
    key, value = encode(record_of(ETL))
    return key, json.dumps(json.loads(value) | fields).encode()


@given(ENTRIES, st.sampled_from([{}, {"request_percentage": 12.5}]))
def test_what_is_written_is_read(entry: QuotaEntry, kafka: dict[str, float]) -> None:
    record = Record(entry.entity, entry, kafka, AUTHOR)
    found = parse(*encode(record))
    assert (found, found.author) == (record, AUTHOR)
    removal = parse(*encode(Record(entry.entity, author=AUTHOR)))
    assert (removal.entity, removal.fields) == (entry.entity, {})


def test_the_format_is_as_documented() -> None:
    entry = parse_spec("user=alice,client-id=<default>,consumer_byte_rate=5MB,burst_seconds=0.5")
    key, value = encode(record_of(entry))
    assert key == b"user=alice,client-id=<default>"
    assert json.loads(value) == {
        "version": 1,
        "entity": {"user": "alice", "client-id": None},
        "quota": {"consumer_byte_rate": 5_000_000, "burst_seconds": 0.5},
        "by": "alice",
        "from": "pod-7",
        "at": "2026-11-29T07:40:12Z",
    }


@given(st.binary() | st.none(), st.binary() | JSON.map(lambda each: json.dumps(each).encode()))
def test_any_bytes_are_refused(key: bytes | None, value: bytes) -> None:
    with pytest.raises(InvalidValue):
        parse(key, value)


@given(st.sampled_from(["version", "entity", "quota", "kafka", "by", "from", "at"]), JSON)
def test_any_field_is_taken_or_refused(name: str, value: object) -> None:
    key, data = changed(**{name: value})
    with suppress(InvalidValue):
        assert parse(key, data).entity == ETL.entity


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"version": 2}, '"version": 1'),
        ({"entity": {"client-id": "other"}}, "its key is"),
        ({"entity": {"client-id": ""}}, "Empty client-id not supported"),
        ({"quota": {"producer_byte_rate": "4 kB/h"}}, "per second"),
        ({"quota": {"producer_byte_rate": -1}}, "must be greater than 0"),
        ({"quota": {"request_percentage": 1}}, "unknown key"),
        ({"quota": {"producer_byte_rate": {"a": 1}}}, "not a number"),
        ({"quota": {"mode": "x" * 2_000}}, "at most 1024 characters"),
        ({"kafka": {"request_percentage": float("inf")}}, "wrong value"),
        ({"quota": {"x" * 10_000: 1}}, "unknown key"),
    ],
)
def test_what_is_wrong_with_a_record(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message) as refused:
        parse(*changed(**fields))
    assert len(str(refused.value)) < 2_000


def test_sizes_are_checked_before_anything_is_parsed() -> None:
    key, value = changed(by="x" * MAX_RECORD_BYTES)
    with pytest.raises(InvalidValue, match="not 1 to"):
        parse(key, value)
    with pytest.raises(InvalidValue, match="not JSON"):
        parse(key, b"[" * MAX_RECORD_BYTES)
    with pytest.raises(InvalidValue, match="not JSON"):
        parse(key, b'{"version":' + b"1" * 10_000 + b"}")


# ---- all of them


@pytest.mark.claim("kafka-quotas", "a broken record of an entity keeps its last valid one; a null removes it")
def test_the_last_valid_record_of_each_entity_counts() -> None:
    table, (key, value) = Table(), encode(record_of(ETL))
    table.apply(3, key, value)
    broken = [(key, b"{}"), (key, value[:-1]), (None, value), (b"client-id=x", value)]
    for offset, (its_key, data) in enumerate(broken, start=4):
        with pytest.raises(InvalidValue):
            table.apply(offset, its_key, data)
    assert (table.entries, table.offset, table.latest) == ((ETL,), 7, None)
    table.apply(8, *encode(Record(ETL.entity, author=AUTHOR)))
    table.apply(9, key, None)
    assert (table.entries, len(table), table.offset) == ((), 0, 9)
    assert table.latest is not None, "who has removed it"
    table.apply(10, key, value)
    table.apply(11, key, None)
    assert len(table) == 0


def test_a_limit_that_only_kafka_knows_is_kept_and_counted() -> None:
    table = Table()
    table.apply(0, *encode(Record(ETL.entity, kafka={"request_percentage": 50.0})))
    assert (table.entries, len(table), table.not_enforced) == ((), 1, {"request_percentage": 1})


def test_entities_and_bytes_are_bounded() -> None:
    table = Table()
    for number in range(MAX_ENTITIES):
        table._records[str(number).encode()] = record_of(ETL)
    key, value = encode(record_of(ETL))
    with pytest.raises(InvalidValue, match=f"{MAX_ENTITIES} entities"):
        table.apply(0, key, value)
    table = Table()
    members = ",".join([f"client-id={'x' * 1_000}"] * 15)
    long = parse_spec(f"resource-group=g,producer_byte_rate=1,{members}")
    size = sum(map(len, encode(record_of(long))))
    table._bytes = MAX_BYTES - size
    table.apply(0, *encode(record_of(long)))
    table.apply(1, *encode(record_of(long)))
    with pytest.raises(InvalidValue, match="bytes"):
        table.apply(2, key, value)
    table.apply(3, key_of(long.entity), None)
    table.apply(4, key, value)
