"""The options of connections to brokers, and of TLS from clients, checked together.

Each function reads the parsed options in `given`, by name, sets values derived from them, and yields problems.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click

from proxy.config.client_file import read_client_file
from proxy.config.config import ServerSsl, format_address, ip_literal
from proxy.config.option_types import place_of
from proxy.config.values import parse_addresses
from quotas.problems import Problem, Refusal

#: The options that need a certificate, with the values that do not.
_NEED_CERTIFICATE: Final = {
    "ssl_key_location": None,
    "ssl_ca_location": None,
    "ssl_client_auth": "none",
    "ssl_principal_mapping_rules": "DEFAULT",
}


def take_upstream(ctx: click.Context, given: dict[str, Any]) -> Iterator[Problem]:
    """Set `upstream` to the settings of the file, and the bootstrap servers if only the file has them."""
    path = given.pop("command_config", None)
    may_relay = given.pop("allow_open_relay", False)
    if path is None:
        return
    found, problems = read_client_file(path, place=place_of(ctx, "command_config", str(path)))
    given["upstream"] = found
    yield from problems
    if found.servers and ctx.params["bootstrap_servers"] is None:
        given["bootstrap_servers"] = ()
        try:
            given["bootstrap_servers"] = parse_addresses(found.servers)
        except Refusal as error:
            yield from error.at(f"{path}: bootstrap.servers")
    host = given["listen"][0] if "listen" in given else "localhost"
    requires_certificate = given.get("ssl_client_auth") == "required"
    if found.is_identity and not (may_relay or requires_certificate or _is_loopback(host)):
        yield Problem(
            place_of(ctx, "listen", format_address(given["listen"])),
            f"whoever reaches this address has the rights of the login in {path}",
            "listen on 127.0.0.1, or ask clients for certificates by --ssl-client-auth required; "
            "--allow-open-relay permits it",
        )


def _is_loopback(host: str) -> bool:
    address = ip_literal(host)
    return host == "localhost" if address is None else address.is_loopback


def take_ssl(ctx: click.Context, given: dict[str, Any]) -> Iterator[Problem]:
    """Set `ssl` in place of the options."""
    certificate = given.pop("ssl_certificate_location", None)
    values = {name: given.pop(name, default) for name, default in _NEED_CERTIFICATE.items()}
    key, ca, auth, rules = values.values()
    if certificate is None:
        for name, default in _NEED_CERTIFICATE.items():
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
