"""What a client of a forecast wants, as the command `simulate` takes it: `etl: 30MB/s, 4 connections`."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any, Final

from proxy.config.values import parse_bytes_per_second, parse_name, parse_size, parse_topic
from quotas.problems import InvalidValue, did_you_mean

EXPECTED: Final = "expected 'NAME: [consume] RATE[, N connections][, SIZE requests][, to TOPIC][, from ADDRESS]'"
MOST_CONNECTIONS: Final = 1_000
LARGEST_REQUEST: Final = 1_048_576
"""Java's default of max.request.size."""
SMALLEST_REQUEST: Final = 100
_REQUESTS_PER_SECOND: Final = 10


@dataclass(frozen=True, slots=True)
class Demand:
    """One client id. `rate`: bytes per second over all of its connections.

    request_bytes   0: ten requests a second per connection, of at most `LARGEST_REQUEST`
    """

    client_id: str
    rate: int
    connections: int = 1
    request_bytes: int = 0
    topic: str = ""
    address: str = ""
    is_consumer: bool = False

    @property
    def request_size(self) -> int:
        wanted = self.request_bytes or self.rate // self.connections // _REQUESTS_PER_SECOND
        return max(SMALLEST_REQUEST, min(wanted, LARGEST_REQUEST))


def parse_demand(value: object) -> Demand:
    """Raises InvalidValue."""
    name, colon, rest = str(value).partition(":")
    if not colon:
        raise InvalidValue(EXPECTED, "put a colon behind the client id, as in 'etl: 30MB/s'")
    first, *others = (part.strip() for part in rest.split(","))
    verb, _, rate = first.partition(" ")
    is_consumer = verb in {"consume", "consumes"}
    demand = Demand(
        parse_name(name.strip()), parse_bytes_per_second(rate if is_consumer else first), is_consumer=is_consumer
    )
    for part in others:
        demand = replace(demand, **_detail(part))
    if is_consumer and (demand.request_bytes or demand.topic):
        raise InvalidValue("a consumer has only connections and an address", "leave out the requests and the topic")
    return demand


def _detail(part: str) -> dict[str, Any]:
    for pattern, (field, parse) in _DETAILS.items():
        found = re.fullmatch(pattern, part)
        if found is not None:
            return {field: parse(found[1])}
    words = "connections", "requests", "to", "from"
    unknown = next((word for word in part.split() if word.isalpha() and word not in words), part)
    raise InvalidValue(f"{EXPECTED}, not {part!r}", did_you_mean(unknown, words))


def _connections(text: str) -> int:
    if not 1 <= int(text) <= MOST_CONNECTIONS:
        raise InvalidValue(f"expected from 1 to {MOST_CONNECTIONS:,} connections, not {text}")
    return int(text)


def _request_bytes(text: str) -> int:
    size = parse_size(text, SMALLEST_REQUEST)
    if size > LARGEST_REQUEST:
        raise InvalidValue(f"expected requests of {SMALLEST_REQUEST} to {LARGEST_REQUEST:,} bytes, not {text}")
    return size


def _address(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError as error:
        raise InvalidValue(f"expected an IP address, not {text!r}", "as in 'etl: 5MB/s, from 10.1.2.3'") from error


_DETAILS: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    r"([0-9]{1,9}) connections?": ("connections", _connections),
    r"([0-9]\S*|[0-9]+ \S+) requests?": ("request_bytes", _request_bytes),
    r"to (.+)": ("topic", parse_topic),
    r"from (.+)": ("address", _address),
}
