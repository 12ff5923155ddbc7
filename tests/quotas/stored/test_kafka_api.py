"""Kafka's quota API over records: filters, alterations, and the errors of brokers."""

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entity import AnyEntity
from quotas.parsing.parse import parse_spec
from quotas.problems import InvalidValue
from quotas.stored.kafka_api import Component, Names, Operation, UnsupportedType, altered, described
from quotas.stored.record import Author, Record, encode

AUTHOR = Author("User:alice")
EXACT, DEFAULT, ANY = range(3)
ETL: Names = (("client-id", "etl"),)
ADDRESSES: Names = (("ip", None),)
TOO_LARGE = "Proposed value for connection_creation_rate is too large for an INT."
PAIR: Names = (("user", "alice"), ("client-id", "etl"))


def records_of(*specs: str) -> dict[AnyEntity, Record]:
    entries = map(parse_spec, specs)
    return {entry.entity: Record(entry.entity, entry) for entry in entries}


RECORDS = records_of(
    "user=alice,producer_byte_rate=1,burst_seconds=2",
    "user=alice,client-id=etl,producer_byte_rate=2,consumer_byte_rate=unlimited",
    "user=<default>,client-id=etl,consumer_byte_rate=3",
    "client-id=etl,consumer_byte_rate=4,request_rate=9",
    "client-id=<default>,controller_mutation_rate=0.5",
    'client-id="<default>",producer_byte_rate=6',
    "ip=10.0.0.7,connection_creation_rate=7,connections=5",
    "client-id=other,request_rate=8",
    "topic=orders,bytes_in_rate=1",
    "resource-group=g,client-id=a,producer_byte_rate=1",
    "total=true,producer_byte_rate=1",
)


def found(*components: Component, strict: bool = True) -> list[str]:
    """The sums of the values, which tell the entities apart."""
    return [f"{sum(values.values()):g}" for _, values in described(RECORDS, components, strict=strict)]


def test_what_kafka_can_express_is_described() -> None:
    assert found(strict=False) == ["1", "2", "3", "4", "0.5", "6", "7"]
    for spelling in ("10.0.0.7", "::ffff:10.0.0.7"):  # as tools have written it
        assert described(RECORDS, [("ip", EXACT, spelling)], strict=True) == [
            ({"ip": "10.0.0.7"}, {"connection_creation_rate": 7.0})
        ]
    of_kafka = Record(parse_spec("user=u,request_rate=1").entity, kafka={"request_percentage": 12.5})
    assert described({of_kafka.entity: of_kafka}, [], strict=False) == [({"user": "u"}, {"request_percentage": 12.5})]


@pytest.mark.parametrize(
    ("components", "strict", "expected"),
    [
        ([("user", EXACT, "alice")], True, ["1"]),
        ([("user", EXACT, "alice")], False, ["1", "2"]),
        ([("user", EXACT, "alice"), ("client-id", EXACT, "etl")], True, ["2"]),
        ([("user", ANY, None)], False, ["1", "2", "3"]),
        ([("user", DEFAULT, None), ("client-id", ANY, None)], True, ["3"]),
        ([("client-id", ANY, None)], True, ["4", "0.5", "6"]),
        ([("client-id", DEFAULT, None)], True, ["0.5"]),
        ([("client-id", EXACT, "<default>")], True, ["6"]),
        ([("ip", ANY, None)], True, ["7"]),
        ([], True, []),
    ],
)
def test_filters(components: list[Component], strict: bool, expected: list[str]) -> None:
    assert found(*components, strict=strict) == expected


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ([("", ANY, None)], "Invalid empty entity type."),
        (
            [("user", ANY, None), ("user", DEFAULT, None)],
            "Entity type user cannot appear more than once in the filter.",
        ),
        ([("topic", ANY, None)], "Unsupported entity type topic"),
        ([("user", EXACT, None)], "Request specified MATCH_TYPE_EXACT, but set match string to null."),
        ([("user", ANY, "a")], "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."),
        ([("user", 3, None)], "Unknown match type 3"),
        (
            [("ip", ANY, None), ("user", ANY, None)],
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component.",
        ),
    ],
)
def test_filters_that_brokers_refuse(components: list[Component], message: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        described(RECORDS, components, strict=False)
    assert refused.value.message == message
    assert isinstance(refused.value, UnsupportedType) == message.startswith("Unsupported")


def alter(entity: Names, *operations: Operation, records: Mapping[AnyEntity, Record] = RECORDS) -> object:
    """The fields after these operations, None if nothing changes, or the words of the refusal."""
    [one] = altered(records, [(entity, operations)], AUTHOR)
    assert one.entity == entity
    if isinstance(one.outcome, Record):
        assert one.outcome.author == AUTHOR
        return one.outcome.fields
    return one.outcome if one.outcome is None else one.outcome.message


def setting(key: str, value: float) -> Operation:
    return key, value, False


def removing(key: str) -> Operation:
    return key, 0.0, True


@pytest.mark.claim("kafka-quotas", "what Kafka's API cannot express stays when it alters an entity")
def test_alterations() -> None:
    assert alter(PAIR, setting("producer_byte_rate", 5e6)) == {
        "producer_byte_rate": 5_000_000, "consumer_byte_rate": "unlimited",
    }  # fmt: skip
    assert alter((("user", "alice"),), removing("producer_byte_rate")) == {}, "the burst alone is nothing"
    assert alter(ETL, removing("consumer_byte_rate")) == {"request_rate": 9}
    for key in ("request_rate", "connection_creation_rate", "x"):
        assert alter(ETL, removing(key)) is None, "not a quota of Kafka's for this entity: brokers do nothing"
    assert alter((("user", None),), setting("controller_mutation_rate", 0.25)) == {"controller_mutation_rate": 0.25}
    assert alter((("ip", "10.0.0.7"),), removing("connection_creation_rate")) == {"connections": 5}
    largest = alter((("user", "b"),), setting("producer_byte_rate", float(2**63 - 1)))
    assert largest == {"producer_byte_rate": 2**63 - 1}
    strimzi = [setting("request_percentage", 55), *map(removing, ("producer_byte_rate", "controller_mutation_rate"))]
    assert alter((("user", "CN=me"),), *strimzi) == {"request_percentage": 55.0}


@pytest.mark.parametrize(
    ("entity", "operation", "message"),
    [
        ((), setting("producer_byte_rate", 1), "Invalid empty client quota entity"),
        ((("topic", "t"),), setting("producer_byte_rate", 1), "Unhandled client quota entity type: topic"),
        ((("user", ""),), setting("producer_byte_rate", 1), "Empty user not supported"),
        (
            (("ip", "10.0.0.7"), ("user", "a")),
            setting("connection_creation_rate", 1),
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",
        ),
        (
            (("ip", "localhost"),),
            setting("connection_creation_rate", 1),
            "localhost is not an IP address, and this proxy resolves no host names in its quotas topic",
        ),
        (
            (("user", "u" * 1025),),
            setting("producer_byte_rate", 1),
            "The name of the user has 1025 characters, and this proxy keeps at most 1024",
        ),
        (ETL, setting("producer_byte_rat", 1), "Invalid configuration key producer_byte_rat"),
        (ETL, setting("connection_creation_rate", 1), "Invalid configuration key connection_creation_rate"),
        ((("ip", None),), setting("producer_byte_rate", 1), "Invalid configuration key producer_byte_rate"),
        (ETL, setting("producer_byte_rate", 0), "Quota producer_byte_rate must be greater than 0"),
        (ETL, setting("request_percentage", -1), "Quota request_percentage must be greater than 0"),
        (ETL, setting("producer_byte_rate", 1e30), "Proposed value for producer_byte_rate is too large for a LONG."),
        (ADDRESSES, setting("connection_creation_rate", 1e12), TOO_LARGE),
        (ETL, setting("producer_byte_rate", 1.5), "producer_byte_rate cannot be a fractional value."),
        (ETL, setting("producer_byte_rate", math.nan), "Proposed value for producer_byte_rate is not a finite number."),
        (
            (("user", "a"), ("user", "b")),
            setting("producer_byte_rate", 1),
            "Invalid quota entity combination, a type is given twice",
        ),
    ],
)
def test_alterations_that_brokers_refuse(entity: Names, operation: Operation, message: str) -> None:
    assert alter(entity, operation) == message


def test_duplicates_are_refused_and_others_are_not() -> None:
    key = setting("producer_byte_rate", 1)
    assert alter(ETL, key, removing("producer_byte_rate")) == "Duplicate quota key producer_byte_rate not allowed"
    twice = altered({}, [(PAIR, [key]), (ETL, [key]), (tuple(reversed(PAIR)), [key])], AUTHOR)
    assert [isinstance(each.outcome, InvalidValue) for each in twice] == [True, False]


KEYS = st.sampled_from(
    ["producer_byte_rate", "consumer_byte_rate", "request_percentage", "connection_creation_rate", "x"]
)
TYPES = st.sampled_from(["user", "client-id", "ip", ""])
ENTITIES = st.lists(st.tuples(TYPES, st.none() | st.sampled_from(["a", "10.0.0.1", "<default>"])), max_size=3).map(
    tuple
)
OPERATIONS = st.lists(st.tuples(KEYS, st.floats(), st.booleans()), max_size=4)


@given(st.lists(st.tuples(ENTITIES, OPERATIONS), max_size=4))
def test_what_was_altered_is_described(alterations: list[tuple[Names, list[Operation]]]) -> None:
    """Whatever is asked for: each accepted value is read back, and each record can be written."""
    results = altered({}, alterations, AUTHOR)
    written = {each.outcome.entity: each.outcome for each in results if isinstance(each.outcome, Record)}
    for record in written.values():
        encode(record)
    shown = {frozenset(entity.items()): values for entity, values in described(written, [], strict=False)}
    for result in results:
        asked = [operations for names, operations in alterations if set(names) == set(result.entity)]
        if isinstance(result.outcome, Record):
            values = {key: value for key, value, remove in asked[0] if not remove}
            assert shown[frozenset(result.entity)] == pytest.approx(values, rel=1e-5)
