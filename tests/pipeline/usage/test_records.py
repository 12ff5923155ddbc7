"""The published format: the schema, its documentation, and what makes the key."""

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from deploy.local.artifacts import PROJECT
from pipeline.usage import records, schemas
from tests.pipeline.usage.fleets import idle_record, throttle_record, usage_record


def test_the_schema_is_one_and_accepts_all_kinds() -> None:
    Draft202012Validator.check_schema(records.schema())
    assert records.errors(usage_record()) == []
    assert records.errors(throttle_record()) == []
    assert records.errors(throttle_record(fleet="etl", fleet_cap=1.5)) == []
    assert records.errors(throttle_record(fleet=None, fleet_cap=None)) == []
    assert records.errors(throttle_record(fleet="")) != []
    assert records.errors(idle_record()) == []
    assert records.errors(usage_record(max_second_bytes=7)) == []
    assert records.errors(usage_record(topic="orders", messages=5, labels={"team": "a"})) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"seq": -1},
        {"seq": 1.5},
        {"user": None},
        {"max_second_bytes": -1},
        {"labels": {"a": 1}},
        {"bytes": 2**53},
    ],
)
def test_the_schema_refuses(changes: dict[str, object]) -> None:
    assert records.errors(usage_record(**changes))


def test_each_field_is_in_the_documentation_and_in_sparks_schema() -> None:
    text = (PROJECT / "docs" / "pipeline" / "records.md").read_text(encoding="utf-8")
    common = set(records.schema()["properties"])
    *kinds, idle = records.schema()["oneOf"]
    assert idle["properties"] == {"kind": {"const": records.IDLE}}
    for kind, own in zip(schemas.KINDS, kinds, strict=True):
        fields = common | set(own["properties"]) - {"fleet_cap"}  # of no table but `records`
        assert fields == {*schemas.SERIES_COMMON, *kind.own, *kind.counters, *kind.gauges} | {
            "schema", "kind", "seq", "time_ms", "final",
        }  # fmt: skip
        for name in fields:
            assert f"| `{name}` |" in text, name
            assert f"{name} " in schemas.JSON_RECORD, name


def test_the_key_keeps_a_process_in_order() -> None:
    assert records.key(usage_record(sidecar="pod-1", incarnation="x")) == b"pod-1/x"


def test_each_table_is_in_the_documentation() -> None:
    text = (PROJECT / "docs" / "pipeline" / "tables.md").read_text(encoding="utf-8")
    for name in schemas.TABLES:
        assert f"`{name}`" in text, name


def test_the_documentation_names_no_file_that_is_not_there() -> None:
    folder = PROJECT / "docs" / "pipeline"
    files = {"README.md", "records.md", "tables.md", "comparison.md", "sink.md", "usage.png", "usage-narrow.png"}
    assert {path.name for path in folder.iterdir()} == files
    assert Path(PROJECT / "pipeline" / "usage" / "submit.py").exists()
