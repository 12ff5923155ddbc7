"""One view of what all members of a fleet answered: rows summed over them, and the verdicts in sentences. Pure.

An answer may have any content, so only texts, numbers and lists of rows are taken from it.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from proxy.admin.explain import WORDS, name_of
from proxy.admin.fleet_members import MemberAnswer
from proxy.admin.plain_text import bytes_of, counted, seconds_of
from proxy.admin.tables import TABLES, Columns, table
from proxy.observability.logs import one_line

Row = dict[str, Any]
Found = Sequence[tuple[str, Mapping[str, Any]]]
"""The rows of one client, limit or broker, each with the name of its member."""

_MOST_NUMBER: Final = 1e18
_MOST_TEXT: Final = 300
_MOST_NAMED: Final = 3
_MOST_WAITS: Final = 10
MOST_SHOWN: Final = 500
"""Clients that are explained."""
#: Verdicts, the worst first, as what a client does.
_VERBS: Final = {
    "limit": "is at its limit",
    "broker_quota": "is throttled by a broker quota",
    "proxy": "waits for the proxy",
    "broker": "waits for a slow broker",
    "slow_reader": "does not read its responses fast enough",
}
_OF_MEMBERS: Final[Columns] = (
    ("MEMBER", lambda row: one_line(row["member"])),
    ("ADDRESS", lambda row: one_line(row["address"])),
    ("JOINED", lambda row: "yes" if row["joined"] else "no"),
    ("SEES", lambda row: f"{row['members']:,.0f}"),
    ("LIMITS", lambda row: f"{row['shared_limits']:,.0f}"),
    ("RECORD", lambda row: seconds_of(row["delivery_seconds"])),
)
_MEMBERS: Final = ("PROXIES", lambda row: str(row["members"]))


def merged(what: str, answers: Iterable[MemberAnswer]) -> list[Row]:
    """The rows of the page `what` (clients, limits or brokers) over all members, the busiest first. `members`: how many
    have it.
    """
    keys, merge, order = _PAGES[what]
    found = defaultdict[tuple[str, ...], list[tuple[str, Mapping[str, Any]]]](list)
    for answer in answers:
        for row in answer.page if isinstance(answer.page, list) else ():
            if isinstance(row, dict):
                found[tuple(_text(row, key) for key in keys)].append((answer.member, row))
    rows = [
        dict(zip(keys, key, strict=True)) | {"members": len({member for member, _ in each})} | merge(each)
        for key, each in found.items()
    ]
    return sorted(rows, key=order, reverse=True)


def columns_of(what: str) -> Columns:
    return (*TABLES[what], _MEMBERS)


def unanswered(answers: Iterable[MemberAnswer]) -> Iterator[str]:
    """A line for each member without a page."""
    for each in answers:
        if each.problem:
            yield one_line(f"{each.member} ({each.address or 'no address'}): {each.problem}")


def explained(row: Row, answers: Sequence[MemberAnswer]) -> Iterator[str]:
    """The verdict on a client of all members first, then its limits and rates, and where to ask for more."""
    short, seen, clauses, asked = short_names(answers), row["members"], [], ""
    for verdict, verb in _VERBS.items():
        members = row["verdicts"].get(verdict, [])
        if members and len(members) < seen:
            asked = members[0]
        if len(members) == 1:
            clauses.append(f"{short[members[0]]} alone {verb}")
        elif members:
            named = f" ({', '.join(short[each] for each in members)})" if len(members) <= _MOST_NAMED else ""
            clauses.append(f"{verb} in {len(members)} of {seen} proxies{named}")
    name = name_of(row)
    if not clauses:
        yield f"{name}: neither a proxy nor a broker holds it back in {counted(seen, 'proxy', 'proxies')}"
    else:
        yield one_line(f"{name}{':' * (' alone ' in clauses[0])} {'; '.join(clauses)}")
    rates = f"{bytes_of(row['produce_bytes_per_second'])}/s in, {bytes_of(row['fetch_bytes_per_second'])}/s out"
    yield f"  {counted(row['connections'], 'connection')}: {rates}, {row['requests_per_second']:,.4g} requests a second"
    for each in row["waits"][:_MOST_NAMED]:
        yield one_line(f"  it waits for {each['limit']} of {each['entity']} in {each['members']} of {seen} proxies")
    address = next((each.address for each in answers if each.member == asked), "")
    if address:
        yield one_line(f"  why in {short[asked]}: kafka-quota-proxy explain {row['client_id']} --proxy {address}")


def explanation(rows: Sequence[Row], answers: Sequence[MemberAnswer], *, as_json: bool) -> Iterator[str]:
    """The lines of `explain --fleet` for these clients, which are rows of `merged`."""
    missing = list(unanswered(answers))
    if as_json:
        yield json.dumps({"clients": rows, "unanswered": missing})
        return
    yield f"{len(answers) - len(missing)} of {counted(len(answers), 'member')} answered"
    for row in rows[:MOST_SHOWN]:
        yield ""
        yield from explained(row, answers)
    if not rows:
        yield "no client in the last minute"
    yield from ("", *missing) if missing else ()


def members_of(answers: Sequence[MemberAnswer], *, as_json: bool) -> Iterator[str]:
    """The lines of `fleet --fleet`: what each member reports about itself."""
    rows = [
        {"member": each.member, "address": each.address, "problem": each.problem, "joined": page.get("joined") is True}
        | {name: _number(page, name) for name in ("members", "shared_limits", "delivery_seconds")}
        for each in answers
        for page in [each.page if isinstance(each.page, dict) else {}]
    ]
    if as_json:
        yield json.dumps({"members": rows})
        return
    yield table(_OF_MEMBERS, [row for row in rows if not row["problem"]]).rstrip()
    yield from unanswered(answers)


def short_names(answers: Iterable[MemberAnswer]) -> dict[str, str]:
    """What members are called: the host in their name, if no other member has it."""
    hosts = {each.member: each.member.rpartition("/")[0] for each in answers}
    counts = Counter(hosts.values())
    return {member: host if host and counts[host] == 1 else member for member, host in hosts.items()}


def _client(found: Found) -> Row:
    verdicts, waits = defaultdict[str, list[str]](list), Counter[tuple[str, str]]()
    for member, row in found:
        verdicts[_text(row, "verdict")].append(member)
        waited = row.get("waits")
        if isinstance(waited, list) and waited and isinstance(waited[0], dict):  # the longest wait
            waits[_text(waited[0], "limit"), _text(waited[0], "entity")] += 1
    sums = {name: _sum(found, f"{name}_per_second") for name in ("produce_bytes", "fetch_bytes", "requests")}
    size = (sums["produce_bytes"] + sums["fetch_bytes"]) / (sums["requests"] or 1)
    worst = next((each for each in _VERBS if each in verdicts), min(verdicts))
    return {
        "connections": _sum(found, "connections"),
        **{f"{name}_per_second": each for name, each in sums.items()},
        "bytes_per_request": size,
        "states": _states(found),
        "used_ratio": _most(found, "used_ratio"),
        "verdict": f"{worst} {len(verdicts[worst])}/{len(found)}" if worst in _VERBS else one_line(worst),
        "verdicts": verdicts,
        "waits": [{"limit": key[0], "entity": key[1], "members": n} for key, n in waits.most_common(_MOST_WAITS)],
    }


def _states(found: Found) -> dict[str, float]:
    """The mean share of each state over all connections."""
    states = dict.fromkeys(WORDS, 0.0)
    total = sum(max(1, _number(row, "connections")) for _, row in found)
    for _, row in found:
        shares = row.get("states")
        for state in WORDS if isinstance(shares, dict) else ():
            states[state] += _number(shares or {}, state) * max(1, _number(row, "connections")) / total
    return states


def _limit(found: Found) -> Row:
    """What a fleet shares counts once, and the value of any other limit once for each member."""
    shared = _most(found, "fleet_value")
    value, rates = shared or _sum(found, "limit_value"), [_sum(found, f"rate_{each}s") for each in (10, 60)]
    return {
        "limit_value": value,
        "request_cost": _most(found, "request_cost"),
        "rate_10s": rates[0],
        "rate_60s": rates[1],
        "used_ratio_60s": rates[1] / value if value else None,
        "waiting_ratio": _most(found, "waiting_ratio"),
        "queued_connections": _sum(found, "queued_connections"),
        "client_count": _most(found, "client_count"),
        "source": _text(found[0][1], "source"),
    }


def _broker(found: Found) -> Row:
    """Times are those of the member where they are longest."""
    times = {
        kind: [("", each) for _, row in found if isinstance(each := row.get(kind), dict)]
        for kind in ("produce", "others")
    }
    return {
        "connections": _sum(found, "connections"),
        "in_flight": _sum(found, "in_flight"),
        "oldest_request_seconds": _most(found, "oldest_request_seconds"),
        **{
            kind: {"count": _sum(each, "count")} | {name: _most(each, name) for name in ("p50_seconds", "p99_seconds")}
            for kind, each in times.items()
        },
        "failing": one_line(next(filter(None, (_text(row, "failing") for _, row in found)), "")),
    }


_PAGES: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Found], Row], Callable[[Row], Any]]]] = {
    "clients": (
        ("client_id", "user"),
        _client,
        lambda row: row["produce_bytes_per_second"] + row["fetch_bytes_per_second"],
    ),
    "limits": (("limit", "entity"), _limit, lambda row: row["used_ratio_60s"] or 0),
    "brokers": (("address",), _broker, lambda row: row["connections"]),
}


def _sum(found: Found, name: str) -> float:
    return sum(_number(row, name) for _, row in found)


def _most(found: Found, name: str) -> float:
    return max((_number(row, name) for _, row in found), default=0)


def _number(row: Mapping[str, Any], name: str) -> float:
    """0 if it is none, or absurd."""
    value: Any = row.get(name)
    return value if type(value) in {int, float} and abs(value) <= _MOST_NUMBER else 0


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return one_line(value[:_MOST_TEXT]) if isinstance(value, str) else ""
