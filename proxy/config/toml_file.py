"""The file of `--config`: its keys become click's default map."""

import re
import tomllib
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Final

import click

from proxy.config.errors import ConfigError
from proxy.config.files import read_text
from proxy.config.option_types import QUOTA_TABLES_ELSEWHERE, place_of, problems_of, settings_of
from proxy.config.other_formats import in_toml
from quotas.problems import Problem, did_you_mean
from quotas.slips import slip_in

_OF_QUOTAS_FILE: Final = frozenset({"quota", "resource-group", "quota_share", "dry_run"})


def take_defaults_from(ctx: click.Context, path: object) -> object:
    """Read the file of --config into click's default map, as far as its keys are those of options."""
    if not isinstance(path, Path):
        return path
    problems = problems_of(ctx)["config"]
    data = read_toml(path, place=place_of(ctx, "config", str(path)), problems=problems)
    options = settings_of(ctx)
    del options["config"]
    defaults: dict[str, object] = {}
    for key, value in data.items():
        option = options.get(key)
        if option is None:
            problems.append(_unknown_key(path, key, value, list(options)))
        elif option.multiple and not isinstance(value, list):
            problems.append(Problem(f"{path}: {key} = {value!r}", "expected a list", _as_list(key, value)))
        else:
            defaults[key] = value
    for key in ("quotas_file", "command_config", "own_client_config"):
        name = defaults.get(key)
        if isinstance(name, str) and name:
            # Relative to the file that names it, not to the working directory.
            defaults[key] = str(path.parent / name)
    ctx.default_map = defaults
    return path


def has_only_quotas(path: Path, options: Set[str]) -> bool:
    """Whether this is a file of --quotas-file: it has tables of quotas and none of the other options."""
    data = read_toml(path, place="", problems=[])
    tables = [data.get("quota"), data.get("resource-group")]
    return options.isdisjoint(data.keys() - _OF_QUOTAS_FILE) and any(
        isinstance(item, dict) for each in tables if isinstance(each, list) for item in each
    )


def _as_list(key: str, value: object) -> str:
    """What to write instead of one value, or of a table of them."""
    if isinstance(value, dict):
        items = [f"{name}={text}" for name, text in value.items()]
        return QUOTA_TABLES_ELSEWHERE if key == "quota" else f"as in {key} = {items}"
    return f"as in {key} = [{value!r}]"


def _unknown_key(path: Path, key: str, value: object, known: Sequence[str]) -> Problem:
    hint = did_you_mean(key.replace("-", "_"), sorted(known))
    if isinstance(value, dict) and not value.keys().isdisjoint(known):
        hint = f"options go above all tables: remove the line [{key}]"
    if key in {"quota", "resource-group"} and isinstance(value, list):
        hint = QUOTA_TABLES_ELSEWHERE
    return Problem(f"{path}: {key}", "unknown key", hint)


def read_toml(path: Path, *, place: str, problems: list[Problem]) -> Mapping[str, object]:
    """The tables of a TOML file; or none, and a problem is added at `place`, which names the file."""
    try:
        text = read_text(path, place=place)
        if not text.strip():
            problems.append(Problem(place, "is empty", "if that is intended, write a comment into it: # empty"))
        return tomllib.loads(text)
    except ConfigError as error:
        problems += error.problems
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem(place, f"is not TOML: {error}", in_toml(text) or _hint_of(text, str(error))))
    except (ValueError, RecursionError):  # of Python, not of TOML
        problems.append(Problem(place, "has a number of thousands of digits, or is nested too deeply"))
    return {}


_SWITCH: Final = re.compile(r"(?i)(true|yes|on|false|no|off)\s*(?:#.*)?")
_LINE: Final = re.compile(r"[ \t]*([\w.-]+)[ \t]*([=:])[ \t]*(\S.*?)?[ \t\r]*")


def _hint_of(text: str, error: str) -> str | None:
    """What to correct in the line of an error; None: no idea. Its value is shown only where it is no secret."""
    at = re.search(r"line ([0-9]+)", error)
    line = text.split("\n")[int(at[1]) - 1] if at else ""
    pair = _LINE.fullmatch(line)
    if (slip := slip_in(line.strip(" \t\r"), plain=True)) and "remove the" not in slip:
        return slip
    if re.search(r"(?m)^\s*(?:security\.protocol|sasl\.|ssl\.|bootstrap\.servers)", text):
        return "it is Kafka's client.properties: give it with --command-config"
    if pair is not None and ("overwrite" in error or "twice" in error):
        above = text.split("\n")[: int(at[1]) - 1] if at else []
        first = max(
            (n for n, each in enumerate(above, 1) if re.match(rf"\s*{re.escape(pair[1])}\s*=", each)), default=0
        )
        return f"{pair[1]} is given twice{f', first in line {first}' * bool(first)}: keep one"
    return None if pair is None else _hint_of_pair(pair[1], pair[2], pair[3] or "")


def _hint_of_pair(key: str, sign: str, value: str) -> str | None:
    """The same for a line with a key."""
    if sign == ":":
        return (
            f'it is YAML: in TOML each line is KEY = VALUE, with text in quotes, as in {key.replace("-", "_")} = "..."'
        )
    switch = _SWITCH.fullmatch(value)
    if switch is not None:
        return f"write {key} = {'true' if switch[1].lower() in {'true', 'yes', 'on'} else 'false'}"
    return f"put the value of {key} in quotes" if value and value[0] not in "\"'[{" else None
