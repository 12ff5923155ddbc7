"""The limits of each client by a quotas file, as the proxy resolves them. Needs the package `quotas`."""

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from pipeline.failures import InputError
from pipeline.usage.strict_toml import parsed
from pipeline.usage.transforms.members import IN_FORCE, cluster

if TYPE_CHECKING:
    from quotas.entry import QuotaEntry


class QuotasError(InputError):
    """A quotas file has errors; the text lists them."""


def load(text: str) -> "tuple[QuotaEntry, ...]":
    """The entries of a quotas file's text. Raises InputError."""
    # Not on clusters that give no quotas file.
    from quotas.parsing.batch import threshold_errors
    from quotas.parsing.file import load_quotas

    found = load_quotas(parsed(text).values)
    entries = tuple(placed.entry for placed in found.placed if placed.entry is not None)
    if errors := found.errors or threshold_errors(entries):
        raise QuotasError("; ".join(str(error) for error in errors))
    return entries


def in_force(clients: DataFrame, text: str) -> DataFrame:
    """Each client of `clients` with each of its limits: columns of `members.IN_FORCE`. Raises InputError."""
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
