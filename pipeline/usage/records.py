"""The record format between the proxy and this pipeline: `record_v1.schema.json`, see docs/pipeline/records.md.

The emitter and the tests validate with the schema alone. `transforms.parsing` applies the same rules with Spark's
built-in functions, and those that need a clock.
"""

from importlib.resources import files
from typing import Final

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
