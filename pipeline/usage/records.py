"""The record format between the proxy and this pipeline: `record_v1.schema.json`, see docs/pipeline/records.md.

The emitter and the tests validate with the schema alone. `transforms.parsing` applies the same rules with Spark's
built-in functions, and those that need a clock.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

SCHEMA_VERSION: Final = 1
SCHEMA_FILE: Final = files("pipeline.usage").joinpath("record_v1.schema.json")

USAGE: Final = "usage"
THROTTLE: Final = "throttle"
IDLE: Final = "idle"
MAX_COUNT: Final = 2**53 - 1
"""The largest counter: JSON readers that use doubles keep it exact."""
MAX_LIMIT: Final = 2.0**63
"""The largest limit: Kafka's own default of 2^63 - 1, as a double."""
MAX_TEXT: Final = 1024
MAX_LABELS: Final = 32


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) as a dict."""
    parsed: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return parsed


def errors(record: object) -> list[str]:
    """What is wrong with one decoded record, `field: reason` each; empty for a valid one. Needs `jsonschema`."""
    from jsonschema import Draft202012Validator  # not on every cluster that runs the jobs

    found = Draft202012Validator(schema()).iter_errors(record)
    return [f"{'/'.join(map(str, error.absolute_path)) or 'record'}: {error.message}" for error in found]


def key(record: Mapping[str, Any]) -> bytes:
    """The Kafka key: sidecar and incarnation, so that the records of one process stay in order."""
    return f"{record['sidecar']}/{record['incarnation']}".encode()


def value(record: Mapping[str, Any]) -> bytes:
    """The Kafka value: JSON without spaces, UTF-8."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
