"""Warnings about a valid configuration that is probably wrong: one log event each."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from heapq import nlargest
from itertools import chain, islice
from typing import Final

import click

from proxy.config.config import Config, FleetOptions
from proxy.config.exemptions import MAX_LISTED
from proxy.config.floor import FLOORS, LIMITS_WITH_FLOOR, REMEDY, SMALLEST_SHARE
from proxy.config.limits_help import values_of
from proxy.config.option_types import ARGUMENTS
from proxy.config.quota_sources import Quotas
from quotas.admission.limit import Limit
from quotas.entity import ANONYMOUS, DEFAULT_NAME, AnyEntity, Entity, Name
from quotas.entry import QuotaEntry
from quotas.limit_kinds import LIMIT_KINDS, THRESHOLDS, Measure
from quotas.resource_groups import ResourceGroup

OTHERS_READ: Final = 0o044
BELOW_FLOOR: Final = "quota_below_floor"
MAX_SEEN: Final = 5
_LAST_WINS: Final = "the last value wins"

Caution = tuple[str, dict[str, object]]
"""The name of a log event, and its fields."""
Seen = tuple[int, str, str]
"""A client: its bytes so far, its client id and its user."""


def warnings_of(config: Config, quotas: Quotas) -> list[Caution]:
    found = [*quota_warnings(config, quotas), *secret_warnings(config)]
    if config.security.pass_unknown_apis:
        effect = "responses to unknown APIs are forwarded unread and may contain a broker's real address"
        found.append(("unknown_apis_pass", {"effect": effect}))
    if config.enforcement.disk_guard_exempt and config.enforcement.disk_guard is None:
        found.append(("disk_guard_exempt_unused", {"effect": "--disk-guard-exempt needs --disk-guard"}))
    return [*found, *_of_no_fleet(config.fleet)]


def _of_no_fleet(options: FleetOptions) -> list[Caution]:
    names = ("topic", "max_members", "fallback")
    given = [name for name in names if getattr(options, name) != getattr(FleetOptions(), name)]
    flags = [f"--fleet-{name.replace('_', '-')}" for name in given if options.name is None]
    return [("fleet_option_unused", {"options": ", ".join(flags), "effect": "needs --fleet"})] if flags else []


def secret_warnings(config: Config) -> Iterator[Caution]:
    """Warnings about files with secrets that other users of this machine can read, as far as this user can change that:
    not those of a Secret, which is mounted read-only.
    """
    for path in dict.fromkeys(config.upstream.secret_files + config.internal_client.secret_files):
        with suppress(OSError):  # it is gone: the next reader reports that
            found, uid = path.stat(), os.geteuid()
            mode = found.st_mode & 0o777
            is_fixed = uid not in {0, found.st_uid} or os.statvfs(path).f_flag & os.ST_RDONLY
            if mode & OTHERS_READ and not is_fixed:
                effect = f"other users can read its secrets: its mode is {mode:o}"
                yield "secret_readable", {"file": path, "effect": effect, "hint": f"chmod 600 {path}"}


def repetitions(ctx: click.Context, config: Config) -> Iterator[Caution]:
    """Warnings about flags, labels and client properties that were given more than once, with different values."""
    labels: dict[str, list[str]] = {}
    for name, value in ctx.params["label"]:
        labels.setdefault(name, []).append(f"{name}={value}")
    flags = values_of(ctx.command, ctx.meta[ARGUMENTS]).items()
    for flag, values in (*flags, *(("--label", values) for values in labels.values())):
        if len(set(values)) > 1:
            yield "flag_repeated", {"flag": flag, "values": ", ".join(values), "effect": _LAST_WINS}
    for each in dict.fromkeys((config.upstream, config.internal_client)):
        if each.repeated:
            keys = ",".join(each.repeated)
            yield "client_property_repeated", {"file": each.file, "keys": keys, "effect": _LAST_WINS}


def unresolved(names: Iterable[str]) -> list[Caution]:
    """A warning about host names in limits by `ip` that no resolver has answered yet."""
    shown = sorted(names)
    if not shown:
        return []
    rest = f" and {len(shown) - MAX_LISTED} more" if len(shown) > MAX_LISTED else ""
    effect = "not resolved yet: their limits apply once they are; all others apply now"
    return [("host_names_pending", {"entities": ", ".join(shown[:MAX_LISTED]) + rest, "effect": effect})]


def quota_warnings(config: Config, quotas: Quotas) -> list[Caution]:
    """Warnings about the quotas, which may change with each reload of the quotas file."""
    options, entries = config.quotas, quotas.entries
    bursts = [
        entry.entity for entry in entries if entry.options.burst_seconds is not None and not entry.options.algorithm
    ]
    is_alone = config.listening.reuse_port and config.fleet.name is None
    long = [entry.entity for entry in entries if not entry.limits.keys().isdisjoint(THRESHOLDS.values())]
    return [
        *unresolved(quotas.pending),
        *_about(
            "burst_without_bucket",
            bursts if options.algorithm != "token-bucket" else (),
            f"burst_seconds applies to token buckets, but --quota-algorithm is {options.algorithm}",
        ),
        *_about(
            BELOW_FLOOR,
            _below_floor(quotas),
            f"too low for one producer, whose records may expire; smallest limits: {FLOORS}",
            hint=REMEDY,
        ),
        *_about(
            "quota_name_is_literal",
            [entry.entity for entry in entries if _looks_like_pattern(entry.entity)],
            "this is a literal name and matches no other",
            hint=f"only members of a resource-group may end with a star; every other name is {DEFAULT_NAME}; "
            "for Kafka's User:alice the user is alice",
        ),
        *_about(
            "thresholds_hold_for_long",
            long,
            "requests to topics over their thresholds are refused if the producer resends them, and otherwise held "
            "until a one-minute average drops: for 45, 100 or 140 s after 2, 5 or 10 times the threshold",
            hint="for an even rate, use bytes_in_rate",
        ),
        *_about(
            "limits_not_shared",
            [entry.entity for entry in entries if _has_rate(entry)] if is_alone else (),
            "with --reuse-port each process has its own limits, so N processes together pass N times as much",
            hint="set the same --fleet NAME in all of them",
        ),
        *_of_other_names(config, quotas),
    ]


def _has_rate(entry: QuotaEntry) -> bool:
    return not entry.options.is_per_process and any(
        LIMIT_KINDS[name].measure in {Measure.BYTES, Measure.RATE} for name in entry.limits
    )


def _looks_like_pattern(entity: AnyEntity) -> bool:
    """Whether a name has a star, is another spelling of the default's, or begins with the type of a principal."""
    names = (entity.user, entity.client_id) if isinstance(entity, Entity) else (entity.name,)
    return any(
        isinstance(name, str) and ("*" in name or _is_like_default(name) or name.startswith("User:")) for name in names
    )


def unmatched_entries(entries: Iterable[QuotaEntry], limits: Iterable[Limit]) -> list[QuotaEntry]:
    """The entries without any limit in use."""
    used = {entity for limit in limits for entity in (limit.entity, limit.origin)}
    return [entry for entry in entries if entry.has_buckets and entry.entity not in used]


def _is_like_default(name: str) -> bool:
    return name != DEFAULT_NAME and name.lower().strip("<>") == "default"


def unmatched(entries: Iterable[QuotaEntry], limits: Iterable[Limit], clients: Iterable[Seen]) -> list[Caution]:
    """A warning about entries without any limit in use, with the clients that were seen."""
    found, seen = unmatched_entries(entries, limits), list(clients)
    most = nlargest(MAX_SEEN, seen)
    has_user = any(key == "user" for entry in found for key, _ in _names_in(entry))
    hints = list(islice(_mistaken(found, seen), MAX_SEEN))
    if has_user and all(user == ANONYMOUS for _, _, user in seen):
        hints.append(f"no client logs in, so each has the user {ANONYMOUS}: use client-id, or set it with --principal")
    return _about(
        "quota_matched_nothing",
        [entry.entity for entry in found],
        "no client, topic or connection has had these names yet, or stronger entries apply to all that have",
        seen=", ".join(f"{name}{f' as {user}' * has_user} ({size / 1e6:,.1f} MB)" for size, name, user in most),
        hint="; ".join(hints) or "in /metrics, bytes_total lists all clients so far, and quota_matched these entries",
    )


def _names_in(entry: QuotaEntry) -> list[tuple[str, str]]:
    """The names of clients in an entry, each with its key."""
    entity, group = entry.entity, entry.group or ResourceGroup("")
    users, client_ids = list[Name | None](group.users), list[Name | None](group.client_ids)
    if isinstance(entity, Entity):
        users, client_ids = [entity.user], [entity.client_id]
    pairs = [*(("user", name) for name in users), *(("client-id", name) for name in client_ids)]
    return [(key, name) for key, name in pairs if isinstance(name, str)]


def _mistaken(entries: Iterable[QuotaEntry], seen: Iterable[Seen]) -> Iterator[str]:
    """Names in entries that a client has in another spelling, or under the other key."""
    of_clients = {
        "client-id": {_plain(name): name for _, name, _ in seen},
        "user": {_plain(user): user for *_, user in seen},
    }
    for key, name in chain.from_iterable(map(_names_in, entries)):
        other_key = "user" if key == "client-id" else "client-id"
        same, other = of_clients[key].get(_plain(name), name), of_clients[other_key].get(_plain(name))
        if same != name:
            yield f"{key} {name!r}: a client has {same!r}, and names must match exactly"
        elif other is not None:
            yield f"{key} {name!r}: a client has the {other_key} {other!r}"


def _plain(name: str) -> str:
    """A name without what is easily mistaken: case, white space, and separators."""
    return re.sub(r"[\s._-]+", "", name).casefold() or name


def _below_floor(quotas: Quotas) -> list[str]:
    return [
        f"{entry.entity} {name}={rate * quotas.share:g}"
        for entry in quotas.entries
        for name, rate in entry.limits.items()
        if name in LIMITS_WITH_FLOOR and rate * quotas.share < SMALLEST_SHARE
    ]


def _of_other_names(config: Config, quotas: Quotas) -> Iterator[Caution]:
    """Entries of other names than the one that every client has; `unmatched` finds the others."""
    scopes = [entry.entity for entry in quotas.entries if isinstance(entry.entity, Entity)]
    user, why = _only_user(config)
    for flag, kind, name, wanted in (
        ("--client-id", "client id", config.quotas.client_id, [scope.client_id for scope in scopes]),
        (why, "user", user, [scope.user for scope in scopes]),
    ):
        pairs = zip(scopes, wanted, strict=True)
        others = [scope for scope, other in pairs if name is not None and isinstance(other, str) and other != name]
        effect = f"every client has the {kind} {name!r}, so this applies to no client"
        yield from _about(
            "quota_never_matches", others, effect, flag=f"{flag} {name}" if flag == "--client-id" else flag
        )


def _only_user(config: Config) -> tuple[str | None, str]:
    """The user of every client, and why; None: clients may have users of their own."""
    upstream, ssl = config.upstream, config.listening.ssl
    if config.quotas.principal is not None:
        return config.quotas.principal, f"--principal {config.quotas.principal}"
    if upstream.file is None or upstream.clients_log_in or (ssl is not None and ssl.client_auth != "none"):
        return None, ""
    if upstream.login is not None:
        return upstream.login.username or None, f"the login in {upstream.file}"
    return ANONYMOUS, f"security.protocol={upstream.protocol} in {upstream.file}: clients cannot log in"


def _about(event: str, found: Iterable[AnyEntity | str], effect: str, **more: str) -> list[Caution]:
    """A warning about these entities, if there are any."""
    entities = list(dict.fromkeys(map(str, found)))
    rest = len(entities) - MAX_LISTED
    listed = ", ".join(entities[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")
    return [(event, {"entities": listed, "effect": effect, **more})] if entities else []
