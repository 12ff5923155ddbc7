"""Owner rules: the tester and the Spark expression give the same team."""

import json
from datetime import date, datetime

import pytest
from pyspark.sql import SparkSession

from pipeline.usage import owners

TEXT = """
[[owner]]
team = "old-search"
client-id = "search-.*"
until = 2026-01-01

[[owner]]
team = "search"
client-id = 'search-\\d+'
user = "svc|ci"

[[owner]]
team = "pods"
labels = {namespace = "team-.*", "app.kubernetes.io/name" = "etl"}

[[owner]]
team = "orders"
topic = "orders"
from = 2026-01-02
"""
LABELS = {"namespace": "team-x", "app.kubernetes.io/name": "etl"}
CASES = [
    ("search-1", "svc", None, {}, "2026-01-05", "search"),
    ("search-1", "svc", None, {}, "2025-12-31", "old-search"),
    ("search-1", "svcx", None, {}, "2026-01-05", "unallocated"),
    ("search-x", "svc", None, {}, "2026-01-05", "unallocated"),
    ("search-1\n", "svc", None, {}, "2026-01-05", "unallocated"),
    ("other", "u", None, LABELS, "2026-01-05", "pods"),
    ("other", "u", None, {"namespace": "team-x"}, "2026-01-05", "unallocated"),
    ("other", "u", "orders", {}, "2026-01-02", "orders"),
    ("other", "u", "orders", {}, "2026-01-01", "unallocated"),
]


def test_tester_and_spark_agree(spark: SparkSession) -> None:
    rules = owners.parse(TEXT)
    rows = [
        (client, user, topic, json.dumps(labels), datetime.fromisoformat(f"{day}T12:00:00+00:00"))
        for client, user, topic, labels, day, _ in CASES
    ]
    frame = spark.createDataFrame(
        rows, "client_id string, user string, topic string, labels string, time timestamp"
    ).select(owners.team_of(rules).alias("team"))
    expected = [case[-1] for case in CASES]
    assert [row["team"] for row in frame.collect()] == expected
    tested = [
        owners.explain(rules, {"client_id": c, "user": u, "topic": t}, labels, date.fromisoformat(day)).team
        for c, u, t, labels, day, _ in CASES
    ]
    assert tested == expected


def test_the_tester_says_why_earlier_rules_do_not_match() -> None:
    match = owners.explain(owners.parse(TEXT), {"client_id": "search-7", "user": "ci"}, {}, date(2026, 1, 5))
    assert match.rule is not None
    assert (match.team, match.rule.place) == ("search", "owner[1]")
    assert match.passed_over == ["owner[0] (old-search): valid until 2026-01-01"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[owner]\nteam='a'", "owner: write [[owner]]"),
        ("[[owner]]\nteam='a'", "owner[0]: give at least one of user, client-id, topic, labels"),
        ("[[owner]]\nteam='a'\nclientid='b'", "owner[0].clientid: unknown key"),
        ("[[owner]]\nteam='a'\nuser='('", "owner[0].user: '('"),
        ("[[owner]]\nteam='a'\nuser='(?P<x>a)'", "'(?P' does not mean the same to Java and Python"),
        ("[[owner]]\nteam='a'\nuser='b'\nfrom='2026-01-01'", "owner[0].from: expected a day"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(owners.OwnersError) as raised:
        owners.parse(text)
    assert message in str(raised.value)
