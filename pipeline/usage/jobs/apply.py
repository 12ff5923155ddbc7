"""Recommendations as a quotas file: shown as a diff first, written only when that is asked for."""

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.usage.tables import Warehouse

_KEYS = {"client-id", "user"}
_ENTITY_KEYS = (*_KEYS, "ip", "topic", "listener", "total", "resource-group")
CONFIDENCES = ("low", "medium", "high")


class ApplyError(Exception):
    """A quotas file cannot be edited; the text says where."""


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


def quotas_toml(recommendations: Iterable[dict[str, Any]], before: str = "") -> str:
    """The text of a quotas file: `before` with these limits, all else in it as it is, new clients at its end.

    Raises ApplyError for a file that is not TOML, or is written so that a limit cannot be replaced in its line.
    """
    sections = re.split(r"^(?=\[)", before, flags=re.MULTILINE)
    places = {_client(section): index for index, section in enumerate(sections) if section.startswith("[[quota]]")}
    found = list(recommendations)
    for each in found:
        keys = entity_keys(each["entity"])
        place = places.setdefault(_key(keys), len(sections))
        if place == len(sections):
            lines = (f"{kind} = {json.dumps(name)}\n" for kind, name in keys.items())
            sections.append("".join(["\n" if before or place > 1 else "", "[[quota]]\n", *lines]))
        sections[place] = _with_limit(sections[place], each["limit"], int(each["proposed"]))
    after = "".join(sections)
    _check(after, found)
    return after


def _with_limit(section: str, limit: str, proposed: int) -> str:
    """A [[quota]] table's text with a limit replaced in its line, or added after the last line."""
    line = re.compile(rf"^(\s*{limit}\s*=\s*)(\"[^\"]*\"|[^\s#]+)", re.MULTILINE)
    if line.search(section):
        return line.sub(rf"\g<1>{proposed}", section, count=1)
    text = section.rstrip()
    return f"{text}\n{limit} = {proposed}\n{section[len(text) :].removeprefix(chr(10))}"


def _client(section: str) -> tuple[tuple[str, str], ...] | None:
    """What identifies the client of a [[quota]] table; None for an entry of something else."""
    (table,) = _loads(section)["quota"]
    keys = {name: table[name] for name in _ENTITY_KEYS if name in table}
    return _key(keys) if set(keys) <= set(_KEYS) else None


def _key(keys: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(keys.items()))


def _check(text: str, recommendations: Iterable[dict[str, Any]]) -> None:
    limits = {_key({k: t[k] for k in _KEYS if k in t}): t for t in _loads(text).get("quota", []) if _KEYS & set(t)}
    for each in recommendations:
        table = limits.get(_key(entity_keys(each["entity"])), {})
        if table.get(each["limit"]) != int(each["proposed"]):
            raise ApplyError(f"{each['entity']}: the file does not have {each['limit']} in a line of a [[quota]] table")


def _loads(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ApplyError(f"the quotas file cannot be edited line by line: {error}") from error


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
