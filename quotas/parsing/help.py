"""What the keys of a SPEC are, for `run --help`: of scopes, and of options. Limits have their own description."""

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
LIFTED: Final = "Lifts the limit for this scope: no weaker entry applies; resource groups and the total do."
OPTIONS: Final = (
    ("mode=", f"{' or '.join(MODES)}, in place of the proxy's throttle mode."),
    (
        "action=",
        "throttle (the default), or reject: a request of which every topic is over its limit is answered with an "
        "error, where the producer sends it again in order.",
    ),
    ("algorithm=", "token-bucket, sampled-window or ewma, in place of the proxy's algorithm."),
    (
        "exempt-user=, exempt-client-id=",
        "Clients that do not count for a topic, a resource group or the total, and are not held by it; repeatable, "
        "spark-* is a prefix.",
    ),
    ("burst_seconds=", "Size of the token bucket as seconds of the rate, 1 by default."),
    ("scope=", "process: the limits of the entry apply to this process by itself, in a fleet, too."),
)
