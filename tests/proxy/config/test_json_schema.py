"""The schemas agree with the parsers: what editors accept and refuse, check-config does, as far as schemas can know."""

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from hypothesis import given

from proxy.command.commands import main, run
from proxy.config.json_schema import record_schema
from proxy.config.option_types import Setting
from quotas.entry import QuotaEntry
from quotas.stored.record import Record, encode
from tests.quotas.stored.entries import ENTRIES

CONFIG = """
bootstrap_servers = "broker-1:9092"
listen = "127.0.0.1:19092"
throttle_mode = "delay"
quota = ["client-id=etl,producer_byte_rate=5MB"]
max_throttle_ms = 5000
dry_run = true
"""
QUOTAS = """
quota_share = 0.5
dry_run = false

[[quota]]
user = "alice"
client-id = "<default>"
producer_byte_rate = "5MB"
request_rate = 2.5
burst_seconds = 0.5
mode = "notify"

[[quota]]
ip = "10.1.0.0/16"
connections = 100

[[quota]]
topic = "noisy"
"bytes.in.per.sec.threshold" = "1MB"

[[quota]]
total = true
"total.bytes.in.per.sec.threshold" = "10MB"
exempt-user = ["admin", "monitor-*"]

[[resource-group]]
name = "etl"
client-id = "spark-*"
topic = ["flights", "staging-*"]
producer_byte_rate = "50MB"
"""


def schema(which: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(CliRunner().invoke(main, ["schema", which]).output)
    jsonschema.Draft7Validator.check_schema(found)
    return found


def is_refused_by_editor(which: str, text: str) -> bool:
    return bool(list(jsonschema.Draft7Validator(schema(which)).iter_errors(tomllib.loads(text))))


def is_refused_by_proxy(text: str, folder: Path) -> bool:
    (folder / "file.toml").write_text(text)
    return CliRunner().invoke(main, ["check-config", str(folder / "file.toml")]).exit_code != 0


@pytest.mark.parametrize(
    ("which", "right", "wrong"),
    [
        ("config", CONFIG, CONFIG),
        ("config", "throttle_mode", "throttle_modes"),
        ("config", '"delay"', '"slow"'),
        ("config", '["client-id=etl,producer_byte_rate=5MB"]', '"client-id=etl,producer_byte_rate=5MB"'),
        ("config", "dry_run = true", "dry_run = 7"),
        ("quotas", QUOTAS, QUOTAS),
        ("quotas", "request_rate", "requests_rate"),
        ("quotas", "quota_share", "share"),
        ("quotas", '"notify"', '"note"'),
        ("quotas", 'name = "etl"\n', ""),
        ("quotas", 'topic = "noisy"', 'topic = ["noisy"]'),
        ("quotas", "[[resource-group]]", "[[group]]"),
        ("quotas", '"10.1.0.0/16"', "10"),
    ],
)
def test_an_editor_accepts_what_the_proxy_accepts(which: str, right: str, wrong: str, tmp_path: Path) -> None:
    text = CONFIG if which == "config" else QUOTAS
    assert right in text
    changed = text.replace(right, wrong)
    assert is_refused_by_editor(which, changed) == is_refused_by_proxy(changed, tmp_path) == (right != wrong)


def test_each_option_is_there_with_its_help() -> None:
    known = schema("config")["properties"]
    shown = {param.name for param in run.params if isinstance(param, Setting) and not param.hidden}
    assert known.keys() == shown - {"config"}
    assert all(each["description"] for each in known.values())


@given(ENTRIES)
def test_records_of_the_topic_of_quotas_are_as_their_schema_says(entry: QuotaEntry) -> None:
    value = json.loads(encode(Record(entry.entity, entry, {"request_percentage": 12.5}))[1])
    jsonschema.Draft7Validator(record_schema()).validate(value)
    value["quota"]["producer_byte_rat"] = 1
    with pytest.raises(jsonschema.ValidationError, match="producer_byte_rat"):
        jsonschema.Draft7Validator(record_schema()).validate(value)
