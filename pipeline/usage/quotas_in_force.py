"""The limits of each client by a quotas file, as the proxy resolves them. Needs the package `quotas`."""

import tomllib
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from pipeline.failures import InputError
from pipeline.usage.transforms.members import IN_FORCE, cluster

if TYPE_CHECKING:
    from quotas.entry import QuotaEntry


class QuotasError(InputError):
    """A quotas file has errors; the text lists them."""


def load(text: str) -> "tuple[QuotaEntry, ...]":
    """The entries of a quotas file's text. Raises QuotasError."""
    # Not on clusters that give no quotas file.
    from quotas.parsing.batch import threshold_errors
    from quotas.parsing.file import load_quotas

    try:
        found = load_quotas(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise QuotasError(f"not TOML: {error}") from error
    entries = tuple(placed.entry for placed in found.placed if placed.entry is not None)
    if errors := found.errors or threshold_errors(entries):
        raise QuotasError("; ".join(str(error) for error in errors))
    return entries


def in_force(clients: DataFrame, text: str) -> DataFrame:
    """Each client of `clients` with each of its limits: columns of `members.IN_FORCE`. Raises QuotasError."""
    from quotas.registry.registry import Registry

    registry = Registry(load(text))
    rows = []
    for name, user, client_id in clients.select(cluster(), "user", "client_id").distinct().collect():  # a row a client
        own = registry.resolve(user, client_id)
        rows += [
            (name, user, client_id, limit.name, str(limit.entity), float(limit.rate))
            for limit in (*own.produce.limits, *own.fetch.limits)
        ]
    return clients.sparkSession.createDataFrame(rows, IN_FORCE)
