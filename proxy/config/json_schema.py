"""JSON Schemas of the file of `--config` and of the quotas file, for editors, from the definitions of `--help`.

They contain the keys, their kinds of values and their choices. Only `check-config` checks what a text means (`5MB`,
`broker:9092`) and which keys go together.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

import click

from proxy.config.option_types import Setting, Switch
from quotas.limit_kinds import LIMIT_KINDS, PRODUCER_BYTE_RATE
from quotas.parsing.moving import OBSERVE, TARGET, YIELD_TO
from quotas.parsing.names import ENTITY_KEYS, EXEMPT_KEYS, IP, MEMBER_KEYS, RESOURCE_GROUP, TOTAL_KEY
from quotas.parsing.options import CHOICES, REQUEST_COST
from quotas.stored.record import MAX_TEXT, REQUEST_PERCENTAGE, VERSION

Schema = dict[str, Any]

_DIALECT: Final = "http://json-schema.org/draft-07/schema#"
_VALUE: Final = {"type": ["string", "number", "boolean"]}
_CHOICES: Final = re.compile(r"[a-z0-9-]+(\|[a-z0-9-]+)+")
"""The metavar of an option whose values are words."""
_NAMES: Final = {"type": ["string", "array"], "items": {"type": "string"}}
_NUMBER: Final = {"type": ["number", "string"]}
_OPTIONS: Final = {key: {"enum": list(words)} for key, words in CHOICES.items()} | dict.fromkeys(
    ("burst_seconds", REQUEST_COST), _NUMBER
)
_SWITCH: Final = {"type": ["boolean", "string"]}
_YIELD: Final = {YIELD_TO: {"type": "string"}, TARGET: {"type": "string"}, OBSERVE: _SWITCH}


def config_schema(params: Iterable[click.Parameter]) -> Schema:
    """Of `proxy.toml`. `params`: those of `run`."""
    shown = (param for param in params if isinstance(param, Setting))
    options = {param.name: param for param in shown if param.name != "config"}
    return _object("kafka-quota-proxy: options of run", {str(name): _of_option(each) for name, each in options.items()})


def _of_option(option: Setting) -> Schema:
    metavar = option.type.name
    if isinstance(option.type, Switch):
        one: Schema = {"type": ["boolean", "string"]}
    elif _CHOICES.fullmatch(metavar):
        one = {"enum": metavar.split("|")}
    else:
        one = dict(_VALUE)
    default = option.show_default if isinstance(option.show_default, str) else option.default
    kind: Schema = {"type": "array", "items": one} if option.multiple else one
    return {**kind, "description": f"{option.help} Default: {default}."}


def quotas_schema() -> Schema:
    """Of `quotas.toml`."""
    limits = {name: {**_NUMBER, "description": f"{kind.counts}; or unlimited"} for name, kind in LIMIT_KINDS.items()}
    exempt = dict.fromkeys(EXEMPT_KEYS, _NAMES)
    scopes: dict[str, Schema] = {
        key: {"type": "string"} for key in ENTITY_KEYS if key not in {RESOURCE_GROUP, TOTAL_KEY}
    }
    scopes[IP] |= {"description": "An address, a host name, or a network such as 10.1.0.0/16"}
    scopes[TOTAL_KEY] = {"type": ["boolean", "string"]}
    quota = _object(
        "A limit of a client, an address, a topic, a listener or the total", scopes | limits | _OPTIONS | exempt
    )
    members = dict.fromkeys(MEMBER_KEYS, _NAMES)
    bounds = {"min": _NUMBER, "max": _NUMBER, "yield-to": _YIELD[YIELD_TO], TARGET: _YIELD[TARGET], OBSERVE: _SWITCH}
    moving = _object("A rate that moves", bounds) | {"required": ["min", "max", "yield-to", TARGET]}
    of_group = limits | {PRODUCER_BYTE_RATE: {"anyOf": [limits[PRODUCER_BYTE_RATE], moving]}}
    group = _object(
        "A limit that its members share", {"name": {"type": "string"}} | members | of_group | _OPTIONS | _YIELD | exempt
    )
    tables = {
        "quota": {"type": "array", "items": quota},
        "resource-group": {"type": "array", "items": {**group, "required": ["name"]}},
        "quota_share": {**_NUMBER, "description": "Factor for every rate: 1/N for N proxies."},
        "dry_run": {"type": ["boolean", "string"], "description": "Count and log only."},
    }
    return _object("kafka-quota-proxy: quotas", tables)


def record_schema() -> Schema:
    """Of the value of a record in the topic of quotas: see `quotas.stored.record`."""
    limits = dict.fromkeys(LIMIT_KINDS, _NUMBER)
    lists = {key: {"type": "array", "items": {"type": "string"}} for key in (*MEMBER_KEYS, *EXEMPT_KEYS)}
    text = {"type": "string", "maxLength": MAX_TEXT}
    scopes = {key: {**text, "type": ["string", "null"], "description": "null: <default>"} for key in ENTITY_KEYS}
    entity = _object("The entity, which is also the record's key, as in a SPEC", scopes | {TOTAL_KEY: {"const": True}})
    quota = _object("Its limits and options; empty: it has none any more", limits | _OPTIONS | _YIELD | lists)
    kafka = _object("Set by Kafka's quota API, not enforced", {REQUEST_PERCENTAGE: {"type": "number"}})
    fields = {"version": {"const": VERSION}, "entity": entity, "quota": quota, "kafka": kafka}
    authors = {"by": text, "from": text, "at": {**text, "format": "date-time"}}
    title = "kafka-quota-proxy: the value of a record in the topic of --quotas-topic"
    return _object(title, fields | authors) | {"required": ["version", "entity"], "additionalProperties": True}


def _object(title: str, properties: Schema) -> Schema:
    return {
        "$schema": _DIALECT, "title": title, "type": "object", "additionalProperties": False, "properties": properties,
    }  # fmt: skip
