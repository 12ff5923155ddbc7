"""The limits of each client by a quotas file, as the proxy resolves them. Needs the package `quotas`."""

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pipeline.failures import InputError
from pipeline.usage.strict_toml import parsed
from pipeline.usage.transforms.members import IN_FORCE, UNITS, cluster

if TYPE_CHECKING:
    from quotas.admission.limit import Limit
    from quotas.entry import QuotaEntry


def load(text: str) -> "tuple[QuotaEntry, ...]":
    """The entries of a quotas file's text. Raises InputError."""
    # Not on clusters that give no quotas file.
    from quotas.parsing.batch import threshold_errors
    from quotas.parsing.file import load_quotas

    found = load_quotas(parsed(text).values)
    entries = tuple(placed.entry for placed in found.placed if placed.entry is not None)
    if errors := found.errors or threshold_errors(entries):
        raise InputError("; ".join(str(error) for error in errors))
    return entries


def name_in_file(name: str) -> str:
    """A name as a quotas file has it: in quotes of its own where it looks like a slip."""
    from quotas.slips import slip_in

    return f'"{name}"' if slip_in(name) else name


def in_force(usage: DataFrame, text: str) -> DataFrame:
    """Each client of usage_deltas with each of its limits whose use is counted, those of the topics that it writes to
    among them: columns of `members.IN_FORCE`. topics: those of the client whose records the limit counts. Raises
    InputError.
    """
    from pipeline.usage.jobs.replay import Limits

    limits = Limits(load(text))
    topic = f.when((f.col("direction") == "produce") & f.lit(limits.counts_records), f.col("topic"))
    found: dict[tuple[str, ...], tuple[Limit, set[str]]] = {}
    clients = usage.select(cluster(), "user", "client_id", topic).distinct()
    for name, user, client_id, of in clients.collect():
        for limit in limits.of(name, None, user, client_id, of):
            key = (name, user, client_id, limit.name, str(limit.entity))
            _, topics = found.setdefault(key, (limit, set()))
            topics.update({of} - {None})
    # Now, since each topic without a threshold lowers the share of the others.
    rows = [(*names, float(limit.rate), [*topics]) for names, (limit, topics) in found.items() if limit.name in UNITS]
    return usage.sparkSession.createDataFrame(rows, IN_FORCE)
