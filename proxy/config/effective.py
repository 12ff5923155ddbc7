"""The configuration in force, each option with the source of its value, for `check-config --show` and `/config`."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import click
from click.core import ParameterSource

from proxy.config.addresses import format_address
from proxy.config.config import Config
from proxy.config.option_types import settings_of
from proxy.config.quota_sources import Quotas
from quotas.entry import QuotaEntry

MAX_ENTRIES: Final = 100
"""Of the quotas: a file may have a million."""


def sources_of(ctx: click.Context) -> Mapping[str, tuple[str, str]]:
    """For each option, its value in words and its source: `flag`, a variable, the file of --config, or `default`."""
    found = {}
    for name, option in settings_of(ctx).items():
        source, value = ctx.get_parameter_source(name), ctx.params[name]
        text = str(option.show_default) if source is ParameterSource.DEFAULT else _text(value)
        words = {ParameterSource.COMMANDLINE: "flag", ParameterSource.DEFAULT_MAP: str(ctx.params["config"])}
        if source is ParameterSource.ENVIRONMENT:
            words[source] = str(option.variable_set)
        found[name] = text, words.get(source, "default")  # type: ignore[arg-type]
    return found


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, range):
        return f"{value[0]}-{value[-1]}" if value else "0"
    if isinstance(value, QuotaEntry):
        return ",".join([str(value.entity), *(f"{name}={rate}" for name, rate in value.limits.items())])
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], int) and isinstance(value[0], str):
        return format_address(value)
    return "; ".join(map(_text, value)) if isinstance(value, tuple) else str(value)


def page_of(config: Config, quotas: Quotas) -> dict[str, Any]:
    """The whole configuration. Client files contain secrets, so only their names are shown."""
    sources = sorted(config.sources.items())
    strongest_first = ((name, entry) for name in reversed(list(quotas.sources)) for entry in quotas.sources[name])
    return {
        "options": {name: {"value": value, "source": source} for name, (value, source) in sources},
        "quotas": [{"quota": _text(entry), "source": source} for source, entry in islice(strongest_first, MAX_ENTRIES)],
        "quota_entries": len(quotas.entries),
        "quota_share": quotas.share,
        "dry_run": quotas.dry_run,
    }


def text_of(page: Mapping[str, Any]) -> Iterator[str]:
    """For people: a line for each option, quota and error of the last reload."""
    width = max(map(len, page["options"]), default=0)
    for name, option in page["options"].items():
        yield f"{name:<{width}}  {option['value']}  ({option['source']})"
    yield f"quotas in force: {page['quota_entries']}, share {page['quota_share']:g}{', dry run' * page['dry_run']}"
    yield from (f"  {entry['quota']}  ({entry['source']})" for entry in page["quotas"])
    if "disk_guard" in page:
        guard = page["disk_guard"]
        yield f"disk guard {guard['marks']}: {guard['state']}{', without new readings' * guard['is_stale']}"
    for what, reload in page.get("reloads", {}).items():
        outcome = "applied" if reload["ok"] else "refused, the previous configuration stays in force"
        yield f"{what} last read {reload['at']}: {outcome}"
        yield from (f"  {line}" for error in reload["errors"] for line in error.splitlines())
