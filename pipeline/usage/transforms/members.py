"""Which clients share which limit: from the quotas in force where they are given, else from throttle records and usage.

A throttle record names the scope of a limit. Every client in this scope is a member, also one that was never held.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

DIRECTIONS: Final = {"producer_byte_rate": "produce", "consumer_byte_rate": "fetch"}
"""Limits in bytes per second of clients, and the direction that they count."""
IN_FORCE: Final = "user string, client_id string, limit string, entity string, limit_value double"
"""What `quotas_in_force` gives: each client with each of its limits."""
_KEYS: Final = ("user", "client_id", "limit", "entity")
_NAME: Final = r'(?:"((?:[^"\\]|\\.)*)"|([^",\s]+))'
"""A name, as quotas.entity writes it."""


def members(usage: DataFrame, throttled: DataFrame, in_force: DataFrame | None = None) -> DataFrame:
    """usage_deltas and throttle_deltas to each limit's members: user, client_id, limit, entity, direction.

    in_force: columns of IN_FORCE; with it, clients have these limits and no others, but for those that held them.
    """
    clients = usage.select("user", "client_id", "direction").distinct()
    held = throttled.select(*_KEYS).distinct()
    if in_force is None:
        scopes = throttled.select("limit", "entity").distinct().withColumns(_scope())
        found = _in_scope(clients, scopes)
        # A client has one limit of each name by user and client id: what held it replaces wider ones.
        own = held.where(_is_of_clients("entity")).select("user", "client_id", "limit", f.col("entity").alias("own"))
        same = [*(found[name] == own[name] for name in ("user", "client_id", "limit")), found["entity"] != own["own"]]
        found = found.join(own, [*same, _is_of_clients("entity")], "left_anti")
    else:
        found = in_force.select(*_KEYS)
    known = found.unionByName(held).distinct().withColumn("direction", direction())
    return known.join(clients, ["user", "client_id", "direction"], "left_semi")


def direction() -> Column:
    """What a limit counts; limits of no direction of their own count Produce requests."""
    return f.when(
        f.col("limit").isin(*(name for name, way in DIRECTIONS.items() if way == "fetch")), "fetch"
    ).otherwise("produce")


def _in_scope(clients: DataFrame, scopes: DataFrame) -> DataFrame:
    """Clients of the scopes `user:U`, `client-id:C` and `total`."""
    scopes = scopes.withColumn("direction", direction())
    both = f.col("of_user").isNotNull() & f.col("of_client").isNotNull()
    by_user = scopes.where(f.col("of_user").isNotNull() & ~both).withColumnRenamed("of_user", "user")
    by_client = scopes.where(f.col("of_client").isNotNull() & ~both).withColumnRenamed("of_client", "client_id")
    everyone = scopes.where(f.col("entity") == "total")
    found = clients.join(f.broadcast(by_user), ["user", "direction"]).select(*_KEYS)
    found = found.unionByName(clients.join(f.broadcast(by_client), ["client_id", "direction"]).select(*_KEYS))
    return found.unionByName(clients.join(f.broadcast(everyone), "direction").select(*_KEYS))


def _scope() -> dict[str, Column]:
    """of_user, of_client: the names in an entity such as `user:alice,client-id:"a b"`; null where it has none."""
    return {
        name: f.when(_is_of_clients("entity"), _unquoted(rf"(?:^|,){key}:{_NAME}"))
        for name, key in (("of_user", "user"), ("of_client", "client-id"))
    }


def _unquoted(pattern: str) -> Column:
    quoted = f.regexp_replace(f.regexp_extract("entity", pattern, 1), r"\\(.)", "$1")
    plain = f.regexp_extract("entity", pattern, 2)
    found = f.when(plain != "", plain).otherwise(quoted)
    return f.when(found != "", found)


def _is_of_clients(entity: str) -> Column:
    return f.col(entity).rlike("^(user|client-id):")
