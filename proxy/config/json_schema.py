"""JSON Schemas of the file of `--config` and of the quotas file, for editors: made of the same definitions as `--help`.

They know the keys, their kinds of values and their choices. What a text means (`5MB`, `broker:9092`) and how keys go
together is known to `check-config` alone.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

import click

from proxy.config.option_types import Setting, Switch
from quotas.limit_kinds import LIMIT_KINDS
from quotas.parsing.names import ENTITY_KEYS, EXEMPT_KEYS, IP, MEMBER_KEYS, RESOURCE_GROUP, TOTAL_KEY
from quotas.parsing.options import CHOICES

Schema = dict[str, Any]

_DIALECT: Final = "http://json-schema.org/draft-07/schema#"
_VALUE: Final = {"type": ["string", "number", "boolean"]}
_CHOICES: Final = re.compile(r"[a-z0-9-]+(\|[a-z0-9-]+)+")
"""The metavar of an option whose values are words."""
_NAMES: Final = {"type": ["string", "array"], "items": {"type": "string"}}
_NUMBER: Final = {"type": ["number", "string"]}
_OPTIONS: Final = {key: {"enum": list(words)} for key, words in CHOICES.items()} | {"burst_seconds": _NUMBER}


def config_schema(params: Iterable[click.Parameter]) -> Schema:
    """Of `proxy.toml`. `params`: those of `run`."""
    shown = (param for param in params if isinstance(param, Setting) and not param.hidden)
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
    group = _object(
        "A limit that its members share", {"name": {"type": "string"}} | members | limits | _OPTIONS | exempt
    )
    tables = {
        "quota": {"type": "array", "items": quota},
        "resource-group": {"type": "array", "items": {**group, "required": ["name"]}},
        "quota_share": {**_NUMBER, "description": "Factor for every rate: 1/N for N proxies."},
        "dry_run": {"type": ["boolean", "string"], "description": "Count and log only."},
    }
    return _object("kafka-quota-proxy: quotas", tables)


def _object(title: str, properties: Schema) -> Schema:
    return {
        "$schema": _DIALECT, "title": title, "type": "object", "additionalProperties": False, "properties": properties,
    }  # fmt: skip
