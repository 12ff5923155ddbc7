"""Distinguishes environment variables that Kubernetes sets in each pod, for each Service of its namespace, from those
that a user sets. A Service named `kafka-quota-proxy-broker` sets `KAFKA_QUOTA_PROXY_BROKER_PORT`, which is an option.
"""

import re
from typing import Final

_ADDRESS: Final = r"[0-9a-fA-F.:]+"
_PROTOCOL: Final = r"(?:TCP|UDP|SCTP)"
_OF_SERVICE: Final = re.compile(
    rf"(\w+?)_(?:SERVICE_HOST={_ADDRESS}|SERVICE_PORT(?:_\w+)?=\d+"
    rf"|PORT(?:_\d+_{_PROTOCOL})?=(?i:{_PROTOCOL})://\S+"
    rf"|PORT_\d+_{_PROTOCOL}_(?:PROTO=(?i:{_PROTOCOL})|PORT=\d+|ADDR={_ADDRESS}))"
)


def service_of(variable: str, value: str) -> str | None:
    """The name of the Service that this variable describes; None: it has not both the name and the value of one.

    The value counts, too: what a pod sets itself replaces the variable of a Service, and a wrong value is an error.
    """
    match = _OF_SERVICE.fullmatch(f"{variable}={value}")
    return match and match[1].lower().replace("_", "-")
