"""The quotas file: what is understood, and that every error is named with its place and the way out."""

import tomllib
from fractions import Fraction

import pytest

from quotas.entity import DEFAULT, TOTAL, Entity, EntityKind, Named
from quotas.entry import QuotaEntry
from quotas.limit_kinds import (
    BYTES_THRESHOLD,
    CONNECTIONS,
    CONSUMER_BYTE_RATE,
    MESSAGES_THRESHOLD,
    PRODUCER_BYTE_RATE,
    TOTAL_BYTES_THRESHOLD,
    TOTAL_MESSAGES_THRESHOLD,
)
from quotas.limit_options import LimitOptions
from quotas.parsing.entry import Reading
from quotas.parsing.file import FileEntries, load_quotas
from quotas.resource_groups import ResourceGroup

ABOVE = "write it above the first table: below a table, TOML makes it part of that table"
STAR = r"* is allowed only at the end, not as in 'a*b'; write \* for a star in a name"


def entries_of(found: FileEntries) -> list[QuotaEntry]:
    """The entries of a file with which nothing is wrong."""
    assert found.errors == ()
    return [placed.entry for placed in found.placed if placed.entry is not None]


def load(text: str) -> list[QuotaEntry]:
    return entries_of(load_quotas(tomllib.loads(text)))


def errors_of(text: str) -> list[tuple[str, str, str | None]]:
    """Place, message and hint of each."""
    return [(error.place, error.message, error.hint) for error in load_quotas(tomllib.loads(text)).errors]


def test_a_file_reads_as_the_contract_shows() -> None:
    entries = load("""
        [[quota]]
        user = "CN=etl,O=acme"
        client-id = "spark-etl"
        producer_byte_rate = "5MB"
        [[quota]]
        client-id = "<default>"
        consumer_byte_rate = 1000000
        burst_seconds = 0.5
        mode = "auto"
        [[quota]]
        client-id = '"<default>"'
        consumer_byte_rate = 1e6
        [[resource-group]]
        name = "etl"
        client-id = ["spark-*"]
        producer_byte_rate = "50MB"
        """)
    assert entries == [
        QuotaEntry(Entity("CN=etl,O=acme", "spark-etl"), {PRODUCER_BYTE_RATE: 5_000_000}),
        QuotaEntry(
            Entity(None, DEFAULT),
            {CONSUMER_BYTE_RATE: 1_000_000},
            LimitOptions(mode="auto", burst_seconds=Fraction(1, 2)),
        ),
        QuotaEntry(Entity(None, "<default>"), {CONSUMER_BYTE_RATE: 1_000_000}),
        QuotaEntry(
            Named(EntityKind.RESOURCE_GROUP, "etl"),
            {PRODUCER_BYTE_RATE: 50_000_000},
            group=ResourceGroup("etl", client_ids=("spark-*",)),
        ),
    ]


def test_the_members_of_a_group_are_names_or_lists() -> None:
    (entry,) = load("""
        [[resource-group]]
        name = "etl"
        user = "alice"
        client-id = ["spark-*", "flink-*"]
        topic = ['"<default>"']
        consumer_byte_rate = 5
        """)
    assert entry.group == ResourceGroup("etl", ("alice",), ("spark-*", "flink-*"), ("<default>",))
    assert entry.entity == Named(EntityKind.RESOURCE_GROUP, "etl")


@pytest.mark.parametrize("quote", ['"', ""])
def test_thresholds_with_and_without_quotes(quote: str) -> None:
    """TOML makes tables within tables of what has dots and no quotes."""
    entries = load(f"""
        [[quota]]
        topic = "orders"
        {quote}bytes.in.per.sec.threshold{quote} = "5MB"
        {quote}messages.in.per.sec.threshold{quote} = 10
        [[quota]]
        {"total = true" if quote else ""}
        {quote}total.bytes.in.per.sec.threshold{quote} = "50MB"
        {quote}total.messages.in.per.sec.threshold{quote} = 100
        connections = 7
        """)
    assert entries == [
        QuotaEntry(Named(EntityKind.TOPIC, "orders"), {BYTES_THRESHOLD: 5_000_000, MESSAGES_THRESHOLD: 10}),
        QuotaEntry(TOTAL, {TOTAL_BYTES_THRESHOLD: 50_000_000, TOTAL_MESSAGES_THRESHOLD: 100, CONNECTIONS: 7}),
    ]


def test_a_misspelt_threshold_without_quotes_is_named_as_it_is_written() -> None:
    ((place, message, hint),) = errors_of("""
        [[quota]]
        topic = "orders"
        bytes.in.per.sec.treshold = 5
        """)
    assert (place, message) == ("quota[0].bytes.in.per.sec.treshold", "unknown key 'bytes.in.per.sec.treshold'")
    assert hint == "did you mean 'bytes.in.per.sec.threshold'?"


@pytest.mark.parametrize("key", ["bytes", "messages", "total"])
def test_tables_within_tables_may_be_as_deep_as_they_like(key: str) -> None:
    names = [message for _, message, _ in errors_of(f"[[quota]]\n{key}{'.a' * 990} = 1\n{key}.b = {{}}")]
    assert f"unknown key '{key}.b'" in names
    assert f"unknown key '{key}{'.a' * 990}'" in names


def test_every_error_of_a_file_is_found_with_its_place() -> None:
    found = errors_of("""
        quotas = 1
        [[quota]]
        client-id = "a"
        producer_byte_rate = 5
        [[quota]]
        client_id = "a"
        producer_byte_rate = 5.5
        [[quota]]
        client-id = "a"
        producer_byte_rat = 5
        mode = "dealy"
        [[quota]]
        user = ["a", "b"]
        producer_byte_rate = true
        burst_seconds = "long"
        [[quota]]
        total = 5000000
        connections = 1
        [[quota]]
        listener = true
        ip = "10.0.0.7/8"
        connections = 1
        [[resource-group]]
        client-id = "spark-*"
        producer_byte_rate = 1
        [[resource-group]]
        name = "etl"
        client-id = ["a*", "a*b", 5]
        user = "a*b"
        topic = ["<default>"]
        producer_byte_rate = 1
        [[resource-group]]
        name = "etl"
        topic = []
        producer_byte_rate = 1
        """)
    assert [(place, message) for place, message, _ in found] == [
        ("quotas", "unknown key 'quotas'"),
        ("quota[1].client_id", "unknown key 'client_id'"),
        ("quota[1].producer_byte_rate", "producer_byte_rate cannot be a fractional value."),
        ("quota[2].producer_byte_rat", "unknown key 'producer_byte_rat'"),
        ("quota[2].mode", "unknown mode 'dealy'"),
        ("quota[3].user", "expected a name in quotes, not ['a', 'b']"),
        ("quota[3].producer_byte_rate", "expected a number, not True"),
        ("quota[3].burst_seconds", "expected a number, not 'long'"),
        ("quota[4].total", "expected total=true, not 5000000"),
        ("quota[5].listener", "expected a name in quotes, not True"),
        ("quota[5].ip", "10.0.0.7/8 has host bits set"),
        ("quota[5]", "Invalid quota entity combination, ip and listener"),
        ("resource-group[0].name", "a resource-group needs a name"),
        ("resource-group[1].client-id[1]", STAR),
        ("resource-group[1].client-id[2]", "expected a name in quotes, not 5"),
        ("resource-group[1].user", STAR),
        ("resource-group[1].topic[0]", "<default> cannot be a member of a group"),
        ("resource-group[2]", "a resource group without members: give it a user, a client-id or a topic"),
    ]  # fmt: skip
    hints = {place: hint for place, _, hint in found}
    assert hints["quotas"] == "did you mean 'quota'? allowed: quota, resource-group"
    assert hints["quota[1].client_id"] == "did you mean 'client-id'?"
    assert "each name needs its own table" in str(hints["quota[3].user"])
    assert str(hints["quota[4].total"]).endswith("as in total=true,producer_byte_rate=5000000")
    assert hints["quota[5].ip"] == "did you mean 10.0.0.0/8?"


def test_settings_of_the_file_stand_above_all_tables() -> None:
    data = {"share": 7, "quota": [{"client-id": "a", "producer_byte_rate": 5}]}
    (entry,) = entries_of(load_quotas(data, settings=("share",)))
    assert entry == QuotaEntry(Entity(client_id="a"), {PRODUCER_BYTE_RATE: 5})
    data["quota"] = [{"client-id": "a", "producer_byte_rate": 5, "share": 7}]
    data["resource-group"] = [{"name": "g", "user": "a", "producer_byte_rate": 5, "share": 7}]
    data["shares"] = 7
    found = load_quotas(data, settings=("share",))
    assert [(error.place, error.message, error.hint) for error in found.errors] == [
        ("quota[0].share", "share is for the whole file", ABOVE),
        ("resource-group[0].share", "share is for the whole file", ABOVE),
        ("shares", "unknown key 'shares'", "did you mean 'share'? allowed: quota, resource-group, share"),
    ]


def test_a_group_has_a_table_of_its_own() -> None:
    ((place, message, hint),) = errors_of("""
        [[quota]]
        resource-group = "etl"
        client-id = ["spark-*"]
        producer_byte_rate = 1
        """)
    assert (place, message) == ("quota[0].resource-group", "a resource-group needs its own table")
    assert str(hint).startswith("write a [[resource-group]] table with name, ")


@pytest.mark.parametrize(
    ("data", "place", "says"),
    [
        ({"quota": {"client-id": "a"}}, "quota", "expected a list of tables\n  write [[quota]], with two brackets"),
        ({"resource-group": {}}, "resource-group", "expected a list of tables\n  write [[resource-group]], with two"),
        ({"quota": [5]}, "quota[0]", "expected a table, not 5"),
        ({"quota": [{"client-id": "a", "mode": 5, "producer_byte_rate": 1}]}, "quota[0].mode", "unknown mode 5"),
    ],
)
def test_a_file_of_another_shape_is_refused(data: dict[str, object], place: str, says: str) -> None:
    (error,) = load_quotas(data).errors
    assert error.place == place
    assert f"{place}: {says}" in str(error)


def test_of_a_table_that_is_wrong_is_told_what_could_be_read() -> None:
    topic = Named(EntityKind.TOPIC, "t")
    data = {
        "quota": [
            {"topic": "t", BYTES_THRESHOLD: 5, MESSAGES_THRESHOLD: "5X"},
            {"topik": "t", BYTES_THRESHOLD: 5},
            5,
            {"topic": "t", BYTES_THRESHOLD: 6},
        ],
        "resource-group": [{"client-id": "a", "producer_byte_rate": 5}],
        "quotas": [],
    }
    assert [reading._replace(errors=()) for reading in load_quotas(data).placed] == [
        Reading("quota[0]", topic, None, {BYTES_THRESHOLD: 5}),
        Reading("quota[1]", None, None, {BYTES_THRESHOLD: 5}),
        Reading("quota[2]"),
        Reading("quota[3]", topic, QuotaEntry(topic, {BYTES_THRESHOLD: 6}), {BYTES_THRESHOLD: 6}),
        Reading("resource-group[0]", limits={PRODUCER_BYTE_RATE: 5}),
        Reading("quotas"),
    ]
