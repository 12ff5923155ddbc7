"""Records as bytes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.fleet.parameters import WHOLE
from quotas.fleet.record import (
    MAX_FREE_BYTES,
    MAX_KEY_BYTES,
    MAX_QUOTA,
    MAX_RECORD_BYTES,
    MAX_STATEMENTS,
    Record,
    Statement,
    encode,
    is_key,
    is_name,
    parse,
)

pytestmark = pytest.mark.claim(
    "fleet", "what is in the topic is never decompressed, and a few records at a time are read"
)

EXAMPLE = Record(
    "etl",
    "0a1b2c3d4e5f6071",
    17,
    2893472,
    (Statement("client-id=app,producer_byte_rate", 8_000_000_000, 30_000, 90_000),),
)
TEXT = (
    b'{"v":1,"f":"etl","m":"0a1b2c3d4e5f6071","s":17,"n":2893472,'
    b'"e":[["client-id=app,producer_byte_rate",8000000000,30000,90000]]}'
)

names = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=64)
numbers = st.integers(0, (1 << 63) - 1)
parts = st.integers(0, WHOLE)
keys = st.text(max_size=40).filter(is_key)
records = st.builds(
    Record,
    names,
    names,
    numbers.filter(bool),
    numbers,
    st.lists(st.builds(Statement, keys, st.integers(1, MAX_QUOTA), parts, parts), max_size=5).map(tuple),
    st.none()
    | st.dictionaries(
        names.map(lambda name: name[:32]),
        st.integers(1 - (1 << 63), (1 << 63) - 1) | st.text(max_size=128).filter(str.isprintable),
        max_size=16,
    ),
    st.none() | st.tuples(numbers, numbers),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("vfmsnex"), inner, max_size=7),
)


def test_a_record_is_a_line_that_a_console_consumer_shows() -> None:
    assert encode(EXAMPLE) == TEXT
    assert parse(TEXT) == EXAMPLE


@given(records)
def test_what_is_written_is_read(record: Record) -> None:
    assert parse(encode(record)) == record


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_record_or_void(data: bytes) -> None:
    record = parse(data)
    assert record is None or parse(encode(record)) == record


@given(records, st.data())
def test_a_cut_or_changed_record_is_void_or_another(record: Record, data: st.DataObject) -> None:
    encoded = encode(record)
    assert parse(encoded[: data.draw(st.integers(0, len(encoded) - 1))]) is None
    place = data.draw(st.integers(0, len(encoded) - 1))
    parse(encoded[:place] + data.draw(st.binary(min_size=1, max_size=3)) + encoded[place + 1 :])


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(TEXT) | fields).encode()


def with_statement(*entry: Any) -> bytes:
    return changed(e=[["a", 1, 0, 0], list(entry)])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff" + TEXT,
        TEXT.decode().encode("utf-16"),
        TEXT + b"{}",
        b"[" * 100_000,
        b"1" * 5_000,
        b" " * MAX_RECORD_BYTES + TEXT,
        changed(v=2),
        changed(v=None),
        changed(f=""),
        changed(f=7),
        changed(f="x" * 65),
        changed(m="line\nbreak"),
        changed(m="ü"),
        changed(s=0),
        changed(s=-1),
        changed(s=1 << 63),
        changed(s=True),
        changed(s=1.0),
        changed(s="1"),
        changed(n=-1),
        changed(r=[1]),
        changed(r=[1, -1]),
        changed(r=[1, 2, 3]),
        changed(r={}),
        changed(e=None),
        changed(e={}),
        changed(e=["abcd"]),
        changed(e=[["a", 1, 0]]),
        changed(e=[["a", 1, 0, 0]] * (MAX_STATEMENTS + 1)),
        with_statement(None, 1, 0, 0),
        with_statement("k" * (MAX_KEY_BYTES + 1), 1, 0, 0),
        with_statement("k", 0, 0, 0),
        with_statement("k", MAX_QUOTA + 1, 0, 0),
        with_statement("k", 1, -1, 0),
        with_statement("k", 1, WHOLE + 1, 0),
        with_statement("k", 1, 0, -1),
        with_statement("k", 1, 0, float("nan")),
        with_statement("k", 1, 0.5, 0),
        with_statement("k", True, 0, 0),
    ],
)
def test_garbage_is_void(data: bytes) -> None:
    assert parse(data) is None


@pytest.mark.parametrize(
    "facts",
    [
        None,
        [],
        {"a": 1.5},
        {"a": True},
        {"a": None},
        {"a": 1 << 63},
        {"a": "x" * 129},
        {"a": "line\nbreak"},
        {"a": "\ud800"},
        {"": 1},
        {"x" * 33: 1},
        {"ü": 1},
        {str(number): 1 for number in range(17)},
    ],
)
def test_facts_that_are_invalid_are_ignored_and_caps_count(facts: object) -> None:
    assert parse(changed(x=facts)) == EXAMPLE
    assert parse(changed(x={"a": -1, "b": "ü"})) == EXAMPLE._replace(facts={"a": -1, "b": "ü"})


@pytest.mark.parametrize(
    "facts",
    [None, {}, {'"\\': -1}, {f"{number:032}": '"' * 128 for number in range(16)}],
    ids=["none", "empty", "one", "most"],
)
def test_a_large_record_may_have_facts(facts: dict[str, int | str] | None) -> None:
    record = EXAMPLE._replace(statements=EXAMPLE.statements * MAX_STATEMENTS, facts=facts)
    assert len(encode(record)) > MAX_FREE_BYTES
    assert parse(encode(record)) == record


def large(before: bytes, item: bytes, after: bytes) -> bytes:
    """As much of it as fits into a record."""
    return before + b",".join([item] * ((MAX_RECORD_BYTES - 200) // (len(item) + 1))) + after


@pytest.mark.parametrize(
    "data",
    [
        large(b"[", b"[]", b"]"),
        large(b'{"v":1,"f":"etl","m":"a","s":1,"n":1,"e":[', b"[]", b"]}"),
        large(b'{"v":1,"f":"etl","m":"a","s":1,"n":1,"e":[', b'["",1,0,0]', b"]}"),
        large(b'{"v":1,"f":"etl","m":"a","s":1,"n":1,"e":[["k",1,0,0', b"0", b"]]}"),
        large(b"{", b'"v":1', b"}"),
        large(b'{"v":1,"f":"etl","m":"a","s":1,"n":1,"x":{', b'"a":1', b'},"e":[["k",1,0,0]]}'),
        large(b"", b"[" * 1000, b""),
    ],
    ids=["lists", "entries", "statements", "elements", "duplicates", "facts", "nested"],
)
def test_a_large_record_of_another_form_is_void_without_a_parser(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_FREE_BYTES < len(data) <= MAX_RECORD_BYTES
    with monkeypatch.context() as patch:
        patch.setattr(json, "loads", lambda _: pytest.fail("70 ms for 570 kB"))
        assert parse(data) is None


@pytest.mark.parametrize("key", ["k" * 398, '"' * 199, "\\" * 199, "ü" * 199, "[]{},:" * 66, "\n" * 199])
def test_a_large_record_is_read_whatever_its_keys(key: str) -> None:
    statements = tuple(Statement(key, MAX_QUOTA, number, WHOLE) for number in range(MAX_STATEMENTS))
    record = EXAMPLE._replace(fleet='"\\', statements=statements)
    assert MAX_FREE_BYTES < len(encode(record)) <= MAX_RECORD_BYTES
    assert parse(encode(record)) == record


def test_later_versions_may_add_fields_and_elements() -> None:
    later = json.loads(TEXT) | {"new": {"deep": [1, None]}}
    later["e"][0].append("more")
    assert parse(json.dumps(later).encode()) == EXAMPLE


def test_the_most_statements_of_the_longest_keys_fit() -> None:
    key = "ü" * ((MAX_KEY_BYTES - 2) // 2)
    assert is_key(key)
    assert not is_key(key + "üü")
    statement = Statement(key, MAX_QUOTA, WHOLE, WHOLE)
    record = Record("f" * 64, "m" * 64, (1 << 63) - 1, (1 << 63) - 1, (statement,) * MAX_STATEMENTS)
    assert is_name(record.fleet)
    assert len(encode(record)) <= MAX_RECORD_BYTES
    assert parse(encode(record)) == record


@pytest.mark.parametrize(
    ("key", "fits"), [("a" * 398, True), ("a" * 399, False), ('"' * 199, True), ('"' * 200, False), ("\ud800", False)]
)
def test_a_key_is_measured_as_it_is_written(key: str, fits: bool) -> None:
    assert is_key(key) is fits
