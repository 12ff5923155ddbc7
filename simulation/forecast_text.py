"""A forecast in words, for a terminal."""

from collections.abc import Iterator

from proxy.admin.limit_advice import listed
from proxy.admin.plain_text import aligned, amount_of, bytes_of, counted, seconds_of
from proxy.config.floor import smallest_share
from proxy.observability.logs import one_line
from simulation.forecast import ClientForecast, Forecast
from simulation.kernel import SECOND
from simulation.producer import DELIVERY_NS, Shape

_HEADINGS = ["CLIENT", "WANTED", "GOT", "HELD", "LONGEST WAIT", "EXPIRED", "HELD BY"]
_ARE_RIGHT = [False, True, True, True, True, True, False]


def text_of(found: Forecast) -> Iterator[str]:
    if found.is_dry_run:
        yield "The file has dry_run = true and enforces nothing. This is what it does without that line.\n"
    yield aligned([_HEADINGS, *map(_cells, found.clients)], _ARE_RIGHT)
    for limit in found.shared_limits:
        shares = ", ".join(f"{one_line(name)} {share:.0%}" for name, share in limit.shares.items())
        value = amount_of(limit.limit, limit.limit_value)
        used = f"{limit.used_ratio:.0%} used" + ", with its burst" * (limit.used_ratio > 1)
        yield f"{limit.limit} of {one_line(limit.entity)}, {value}/s, is {used}: {shares}"
    yield from [""] * bool(found.shared_limits)
    for client in found.clients:
        yield from _about(client)
    yield from found.refused
    if found.not_exercised:
        yield f"\nNot exercised, because it applies to no client here: {listed([*map(one_line, found.not_exercised)])}"


def _cells(client: ClientForecast) -> list[str]:
    return [
        one_line(client.client_id),
        f"{bytes_of(client.wanted_bytes_per_second)}/s",
        f"{bytes_of(client.bytes_per_second)}/s",
        f"{client.held_ratio:.0%}",
        seconds_of(client.longest_wait_seconds),
        f"{client.expired_ratio:.1%}" if client.expired_ratio else "none",
        ", ".join(f"{each['limit']} of {one_line(each['entity'])}" for each in client.limits[:2]) or "no limit",
    ]


def _about(client: ClientForecast) -> Iterator[str]:
    """Its verdict in the words of `explain`, and what would help."""
    yield f"{one_line(client.client_id)}: {client.headline}"
    if client.verdict == "limit":
        wanted, got, wait = client.wanted_bytes_per_second, client.bytes_per_second, client.longest_wait_seconds
        gets = "all that it wants, but" if got >= 0.97 * wanted else f"{bytes_of(got)}/s of {bytes_of(wanted)}/s, and"
        yield f"  It gets {gets} records wait up to {seconds_of(wait)}."
        yield from (f"  {each}" for each in client.sentences if each.startswith("To allow more"))
    if client.expired_ratio:
        timeout = DELIVERY_NS // SECOND
        yield (
            f"  {client.expired_ratio:.1%} of its records expire, because they are not delivered within {timeout} s"
            f" (delivery.timeout.ms)."
        )
        if client.limits and "byte" in client.limits[0]["limit"]:
            least = bytes_of(client.connections * smallest_share(0, 1, Shape(0).buffer_bytes, timeout))
            yield f"  With {counted(client.connections, 'buffer')} of 32 MiB (buffer.memory), it needs {least}/s."
