"""What `explain` reports about a limit: what it allows, who shares it, and which entry to change. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from proxy.admin.plain_text import amount_of, bytes_of
from proxy.observability.generated_ids import maker_of
from proxy.observability.logs import one_line

Row = Mapping[str, Any]

#: From here on, what was used is given in multiples of the limit.
_MANY_TIMES: Final = 10
#: A client that spends more of its time at a limit does not show what it would send without it.
_MOST_HELD: Final = 0.9
_MOST_NAMES: Final = 8
_DEFAULT: Final = "=<default>"
_CLUSTER: Final = "--cluster-quotas"


def about_limit(limit: Row, names: Sequence[str], held: float) -> Iterator[str]:
    """`names`: of the clients that share it. `held`: for which part of its time the client waits for limits."""
    value, rate = limit["limit_value"], limit["rate_60s"]
    amount = partial(amount_of, limit["limit"])
    waiting = _waiting(limit["queued_connections"])
    if "fleet" in limit:
        yield (
            f"{limit_name(limit)} allows {amount(limit['fleet_value'])}/s to all {limit['fleet_members']} members of"
            f" the fleet {one_line(limit['fleet'])} together. The share of this proxy is {amount(value)}/s now."
        )
        yield f"In the last minute {amount(rate)}/s passed here, and {waiting}." if rate else f"Here {waiting}."
    elif rate is None:
        yield f"{limit_name(limit)} allows {amount(value)}/s, and {waiting}."
    else:
        used = f"{amount(rate)}/s passed in the last minute ({used_part(limit['used_ratio_60s'])})"
        yield f"{limit_name(limit)} allows {amount(value)}/s; {used}, and {waiting}."
    if limit["client_count"] > 1:
        yield f"{limit['client_count']} clients share it: {listed(names)}."
    if "threshold" in limit["limit"]:
        yield "A threshold stops all writes to the topic until the mean is below it. bytes_in_rate limits evenly."
    yield from _how_to_raise(limit)
    if rate is not None and limit["client_count"] == 1 and "byte" in limit["limit"]:
        yield from _ways_out(limit, held)


def about_generated(client_id: str, limits: Iterable[Row], programs: int) -> Iterator[str]:
    """Of a client id that a library made up, and by which a limit applies."""
    maker = maker_of(client_id)
    names = {each["entity"].rpartition("client-id:")[2].strip('"') for each in limits}
    if maker is None or client_id not in names:
        return
    used = f"; at least {programs} use it now" if programs > 1 else ""
    yield (
        f"{one_line(client_id)} is a name that {maker} makes up for programs without a client.id, so programs that know"
        f" nothing of each other can share this limit{used}. Set client.id in each (in Spark, kafka.client.id)."
    )


def _how_to_raise(limit: Row) -> Iterator[str]:
    lowest = limit.get("fleet_lowest")
    if lowest:
        own = amount_of(limit["limit"], limit["fleet_own_value"])
        yield (
            f"The lowest figure of all members holds, and that is the one of {one_line(lowest)}: here it is {own}/s, so"
            f" raising it here changes nothing. Raise it there."
        )
        return
    name, entry, source = limit["limit"], limit.get("entry"), limit["source"]
    instead = "let clients keep their connections" if "connection" in name else "let fewer clients share it"
    if source.startswith(_CLUSTER):
        raised = f"raise it in the cluster with kafka-configs.sh ({_CLUSTER} reads it there), or here by an entry"
        yield f"To allow more, {raised} {one_line(entry or '')} of your own, or {instead}."
        return
    where = f" in the entry {one_line(entry)}" if entry else f" of {one_line(limit['entity'])}"
    where += f" ({_source(source)})" if source else ""
    default = ""
    if entry and _DEFAULT in entry:
        own = one_line(limit["entity"]).replace(":", "=", 1)
        default = (
            f", which applies to each name that has no entry of its own; add an entry {own} to change only this one"
        )
    yield f"To allow more, raise {name}{where}{default}{'. You can also' if default else ', or'} {instead}."


def _ways_out(limit: Row, held: float) -> Iterator[str]:
    """For the only client of a limit on bytes."""
    value, rate = limit["limit_value"], limit["rate_60s"]
    if "fleet" not in limit and held < _MOST_HELD and rate / (1 - held) > value:
        free = bytes_of(rate / (1 - held)).replace(" ", "")
        yield f"While it does not wait, it moves about {free}/s: {limit['limit']}={free} would rarely make it wait."
    whole = bytes_of(limit.get("fleet_value", value)).replace(" ", "")
    yield (
        f"If the limit should stay, use the client settings that `kafka-quota-proxy advise --rate {whole}` prints, so"
        " that no record expires (in Spark, set maxOffsetsPerTrigger as well)."
    )


# ---- pieces of sentences


def limit_name(limit: Row) -> str:
    return f"{limit['limit']} of {one_line(limit['entity'])}"


def used_part(ratio: float) -> str:
    """For instance of a limit that was lowered a moment ago, the last minute used many times what it allows."""
    return f"{ratio:.0%} of it" if ratio < _MANY_TIMES else f"{ratio:,.0f} times as much"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def listed(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _waiting(count: int) -> str:
    return (
        f"{counted(count, 'connection')} {'is' if count == 1 else 'are'} waiting for it now"
        if count
        else ("no connection is waiting for it now")
    )


def _source(source: str) -> str:
    return f"flag {source}" if source.startswith("--") else one_line(source)
