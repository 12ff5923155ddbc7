"""The published format: the schema, its documentation, and what makes the key."""

from pathlib import Path

from jsonschema import Draft202012Validator

from deploy.local.artifacts import PROJECT
from pipeline.usage import records, schemas
from tests.pipeline.usage import published
from tests.pipeline.usage.fleets import idle_record, throttle_record, usage_record


def test_the_schema_is_one_and_accepts_all_kinds() -> None:
    Draft202012Validator.check_schema(published.schema())
    assert (published.errors(usage_record()), published.errors(throttle_record())) == ([], [])
    assert published.errors(throttle_record(fleet="etl", fleet_cap=1.5)) == []
    assert published.errors(throttle_record(fleet=None, fleet_cap=None)) == []
    assert published.errors(throttle_record(fleet="")) != []
    assert published.errors(idle_record()) == []
    assert published.errors(usage_record(max_second_bytes=7)) == []
    assert published.errors(usage_record(unanswered_requests=7, inspected_requests=None)) == []
    assert published.errors(usage_record(topic="orders", messages=5, labels={"team": "a"})) == []


def test_each_field_is_in_the_documentation_and_in_sparks_schema() -> None:
    text = (PROJECT / "docs" / "pipeline" / "records.md").read_text(encoding="utf-8")
    common = set(published.schema()["properties"])
    *kinds, idle = published.schema()["oneOf"]
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
    assert published.key(usage_record(sidecar="pod-1", incarnation="x")) == b"pod-1/x"


def test_each_table_is_in_the_documentation() -> None:
    text = (PROJECT / "docs" / "pipeline" / "tables.md").read_text(encoding="utf-8")
    for name in schemas.TABLES:
        assert f"`{name}`" in text, name


def test_the_documentation_names_no_file_that_is_not_there() -> None:
    folder = PROJECT / "docs" / "pipeline"
    files = {"README.md", "records.md", "tables.md", "comparison.md", "sink.md", "usage.png", "usage-narrow.png"}
    assert {path.name for path in folder.iterdir()} == files
    assert Path(PROJECT / "pipeline" / "usage" / "submit.py").exists()
