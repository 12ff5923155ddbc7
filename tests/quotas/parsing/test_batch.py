"""What must hold over all entries together."""

import pytest

from quotas.entity import TOTAL, AnyEntity, Entity, EntityKind, Named
from quotas.limit_kinds import BYTES_THRESHOLD, MESSAGES_THRESHOLD, TOTAL_BYTES_THRESHOLD, TOTAL_MESSAGES_THRESHOLD
from quotas.parsing.batch import duplicates, threshold_errors
from quotas.parsing.entry import Reading
from quotas.parsing.parse import parse_spec


def test_duplicates_are_found_wherever_the_entries_came_from() -> None:
    placed = [("--quota 'a'", Entity("a")), ("--quota 'b'", Entity("b")), ("--quota 'c'", Entity("a"))]
    (error,) = duplicates(placed)
    assert str(error) == ("--quota 'c': user:a is given twice\n  put its limits into one entry: --quota 'a'")


TOTAL_OF_10 = "total,total.bytes.in.per.sec.threshold=10"
A_HAS_4 = "topic=a,bytes.in.per.sec.threshold=4"
BOTH_OF_A = "topic=a,bytes.in.per.sec.threshold=4,messages.in.per.sec.threshold=5"
TOO_LITTLE_OF_BOTH = "total,total.bytes.in.per.sec.threshold=3,total.messages.in.per.sec.threshold=4"


def above(unit: str, explicit_sum: int, total: int) -> str:
    return (
        f"{unit}.in.per.sec.threshold of all topics sums to {explicit_sum}, above "
        f"total.{unit}.in.per.sec.threshold={total}: raise the total, or lower the thresholds of topics"
    )


NO_TOTAL = (
    "bytes.in.per.sec.threshold of topics (sum 4) has no effect without "
    "total.bytes.in.per.sec.threshold: set the total, or remove the thresholds of topics"
)


@pytest.mark.parametrize(
    ("specs", "errors"),
    [
        ([], []),
        (["total,connections=5"], []),
        ([TOTAL_OF_10], []),
        ([A_HAS_4, TOTAL_OF_10, "topic=b,bytes.in.per.sec.threshold=6"], []),
        ([A_HAS_4, TOTAL_OF_10, "topic=b,bytes.in.per.sec.threshold=7,bytes_in_rate=1000"], [above("bytes", 11, 10)]),
        ([A_HAS_4, "total,total.messages.in.per.sec.threshold=10"], [NO_TOTAL]),
        ([BOTH_OF_A, TOO_LITTLE_OF_BOTH], [above("bytes", 4, 3), above("messages", 5, 4)]),
    ],
)
def test_thresholds_fit_their_total(specs: list[str], errors: list[str]) -> None:
    assert [str(error) for error in threshold_errors([parse_spec(spec) for spec in specs])] == errors


A, C = Named(EntityKind.TOPIC, "a"), Named(EntityKind.TOPIC, "c")


@pytest.mark.parametrize(
    ("wrong", "sums"),
    [
        ([(Entity("u"), {})], ["sums to 11", "sum 3)"]),
        ([(C, {})], ["sums to 11", "sum 3)"]),
        ([(C, {BYTES_THRESHOLD: 2, MESSAGES_THRESHOLD: 4})], ["sums to 13", "sum 7)"]),
        ([(A, {})], ["sum 3)"]),
        ([(A, {BYTES_THRESHOLD: 3})], ["sum 3)"]),
        ([(A, {BYTES_THRESHOLD: 4})], ["sums to 11", "sum 3)"]),
        ([(TOTAL, {})], []),
        ([(TOTAL, {TOTAL_BYTES_THRESHOLD: 10})], ["sums to 11"]),
        ([(TOTAL, {TOTAL_BYTES_THRESHOLD: 11})], []),
        ([(TOTAL, {TOTAL_BYTES_THRESHOLD: 11, TOTAL_MESSAGES_THRESHOLD: 2})], ["sums to 3"]),
        ([(None, {}), (C, {})], []),
    ],
)
def test_thresholds_of_wrong_entries_count_if_they_could_be_parsed(
    wrong: list[tuple[AnyEntity | None, dict[str, int]]], sums: list[str]
) -> None:
    """Nothing is an error that may be right once they are."""
    specs = [
        TOTAL_OF_10,
        A_HAS_4,
        "topic=b,bytes.in.per.sec.threshold=7,messages.in.per.sec.threshold=3",
    ]
    readings = [Reading("", entity, None, limits) for entity, limits in wrong]
    errors = threshold_errors([parse_spec(spec) for spec in specs], readings)
    assert len(errors) == len(sums)
    assert all(text in error.message for text, error in zip(sums, errors, strict=True))
