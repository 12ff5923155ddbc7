"""What must hold over all entries together."""

import pytest

from quotas.entity import Entity
from quotas.spec.parse import duplicates, parse_spec, threshold_errors


def test_duplicates_are_found_wherever_the_entries_came_from() -> None:
    placed = [("--quota 'a'", Entity("a")), ("--quota 'b'", Entity("b")), ("--quota 'c'", Entity("a"))]
    (error,) = duplicates(placed)
    assert str(error) == (
        "--quota 'c': user:a has an entry already: --quota 'a'\n  put all limits of an entity into one entry"
    )


@pytest.mark.parametrize(
    ("specs", "errors"),
    [
        ([], []),
        (["total,connections=5"], []),
        (["total,total.bytes.in.per.sec.threshold=10"], []),
        (
            [
                "topic=a,bytes.in.per.sec.threshold=4",
                "total,total.bytes.in.per.sec.threshold=10",
                "topic=b,bytes.in.per.sec.threshold=6",
            ],
            [],
        ),
        (
            [
                "topic=a,bytes.in.per.sec.threshold=4",
                "total,total.bytes.in.per.sec.threshold=10",
                "topic=b,bytes.in.per.sec.threshold=7,bytes_in_rate=1000",
            ],
            [
                "bytes.in.per.sec.threshold of all topics would sum to 11, beyond total.bytes.in.per.sec.threshold=10: "
                "raise the total, or lower the thresholds of topics"
            ],
        ),
        (
            ["topic=a,bytes.in.per.sec.threshold=4", "total,total.messages.in.per.sec.threshold=10"],
            [
                "bytes.in.per.sec.threshold of topics (in sum 4) holds nothing without "
                "total.bytes.in.per.sec.threshold: set the total, or remove the thresholds of the topics"
            ],
        ),
        (
            [
                "topic=a,bytes.in.per.sec.threshold=4,messages.in.per.sec.threshold=5",
                "total,total.bytes.in.per.sec.threshold=3,total.messages.in.per.sec.threshold=4",
            ],
            [
                "bytes.in.per.sec.threshold of all topics would sum to 4, beyond total.bytes.in.per.sec.threshold=3: "
                "raise the total, or lower the thresholds of topics",
                "messages.in.per.sec.threshold of all topics would sum to 5, beyond "
                "total.messages.in.per.sec.threshold=4: raise the total, or lower the thresholds of topics",
            ],
        ),
    ],
)
def test_thresholds_fit_their_total(specs: list[str], errors: list[str]) -> None:
    assert [str(error) for error in threshold_errors([parse_spec(spec) for spec in specs])] == errors
