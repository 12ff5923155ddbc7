"""What a change makes of a record, and what two sets of quotas differ in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec
from quotas.parsing.text import split_spec
from quotas.problems import InvalidValues
from quotas.stored.changes import differences, edited, lines_of, parts_of, removal, shown
from quotas.stored.record import Author, Record, entity_of
from tests.quotas.stored.entries import ENTRIES

AUTHOR = Author("alice")


def record_of(spec: str) -> Record:
    entry = parse_spec(spec)
    return Record(entry.entity, entry, author=AUTHOR)


def after(record: Record, spec: str) -> Record:
    """As `quotas set` with this SPEC."""
    names, rest = parts_of(split_spec(spec), lambda _: ["10.0.0.9"])
    return edited(Record(entity_of(names)) if record.entry is None else record, rest, (), AUTHOR)


def test_what_is_not_named_stays() -> None:
    before = record_of("client-id=etl,producer_byte_rate=50MB,consumer_byte_rate=unlimited,burst_seconds=2")
    assert after(before, "client-id=etl,producer_byte_rate=60MB").fields == {
        "producer_byte_rate": 60_000_000, "consumer_byte_rate": "unlimited", "burst_seconds": 2,
    }  # fmt: skip
    left = edited(before, {}, ("consumer_byte_rate",), AUTHOR)
    assert left.fields == {"producer_byte_rate": 50_000_000, "burst_seconds": 2}
    assert edited(left, {}, ("producer_byte_rate",), AUTHOR).fields == {}, "options alone are nothing"
    of_kafka = Record(before.entity, before.entry, {"request_percentage": 5.0})
    left = edited(of_kafka, {}, ("producer_byte_rate", "consumer_byte_rate"), AUTHOR)
    assert left.fields == {"request_percentage": 5.0}


def test_the_members_of_a_group_may_stay() -> None:
    group = record_of("resource-group=g,client-id=a-*,client-id=b,producer_byte_rate=5MB")
    assert after(group, "resource-group=g,producer_byte_rate=6MB").fields["client-id"] == ["a-*", "b"]
    assert after(group, "resource-group=g,client-id=c").fields["client-id"] == ["c"]
    with pytest.raises(InvalidValues, match="without members"):
        after(Record(group.entity), "resource-group=g,producer_byte_rate=6MB")


def test_a_host_name_becomes_its_address() -> None:
    nothing = Record(parse_spec("ip=10.0.0.9,connections=1").entity)
    assert after(nothing, "ip=worker-9,connections=5").entity == nothing.entity


@given(st.lists(ENTRIES, unique_by=lambda each: each.entity), st.lists(ENTRIES, unique_by=lambda each: each.entity))
def test_the_differences_make_one_of_the_other(one: list[QuotaEntry], other: list[QuotaEntry]) -> None:
    before, wanted = ({each.entity: Record(each.entity, each) for each in entries} for entries in (one, other))
    found, most = dict(before), max(len(before), len(wanted))
    for each in differences(before, wanted):
        assert list(lines_of(before.get(each.entity), each)), "each is shown"
        found[each.entity] = each
        assert sum(bool(record.fields) for record in found.values()) <= most, "a topic that is full has room"
    assert {entity: record for entity, record in found.items() if record.fields} == wanted


def test_changes_are_shown_limit_by_limit() -> None:
    before = record_of("client-id=etl,producer_byte_rate=50MB,request_rate=5")
    now = record_of("client-id=etl,producer_byte_rate=60MB,consumer_byte_rate=1")
    assert list(lines_of(before, now)) == [
        "+ client-id=etl consumer_byte_rate=1",
        "~ client-id=etl producer_byte_rate=50000000 -> 60000000",
        "- client-id=etl request_rate=5",
    ]
    assert next(iter(lines_of(now, removal(now, AUTHOR)))) == "- client-id=etl consumer_byte_rate=1"
    assert shown(Record(now.entity, kafka={"request_percentage": 5.0})) == (
        "client-id=etl request_percentage=5.0 (request_percentage is not enforced)"
    )
