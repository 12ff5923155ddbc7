"""What the keys of a SPEC mean, for `run --help`: scopes and options. Limits have their own description."""

from typing import Final

from quotas.modes import MODES

SCOPES: Final = (
    ("user=, client-id=", "A client by its user, its client id, or both; each name has its own limit."),
    ("ip=", "An address, a host name, or a network such as 10.1.0.0/16, whose addresses share the limit."),
    ("topic=", "A topic, for all producers together."),
    ("listener=", "'bootstrap' (where clients connect first), or the port of a broker; HOST:PORT is its port."),
    ("total=true", "All traffic of this process."),
    (
        "resource-group=",
        "A name for members in the same entry: user=, client-id= and topic=, each repeatable; spark-* is every name "
        "that begins with spark-. The members share the limit.",
    ),
    ("...=<default>", "Each name without its own entry; not for total and resource-group."),
)
LIFTED: Final = "Lifts the limit for this scope, so no weaker entry applies; resource groups and the total still do."
OPTIONS: Final = (
    ("mode=", f"{' or '.join(MODES)}, instead of the proxy's throttle mode."),
    (
        "action=",
        "throttle (the default), or reject: a request is answered with an error if every topic in it is over its "
        "limit, and if its producer resends it in order.",
    ),
    ("algorithm=", "token-bucket, sampled-window or ewma, instead of the proxy's algorithm."),
    (
        "exempt-user=, exempt-client-id=",
        "Clients that a topic, a resource group or the total neither charges nor holds; repeatable, spark-* is a "
        "prefix.",
    ),
    ("burst_seconds=", "Size of the token bucket as seconds of the rate, 1 by default."),
    (
        "request_cost=",
        "The least that producer_byte_rate charges for a Produce request, for example 16KB; by default, its bytes.",
    ),
    (
        "yield_to=, target=, observe=",
        "For producer_byte_rate=1MB..200MB of a resource-group: it moves between these bounds, so that at most 1 % of "
        "the Produce responses of resource-group:NAME, client-id:NAME or user:NAME take longer than, for example, "
        "50ms. observe=true only shows what it would set.",
    ),
    ("scope=", "process: the limits of the entry apply to this process alone, even in a fleet."),
)
