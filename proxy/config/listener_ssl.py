"""The options of TLS from clients, checked together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click

from proxy.config.config import ServerSsl
from proxy.config.errors import Problem
from proxy.config.option_types import place_of

#: The options that need a certificate, with the values that do not.
_DEFAULTS: Final = {
    "ssl_key_location": None,
    "ssl_ca_location": None,
    "ssl_client_auth": "none",
    "ssl_principal_mapping_rules": "DEFAULT",
}


def take_ssl(ctx: click.Context, given: dict[str, Any]) -> Iterator[Problem]:
    """Set `ssl` in place of the options."""
    certificate = given.pop("ssl_certificate_location", None)
    values = {name: given.pop(name, default) for name, default in _DEFAULTS.items()}
    key, ca, auth, rules = values.values()
    if certificate is None:
        for name, default in _DEFAULTS.items():
            if values[name] != default:
                yield Problem(
                    place_of(ctx, name, str(values[name])), "has no effect without --ssl-certificate-location"
                )
        return
    if (auth == "none") != (ca is None):
        place = place_of(ctx, "ssl_client_auth", auth)
        yield Problem(place, "and --ssl-ca-location go together", "requested or required, and the CA of the clients")
    given["ssl"] = ServerSsl(
        certificate=certificate, key=key or certificate, ca=ca, client_auth=auth, principal_rules=rules
    )
