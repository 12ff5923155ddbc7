"""Which clients share which limit, and what it counts.

A throttle record names the scope of a limit. Every client in this scope is a member, also one that was never held. The
quotas in force add the members of resource groups, and decide about the entities that they have.
"""

from datetime import date
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from pipeline.usage.schemas import LOOKBACK_DAYS

DIRECTIONS: Final = {"producer_byte_rate": "produce", "consumer_byte_rate": "fetch"}
"""Limits in bytes per second of clients, and the direction that they count."""
UNITS: Final = {
    **dict.fromkeys(DIRECTIONS, "bytes"),
    "request_rate": "requests",
    "bytes_in_rate": "record_bytes",
    "bytes.in.per.sec.threshold": "record_bytes",
    "total.bytes.in.per.sec.threshold": "record_bytes",
    "messages_in_rate": "messages",
    "messages.in.per.sec.threshold": "messages",
    "total.messages.in.per.sec.threshold": "messages",
}
"""What each limit counts, as a counter of usage. Of other limits, nobody knows who used how much."""
IN_FORCE: Final = (
    "cluster string, user string, client_id string, limit string, entity string, limit_value double, "
    "topics array<string>"
)
"""What `quotas_in_force` gives: each client with each of its limits."""
_KEYS: Final = ("cluster", "user", "client_id", "limit", "entity")
_EVER: Final = date(9000, 1, 1)


def members(usage: DataFrame, throttled: DataFrame, in_force: DataFrame | None = None) -> DataFrame:
    """usage_deltas and throttle_deltas to each limit's members: cluster, user, client_id, limit, entity, direction (of
    the limit; null of one that has none), last (day on which it is known), fleet (whose members share the limit: it is
    that of all their sidecars together; null: each sidecar has its own), topics (whose records count, by in_force).

    in_force: columns of IN_FORCE; with it, clients have its entities as it says, and others only where it has none of
    that limit for them.
    """
    throttled = throttled.withColumn("cluster", cluster())
    held = throttled.groupBy(*_KEYS).agg(f.to_date(f.max("time")).alias("last"))
    scopes = held.groupBy("cluster", "limit", "entity").agg(f.max("last").alias("last"))
    if in_force is not None:
        scopes = scopes.join(in_force, ["cluster", "limit", "entity"], "left_anti")
    found = _in_scope(usage, scopes)
    # A client has one limit of each name by user and client id: what held it replaces wider ones.
    exact = held
    if in_force is not None:
        exact = held.unionByName(in_force.select(*_KEYS, f.lit(_EVER).alias("last")))
    own = exact.where(_is_of_clients("entity")).select(*_KEYS[:4], f.col("entity").alias("own"), _until("last"))
    same = [*(found[name] == own[name] for name in _KEYS[:4]), found["entity"] != own["own"]]
    same += [_is_of_clients("entity"), found["last"] <= own["until"]]
    found = found.join(own, same, "left_anti").unionByName(exact)
    names = f.create_map(*(f.lit(each) for pair in DIRECTIONS.items() for each in pair))
    fleets = throttled.groupBy("cluster", "limit", "entity").agg(f.max("fleet").alias("fleet"))
    found = found.groupBy(*_KEYS).agg(f.max("last").alias("last"))
    others = f.when(~_is_of_clients("entity"), f.col("entity"))
    newest = f.max("last").over(Window.partitionBy(*_KEYS[:4], others))
    until = f.when(f.col("last") < newest, f.col("last")).otherwise(_until("last"))
    found = found.select(*_KEYS, until.alias("until"), names[f.col("limit")].alias("direction"))
    found = found.join(f.broadcast(fleets), ["cluster", "limit", "entity"], "left")
    if in_force is None:
        return found.withColumn("topics", f.lit(None).cast("array<string>"))
    return found.join(f.broadcast(in_force.select(*_KEYS, "topics")), list(_KEYS), "left")


def cluster(labels: str | Column = "labels") -> Column:
    """The label `cluster` of a row; "" without one."""
    text = f.col(labels) if isinstance(labels, str) else labels
    # The JSON of a row without the label is not parsed.
    found = f.when(text.contains('"cluster"'), f.get_json_object(text, "$.cluster"))
    return f.coalesce(found, f.lit("")).alias("cluster")


def entity(kind: str, name: str) -> Column:
    """`user:NAME`, `client-id:NAME` or `topic:NAME` of a column, as quotas.entity writes it; null without a name."""
    is_plain = f.col(name).rlike(r'^[^\s",\\<>][^\s",\\]*$')
    quoted = f.concat(f.lit('"'), f.regexp_replace(name, r'([\\"])', r"\\$1"), f.lit('"'))
    return f.concat(f.lit(f"{kind}:"), f.when(is_plain, f.col(name)).otherwise(quoted))


def _in_scope(usage: DataFrame, scopes: DataFrame) -> DataFrame:
    """Clients of the scopes `user:U`, `client-id:C`, `topic:T` and `total`."""
    own = (entity("user", "user"), entity("client-id", "client_id"), entity("topic", "topic"), f.lit("total"))
    each = usage.select(cluster(), "user", "client_id", "topic").distinct()
    each = each.withColumn("entity", f.explode(f.array(*own))).drop("topic").distinct()
    return each.join(f.broadcast(scopes), ["cluster", "entity"]).select(*_KEYS, "last")


def _until(last: str) -> Column:
    return f.date_add(last, LOOKBACK_DAYS).alias("until")


def _is_of_clients(entity: str) -> Column:
    return f.col(entity).rlike("^(user|client-id):")
