"""Which clients share which limit: from the quotas in force where they are given, else from throttle records and usage.

A throttle record names the scope of a limit. Every client in this scope is a member, also one that was never held.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

DIRECTIONS: Final = {"producer_byte_rate": "produce", "consumer_byte_rate": "fetch"}
"""Limits in bytes per second of clients, and the direction that they count."""
IN_FORCE: Final = "cluster string, user string, client_id string, limit string, entity string, limit_value double"
"""What `quotas_in_force` gives: each client with each of its limits."""
_KEYS: Final = ("cluster", "user", "client_id", "limit", "entity")
_NAME: Final = r'(?:"((?:[^"\\]|\\.)*)"|([^",\s]+))'
"""A name, as quotas.entity writes it."""


def members(usage: DataFrame, throttled: DataFrame, in_force: DataFrame | None = None) -> DataFrame:
    """usage_deltas and throttle_deltas to each limit's members: cluster, user, client_id, limit, entity, direction.

    in_force: columns of IN_FORCE; with it, clients have these limits and no others, but for those that held them.
    """
    clients = usage.select(cluster(), "user", "client_id", "direction").distinct()
    throttled = throttled.withColumn("cluster", cluster())
    held = throttled.select(*_KEYS).distinct()
    if in_force is None:
        scopes = throttled.select("cluster", "limit", "entity").distinct()
        found = _in_scope(clients, scopes)
        # A client has one limit of each name by user and client id: what held it replaces wider ones.
        own = held.where(_is_of_clients("entity")).select(*_KEYS[:4], f.col("entity").alias("own"))
        same = [*(found[name] == own[name] for name in _KEYS[:4]), found["entity"] != own["own"]]
        found = found.join(own, [*same, _is_of_clients("entity")], "left_anti")
    else:
        found = in_force.select(*_KEYS)
    known = found.unionByName(held).distinct().withColumn("direction", direction())
    return known.join(clients, ["cluster", "user", "client_id", "direction"], "left_semi")


def cluster() -> Column:
    """The label `cluster` of a row; "" without one."""
    return f.coalesce(f.get_json_object("labels", "$.cluster"), f.lit("")).alias("cluster")


def direction() -> Column:
    """What a limit counts; limits of no direction of their own count Produce requests."""
    return f.when(
        f.col("limit").isin(*(name for name, way in DIRECTIONS.items() if way == "fetch")), "fetch"
    ).otherwise("produce")


def _in_scope(clients: DataFrame, scopes: DataFrame) -> DataFrame:
    """Clients of the scopes `user:U`, `client-id:C` and `total`."""
    names = (_unquoted(rf"(?:^|,){key}:{_NAME}") for key in ("user", "client-id"))
    user, client = (f.when(_is_of_clients("entity"), name) for name in names)
    one = f.when(client.isNull(), _scope("user", user)).when(user.isNull(), _scope("client-id", client))
    scope = f.when(f.col("entity") == "total", _scope("total", f.lit(""))).otherwise(one)
    scopes = scopes.withColumns({"scope": scope, "direction": direction()})
    own = (_scope("user", f.col("user")), _scope("client-id", f.col("client_id")), _scope("total", f.lit("")))
    each = clients.withColumn("scope", f.explode(f.array(*own)))
    return each.join(f.broadcast(scopes), ["cluster", "direction", "scope"]).select(*_KEYS)


def _scope(kind: str, name: Column) -> Column:
    return f.concat(f.lit(f"{kind}:"), name)


def _unquoted(pattern: str) -> Column:
    quoted = f.regexp_replace(f.regexp_extract("entity", pattern, 1), r"\\(.)", "$1")
    plain = f.regexp_extract("entity", pattern, 2)
    found = f.when(plain != "", plain).otherwise(quoted)
    return f.when(found != "", found)


def _is_of_clients(entity: str) -> Column:
    return f.col(entity).rlike("^(user|client-id):")
