"""Recommendations as entries of a quotas file, to be read and copied by a person."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pyspark.sql import functions as f

from pipeline.failures import InputError
from pipeline.usage.quotas_in_force import name_in_file
from pipeline.usage.tables import Warehouse

CONFIDENCES: Final = ("low", "medium", "high")
_PART: Final = re.compile(r'(user|client-id):(?:"((?:[^"\\]|\\.)*)"|([^",]+))(?:,|$)')
"""One part of an entity, as quotas.entity writes it."""


def recommended(warehouse: Warehouse, confidence: str, cluster: str | None = None) -> list[dict[str, Any]]:
    """The proposals of at least this confidence, one for each entity and limit. Raises InputError."""
    enough = CONFIDENCES[CONFIDENCES.index(confidence) :]
    rows = warehouse.read("quota_recommendations").where(f"confidence in {(*enough, '')}")
    if cluster is None:
        names = [row["cluster"] for row in rows.select("cluster").distinct().orderBy("cluster").collect()]
        if len(names) > 1:
            raise InputError(f"choose --cluster, one of {', '.join(map(repr, names))}")
    else:
        rows = rows.where(f.col("cluster") == cluster)
    columns = ("entity", "limit", "proposed", "current_limit", "why")
    found = rows.select(*columns).distinct().orderBy("entity", "limit").collect()  # one row for each quota
    return [row.asDict() for row in found]


def entity_keys(entity: str) -> dict[str, str]:
    """ "user:alice,client-id:etl" → {"user": "alice", "client-id": "etl"}; empty for what is no user and client id.

    Nor is a client id with `*`: it stands for many, of which quotas have the real names. No entry has a user whose name
    is what stands for all others.
    """
    found: dict[str, str] = {}
    end = 0
    for part in _PART.finditer(entity):
        name = part[3] or re.sub(r"\\(.)", r"\1", part[2])
        if part.start() != end or "*" in name or part[2] == "<default>":
            return {}
        found[part[1]] = name
        end = part.end()
    return found if end == len(entity) else {}


def quotas_toml(recommendations: Sequence[dict[str, Any]]) -> str:
    """Entries of a quotas file. What is no user or client id stands in comments: groups and totals have members."""
    by_entity: dict[str, list[dict[str, Any]]] = {}
    for each in recommendations:
        by_entity.setdefault(each["entity"], []).append(each)
    entries = [_entry(entity, limits) for entity, limits in sorted(by_entity.items())]
    return "\n".join(sorted(entries, key=lambda entry: entry.startswith("# no")))


def _entry(entity: str, limits: Iterable[dict[str, Any]]) -> str:
    keys = entity_keys(entity)
    lines = [f"{_comment(each)}\n{each['limit']} = {int(each['proposed'])}\n" for each in limits]
    if not keys:
        text = "".join(lines).replace("\n", "\n# ").removesuffix("# ")
        return f"# no client: {_plain(entity)}\n# {text}"
    return "".join(
        ["[[quota]]\n", *(f"{kind} = {_quoted(name_in_file(name))}\n" for kind, name in keys.items()), *lines]
    )


def _quoted(name: str) -> str:
    """As a string of TOML, of printable characters."""
    escaped = (each if each.isprintable() and each not in '"\\' else f"\\U{ord(each):08x}" for each in name)
    return f'"{"".join(escaped)}"'


def _comment(each: dict[str, Any]) -> str:
    now = "no limit is known" if each["current_limit"] is None else f"now {each['current_limit']:.10g}"
    return _plain(f"# {now}; {each['why']}")


def _plain(text: str) -> str:
    """Without what would end the comment."""
    return "".join(each if each.isprintable() else " " for each in text)
