"""Records as they are in Kafka, and what the published schema says about them."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from pipeline.usage.records import SCHEMA_FILE


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) as a dict."""
    return dict(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))


def errors(record: object) -> list[str]:
    """What is wrong with one decoded record, `field: reason` each; empty for a valid one."""
    found = Draft202012Validator(schema()).iter_errors(record)
    return [f"{'/'.join(map(str, error.absolute_path)) or 'record'}: {error.message}" for error in found]


def key(record: Mapping[str, Any]) -> bytes:
    """The Kafka key: sidecar and incarnation, so that the records of one process stay in order."""
    return f"{record['sidecar']}/{record['incarnation']}".encode()


def value(record: Mapping[str, Any]) -> bytes:
    """The Kafka value: JSON without spaces, UTF-8."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
