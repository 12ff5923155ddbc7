"""Client ids of records: labels are split off, what clients generate becomes `*`. The table is that of the docs."""

from uuid import UUID

from hypothesis import example, given
from hypothesis import strategies as st

from proxy.config.values import MAX_LABELS
from proxy.usage.client_ids import identity_of, normalised, split_labels
from tests.docs.pages import ROOT, rows

ONE_UUID = "9f3b2c1d-0a1b-4c2d-8e3f-001122334455"
RECORDS_PAGE = ROOT / "docs/pipeline/records.md"

WORDS = st.sampled_from(
    ["-", "-", "*", "1", "27", "-3", ONE_UUID, ONE_UUID.replace("-", ""), "producer", "consumer", "adminclient",
     "driver", "executor", "StreamThread", "spark-kafka-source", "etl", "aiokafka", ";label.a=b", " "]
)  # fmt: skip
CLIENT_IDS = st.lists(WORDS, max_size=12).map("".join) | st.text(max_size=30)
NAMES = st.text("abc._-", min_size=1, max_size=10)
VALUES = st.text(st.characters(exclude_characters=";, ", exclude_categories=["Cs"]), max_size=10)


def examples() -> dict[str, str]:
    """The rows of the table of rules: client id, and that of records."""
    return {row[0]: row[1] for row in rows(RECORDS_PAGE.read_text(encoding="utf-8")) if row[-1].startswith("generated")}


def test_the_table_of_rules_is_what_they_do() -> None:
    table = examples()
    assert len(table) >= 8
    assert {client_id: normalised(client_id) for client_id in table} == table


@given(CLIENT_IDS)
@example(f"{ONE_UUID}-1-StreamThread-3-4")
def test_rules_do_not_change_their_own_result(client_id: str) -> None:
    assert normalised(normalised(client_id)) == normalised(client_id)


PAIRS_OF_NUMBERS = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6))


@given(PAIRS_OF_NUMBERS, st.tuples(st.uuids(), st.uuids()), st.integers(-(2**31), 2**31 - 1))
def test_numbers_and_hashes_do_not_make_series(numbers: tuple[int, int], uuids: tuple[UUID, UUID], hash_: int) -> None:
    for pattern in (
        "producer-{n}",
        "consumer-orders-2-{n}",
        "consumer-spark-kafka-source-{u}-{h}-driver-0-{n}",
        "consumer-flights-etl-{u}-{h}-executor-{n}",
        "spark-kafka-source-{u}-{h}-driver-0-{n}",
        "app-{u}-StreamThread-{n}-producer",
    ):
        found = {normalised(pattern.format(n=n, u=u, h=hash_)) for n in numbers for u in uuids}
        assert found == {normalised(pattern.format(n=0, u=uuids[0], h=0))}


@given(st.text("abc-", max_size=10), st.lists(st.tuples(NAMES, VALUES), max_size=5))
def test_labels_are_split_off_the_end(name: str, labels: list[tuple[str, str]]) -> None:
    client_id = name + "".join(f";label.{key}={value}" for key, value in labels)
    assert split_labels(client_id) == (name, tuple(sorted(dict(labels).items())))


def test_labels_in_the_middle_are_part_of_the_name() -> None:
    assert split_labels("etl;label.team=a-7;x") == ("etl;label.team=a-7;x", ())
    assert split_labels("etl,label.team=a label.env=b") == ("etl", (("env", "b"), ("team", "a")))


def test_labels_of_the_process_win_and_their_number_is_bounded() -> None:
    stamped = tuple((f"s{number:02}", "x") for number in range(MAX_LABELS - 1))
    name, labels = identity_of("etl-;label.s00=forged;label.a=1;label.b=2", stamped)
    assert name == "etl-"
    assert labels == (("a", "1"), *stamped)
