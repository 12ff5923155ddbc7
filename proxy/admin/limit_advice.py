"""What `explain` reports about a limit: what it allows, which clients share it, and which entry to change. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from proxy.admin.plain_text import amount_of, bytes_of, counted
from proxy.observability.generated_ids import maker_of
from proxy.observability.logs import one_line

Row = Mapping[str, Any]

#: Above this ratio, usage is given in multiples of the limit.
_MANY_TIMES: Final = 10
#: If a client spends more of its time at a limit, its rate does not show what it would send without the limit.
_MOST_HELD: Final = 0.9
#: A client is told what its requests are charged if that is this many times their bytes, with this much of the limit
#: used.
_COSTLY: Final = 1.25
_COSTLY_FROM: Final = 0.5
_LINGERS_MS: Final = (20, 50, 100, 200)
_MOST_NAMES: Final = 8
_DEFAULT: Final = "=<default>"
_CLUSTER: Final = "--cluster-quotas"
_TOPIC: Final = "--quotas-topic"


def about_limit(limit: Row, names: Sequence[str], held: float) -> Iterator[str]:
    """`names` are the clients that share it. `held` is the share of its time that the client waits for limits."""
    value, rate = limit["limit_value"], limit["rate_60s"]
    amount = partial(amount_of, limit["limit"])
    waiting = _waiting(limit["queued_connections"])
    if "disk" in limit:
        allows = f"allows {amount(value)}/s to all producers together" if value >= 1 else "stops all producers"
        yield f"The {one_line(limit['disk'])}. It {allows}, and {waiting}."
        yield (
            "Free space on that disk (kafka-delete-records.sh, or a shorter retention), or move partitions away from"
            " it. --disk-guard-exempt lets a producer pass."
        )
        return
    if "fleet" in limit:
        yield (
            f"{limit_name(limit)} allows {amount(limit['fleet_value'])}/s to all {limit['fleet_members']} members of"
            f" the fleet {one_line(limit['fleet'])} together. The share of this proxy is {amount(value)}/s now."
        )
        yield f"In the last minute {amount(rate)}/s passed here, and {waiting}." if rate else f"Here {waiting}."
    elif rate is None:
        yield f"{limit_name(limit)} allows {amount(value)}/s, and {waiting}."
    else:
        passed = "was charged" if limit.get("request_cost") else "passed"
        used = f"{amount(rate)}/s {passed} in the last minute ({used_part(limit['used_ratio_60s'])})"
        yield f"{limit_name(limit)} allows {amount(value)}/s; {used}, and {waiting}."
    yield from _moves(limit)
    if limit["client_count"] > 1:
        yield f"{limit['client_count']} clients share it: {listed(names)}."
    if "threshold" in limit["limit"]:
        yield (
            "A threshold stops all writes to the topic until the mean is below it. bytes_in_rate limits smoothly"
            " instead."
        )
    yield from _how_to_raise(limit)
    if rate is not None and limit["client_count"] == 1 and "byte" in limit["limit"]:
        yield from _ways_out(limit, held)


def about_cost(limit: Row, client: Row) -> Iterator[str]:
    """If requests of this client are so small that the limit charges them their `request_cost`."""
    cost, requests, size = limit.get("request_cost"), client["produces_per_second"], client["produce_bytes_per_second"]
    if not cost or requests * cost < _COSTLY * size or (limit["used_ratio_60s"] or 0) < _COSTLY_FROM:
        return
    charged, at_least = (requests * cost, "at least ") if limit["client_count"] > 1 else (limit["rate_60s"], "")
    yield (
        f"{limit_name(limit)} charges each Produce request at least {bytes_of(cost)}: it was charged"
        f" {at_least}{bytes_of(charged)}/s for {bytes_of(size)}/s of requests, {requests:,.4g} requests a second of"
        f" {bytes_of(size / requests)}."
    )
    for linger_ms in _LINGERS_MS:
        # A producer sends at most one request for each linger.ms to each broker, with all that is in its buffer.
        fewer = min(requests, 1000 / linger_ms * client["connections"])
        if max(size, fewer * cost) <= charged / 2:
            yield (
                f"linger.ms={linger_ms} (in Spark, kafka.linger.ms) would cut that to at most {fewer:,.4g} requests a"
                f" second, charged about {bytes_of(max(size, fewer * cost))}/s."
            )
            return
    yield "Send fewer and larger requests: raise linger.ms and batch.size, or use fewer connections."


def _moves(limit: Row) -> Iterator[str]:
    """About a limit whose rate moves."""
    moves = limit.get("moves")
    if moves is None:
        return
    name, low, high = one_line(limit["entity"]), bytes_of(moves["least"]), bytes_of(moves["most"])
    to, rate = one_line(moves["to"]), bytes_of(moves["rate"])
    if moves["is_observed"]:
        yield f"It is only observed: if {name} yielded to {to}, it would be {rate}/s, between {low}/s and {high}/s."
    else:
        yield f"It moves between {low}/s and {high}/s, because {name} yields to {to}."
    if moves["why"]:
        yield f"It was lowered in the last minute, because {one_line(moves['why'])}."


def about_generated(client_id: str, limits: Iterable[Row], programs: int) -> Iterator[str]:
    """Advice about a client id that a library made up and that a limit applies to."""
    maker = maker_of(client_id)
    names = {each["entity"].rpartition("client-id:")[2].strip('"') for each in limits}
    if maker is None or client_id not in names:
        return
    used = f"; at least {programs} use it now" if programs > 1 else ""
    yield (
        f"{one_line(client_id)} is a name that {maker} makes up for programs without a client.id, so unrelated"
        f" programs can share this limit{used}. Set client.id in each (in Spark, kafka.client.id)."
    )


def _how_to_raise(limit: Row) -> Iterator[str]:
    lowest = limit.get("fleet_lowest")
    if lowest:
        own = amount_of(limit["limit"], limit["fleet_own_value"])
        yield (
            f"The lowest value among all members applies, which is that of {one_line(lowest)}. The value here is"
            f" {own}/s, so raising it here changes nothing: raise it there."
        )
        return
    name, entry, source = limit["limit"], limit.get("entry"), limit["source"]
    instead = "let clients keep their connections" if "connection" in name else "let fewer clients share it"
    if source.startswith(_CLUSTER):
        raised = f"raise it in the cluster with kafka-configs.sh ({_CLUSTER} reads it there), or add an entry"
        yield f"To allow more, {raised} {one_line(entry or '')} here, or {instead}."
        return
    if source == _TOPIC:
        yield f"To allow more, kafka-quota-proxy quotas set '{one_line(entry or '')}' {name}=RATE, or {instead}."
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
    """Advice for a limit on bytes that only one client uses."""
    value, rate = limit["limit_value"], limit["rate_60s"]
    if "fleet" not in limit and held < _MOST_HELD and rate / (1 - held) > value:
        free = bytes_of(rate / (1 - held)).replace(" ", "")
        yield f"When it is not waiting, it moves about {free}/s: {limit['limit']}={free} would rarely make it wait."
    whole = bytes_of(limit.get("fleet_value", value)).replace(" ", "")
    yield (
        f"If the limit should stay, use the client settings that `kafka-quota-proxy advise --rate {whole}` prints, so"
        " that no record expires (in Spark, set maxOffsetsPerTrigger as well)."
    )


# ---- pieces of sentences


def limit_name(limit: Row) -> str:
    return f"{limit['limit']} of {one_line(limit['entity'])}"


def used_part(ratio: float) -> str:
    """A limit may be used many times over, for instance in the minute after it was lowered."""
    return f"{ratio:.0%} of it" if ratio < _MANY_TIMES else f"{ratio:,.0f} times as much"


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
