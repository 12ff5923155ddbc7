"""The file of `--config`: its keys become click's default map."""

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
            problems.append(Problem(f"{path}: {key} = {value!r}", "expected a list", f"as in {key} = [{value!r}]"))
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


def _unknown_key(path: Path, key: str, value: object, known: Sequence[str]) -> Problem:
    hint = did_you_mean(key.replace("-", "_"), sorted(known))
    if isinstance(value, dict) and not value.keys().isdisjoint(known):
        hint = f"options stand above all tables: leave out the line [{key}]"
    if key in {"quota", "resource-group"} and isinstance(value, list):
        hint = QUOTA_TABLES_ELSEWHERE
    return Problem(f"{path}: {key}", "unknown key", hint)


def read_toml(path: Path, *, place: str, problems: list[Problem]) -> Mapping[str, object]:
    """The tables of a TOML file; or none, and a problem is added at `place`, which names the file."""
    try:
        text = read_text(path, place=place)
        return tomllib.loads(text)
    except ConfigError as error:
        problems += error.problems
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem(place, f"is not TOML: {error}", in_toml(text)))
    except (ValueError, RecursionError):  # of Python, not of TOML
        problems.append(Problem(place, "has a number of thousands of digits, or is nested too deeply"))
    return {}
