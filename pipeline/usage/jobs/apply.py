"""Recommendations as a quotas file: shown as a diff first, written only when that is asked for."""

import difflib
import json
from collections.abc import Iterable
from typing import Any

from pipeline.usage.tables import Warehouse

_KEYS = {"client-id": "client-id", "user": "user"}
CONFIDENCES = ("low", "medium", "high")


def recommended(warehouse: Warehouse, confidence: str) -> list[dict[str, Any]]:
    """Recommendations of at least this confidence: for each entity and limit the highest one of its clients."""
    enough = CONFIDENCES[CONFIDENCES.index(confidence) :]
    rows = warehouse.read("quota_recommendations").where(f"confidence in {(*enough, '')}")
    best = rows.groupBy("entity", "limit").agg({"proposed": "max", "current_limit": "max"})
    found = [
        {"entity": row[0], "limit": row[1], "proposed": row["max(proposed)"], "current": row["max(current_limit)"]}
        for row in best.orderBy("entity", "limit").collect()  # one row for each quota
    ]
    return [each for each in found if entity_keys(each["entity"])]


def entity_keys(entity: str) -> dict[str, str]:
    """ "user:alice,client-id:etl" → {"user": "alice", "client-id": "etl"}; empty for one that is neither.

    Members of a resource group, or what the total is made of, stand in the existing file: a person changes those.
    """
    found: dict[str, str] = {}
    for part in entity.split(","):
        kind, _, name = part.partition(":")
        if kind not in _KEYS or not name or name.startswith('"'):
            return {}
        found[kind] = name
    return found


def quotas_toml(recommendations: Iterable[dict[str, Any]]) -> str:
    """The text of a quotas file."""
    tables: dict[str, list[str]] = {}
    for each in recommendations:
        keys = [f"{kind} = {json.dumps(name)}" for kind, name in entity_keys(each["entity"]).items()]
        lines = tables.setdefault(each["entity"], ["[[quota]]", *keys])
        lines.append(f"{each['limit']} = {int(each['proposed'])}")
    return "\n\n".join("\n".join(lines) for lines in tables.values()) + ("\n" if tables else "")


def kafka_configs(recommendations: Iterable[dict[str, Any]], bootstrap_servers: str) -> str:
    """The same as kafka-configs.sh commands, one a line."""
    lines = []
    for each in recommendations:
        entities = " ".join(
            f"--entity-type {'users' if kind == 'user' else 'clients'} --entity-name {_shell(name)}"
            for kind, name in entity_keys(each["entity"]).items()
        )
        lines.append(
            f"kafka-configs.sh --bootstrap-server {bootstrap_servers} --alter "
            f"--add-config {each['limit']}={int(each['proposed'])} {entities}\n"
        )
    return "".join(lines)


def diff(before: str, after: str, name: str) -> str:
    """A unified diff; empty where nothing changes."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), name, f"{name} (proposed)"
    )
    return "".join(lines)


def _shell(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
