"""Owner rules: the tester and the Spark expression give the same team."""

import json
from datetime import date, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.failures import InputError
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
        ("[[owners]]\nteam='a'\nuser='b'", "owners: unknown key; did you mean 'owner'? allowed: owner"),
        ("owner = ['a']", "owner: write [[owner]], with two brackets"),
        ("[[owner]]\nteam='a'\nuser='b'\nuntill=2026-01-01", "owner[0].untill: unknown key; did you mean 'until'?"),
        ("[[owner]]\nteam='a'\nuser='b'\nfrom=2026-02-01\nuntil=2026-01-01", "2026-01-01 is not after 2026-02-01"),
        ("[[owner]]\nteam=' '\nuser='b'", "owner[0].team: a team's name is needed"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        owners.parse(text)
    assert message in str(raised.value)


def test_a_file_in_another_encoding_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "owners.toml"
    path.write_bytes(b"[[owner]]\nteam='B\xfcro'\nuser='b'")
    with pytest.raises(InputError, match=r"owners\.toml: not UTF-8 at byte 17: save the file as UTF-8"):
        owners.load(path)
    path.write_bytes(b"\xef\xbb\xbf[[owner]]\nteam='a'\nuser='b'")
    assert [rule.team for rule in owners.load(path)] == ["a"]
