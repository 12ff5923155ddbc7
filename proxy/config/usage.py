"""The options of usage records, checked together.

Each function reads the parsed options in `given`, by name, sets values derived from them, and yields problems.
"""

from collections.abc import Iterator
from typing import Any, Final

import click

from proxy.config.client_file import read_client_file
from proxy.config.client_settings import ClientSettings
from proxy.config.option_types import place_of
from quotas.problems import Problem

MAX_LABELS: Final = 32

_OF_TOPIC: Final = ("usage_bootstrap_servers", "usage_client_config")


def take_usage(ctx: click.Context, given: dict[str, Any]) -> Iterator[Problem]:
    """Set `label`, and the settings of the client in place of its file; check that the options fit together."""
    topic, file = given.get("usage_topic"), given.get("usage_file")
    if topic is not None and file is not None:
        yield Problem(
            place_of(ctx, "usage_file", str(file)),
            f"and --usage-topic {topic} are both set",
            "records go to one of the two",
        )
    for name in _OF_TOPIC:
        if name in given and topic is None:
            yield Problem(place_of(ctx, name, ctx.params[name]), "has no effect without --usage-topic")
    if given.get("usage_by_topic") and topic is None and file is None:
        yield Problem("--usage-by-topic", "has no effect without --usage-topic or --usage-file")
    labels = dict(given.get("label", ()))  # of one name the last counts
    if len(labels) > MAX_LABELS:
        yield Problem("--label", f"{len(labels)} labels", f"at most {MAX_LABELS}")
    given["label"] = tuple(sorted(labels.items()))
    yield from _take_client(ctx, given)


def _take_client(ctx: click.Context, given: dict[str, Any]) -> Iterator[Problem]:
    topic, path = given.get("usage_topic"), given.pop("usage_client_config", None)
    settings = given.get("upstream", ClientSettings())
    if path is not None:
        settings, problems = read_client_file(path, place=place_of(ctx, "usage_client_config", str(path)))
        yield from problems
    if topic is not None and settings.protocol.startswith("SASL") and settings.login is None:
        hint = "give one by --usage-client-config"
        yield Problem(f"--usage-topic {topic}", f"has no login: {settings.file} has no sasl settings", hint)
    given["usage_client"] = {"client": settings, "client_id": settings.client_id}
