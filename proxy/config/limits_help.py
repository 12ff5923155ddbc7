"""What `run --help` says about SPEC: the keys for whom a quota is, and each limit with whose it may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import cloup

from quotas.limit_kinds import (
    BYTES_IN_RATE,
    BYTES_THRESHOLD,
    CONNECTION_CREATION_RATE,
    CONNECTIONS,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    LIMIT_KINDS,
    MESSAGES_IN_RATE,
    MESSAGES_THRESHOLD,
    PRODUCER_BYTE_RATE,
    PRODUCER_IDS_RATE,
    REQUEST_RATE,
    TOTAL_BYTES_THRESHOLD,
    TOTAL_MESSAGES_THRESHOLD,
)
from quotas.spec.limits import owners_of

if TYPE_CHECKING:
    import click

_WHOM: Final = (
    ("user=, client-id=", "A client by its user, its client id, or both; each name has a limit of its own."),
    ("ip=", "An address, or a host name."),
    ("topic=", "A topic, whoever produces to it."),
    ("listener=", "'bootstrap' (where clients connect first), or the port of a broker; HOST:PORT is its port."),
    ("total=true", "All traffic of this process."),
    (
        "resource-group=",
        "A name for what stands beside it: user=, client-id= and topic=, each any number of times; spark-* is all that "
        "begin with spark-. They share the limit.",
    ),
    ("...=<default>", "Each one without an entry of its own; not for total and resource-group."),
)
_OPTIONS: Final = (
    ("mode=", "auto or notify, in place of the proxy's throttle mode."),
    ("action=", "hold: what becomes of records beyond a limit on records."),
    ("algorithm=", "token-bucket, sampled-window or ewma, in place of the proxy's algorithm."),
    ("burst_seconds=", "Size of the token bucket as seconds of the rate, 1 by default."),
)
COUNTS: Final = {
    PRODUCER_BYTE_RATE: "bytes of Produce requests per second",
    CONSUMER_BYTE_RATE: "bytes of Fetch responses per second",
    REQUEST_RATE: "requests of every kind per second",
    CONTROLLER_MUTATION_RATE: "partitions created or deleted per second",
    PRODUCER_IDS_RATE: "new producer ids per producer id window, an hour by default",
    BYTES_IN_RATE: "bytes of records produced per second",
    MESSAGES_IN_RATE: "records produced per second",
    BYTES_THRESHOLD: "bytes_in_rate while all topics together are beyond their total",
    MESSAGES_THRESHOLD: "the same in records",
    TOTAL_BYTES_THRESHOLD: "that total; topics without a threshold share what is left of it",
    TOTAL_MESSAGES_THRESHOLD: "the same in records",
    CONNECTION_CREATION_RATE: "new connections per second",
    CONNECTIONS: "connections at a time",
}
"""What each limit counts."""


class CommandWithLimits(cloup.Command):
    """A command whose help ends with the keys of SPEC."""

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the keys of SPEC after the options."""
        limits = [(f"{name}=", f"{COUNTS[name]} ({', '.join(owners_of(kind))})") for name, kind in LIMIT_KINDS.items()]
        for title, rows in (
            ("Whom a quota is for", _WHOM),
            ("What it limits, and for whom that can be", limits),
            ("How it is held", _OPTIONS),
        ):
            with formatter.section(title):
                formatter.write_dl(rows)
