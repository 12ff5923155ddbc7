"""The options of connections to brokers, and of TLS from clients, checked together."""

from __future__ import annotations

from dataclasses import fields, replace

from proxy.config.addresses import Address, format_address, is_loopback
from proxy.config.client_file import read_client_file
from proxy.config.client_settings import ClientSettings
from proxy.config.config import OFF, ServerSsl
from proxy.config.given import Given
from proxy.config.option_types import name_of
from proxy.config.values import parse_addresses
from quotas.problems import InvalidValue


def upstream_of(given: Given) -> tuple[ClientSettings, tuple[Address, ...] | None]:
    """The settings of the file of --command-config, and the bootstrap servers: those of the flag, or else of that file.
    None if neither has any.
    """
    servers: tuple[Address, ...] | None = given.get("bootstrap_servers")
    path = given.get("command_config")
    if path is None:
        return ClientSettings(), servers
    found, problems = read_client_file(path, place=given.place("command_config", str(path)))
    given.problems += problems
    if found.servers and servers is None and "bootstrap_servers" not in given.wrong:
        servers = _servers_of(given, found)
    listen: Address = given.get("listen") or ("localhost", 0)
    requires_certificate = given.get("ssl_client_auth") == "required"
    if found.is_identity and not (given.get("allow_open_relay") or requires_certificate or is_loopback(listen[0])):
        given.refuse(
            "listen",
            format_address(listen),
            f"anyone who can reach this address has the rights of the login in {path}",
            "listen on 127.0.0.1, or require client certificates with --ssl-client-auth required; "
            "--allow-open-relay permits it",
        )
    return found, servers


def internal_client_of(given: Given, upstream: ClientSettings) -> tuple[ClientSettings, tuple[Address, ...]]:
    """How the proxy's internal clients connect, by the file of --own-client-config or else like `upstream`; and the
    bootstrap.servers of that file, if it has any.
    """
    path, settings, servers = given.get("own_client_config"), upstream, tuple[Address, ...]()
    if path is not None:
        settings, problems = read_client_file(path, place=given.place("own_client_config", str(path)))
        given.problems += problems
        servers = _servers_of(given, settings) if settings.servers else ()
    if settings.clients_log_in:
        for user in ("fleet", "usage_topic", "cluster_quotas", "disk_guard", "quotas_topic"):
            needed = given.get(user)
            if needed not in {None, OFF}:
                message = f"has no login: {settings.file} has no sasl settings"
                given.refuse(user, str(needed), message, "give one with --own-client-config")
    return settings, servers


def _servers_of(given: Given, settings: ClientSettings) -> tuple[Address, ...]:
    """The bootstrap.servers of a client file; none, and a problem, if they are wrong."""
    try:
        return parse_addresses(settings.servers)
    except InvalidValue as error:
        given.problems += error.at(f"{settings.file}: bootstrap.servers")
        return ()


def ssl_of(given: Given) -> ServerSsl | None:
    """TLS from clients; None: plaintext."""
    found, nothing = given.made(ServerSsl), ServerSsl()
    if given.get("ssl_certificate_location") is None:
        for field in fields(ServerSsl):
            value = getattr(found, field.name)
            if value != getattr(nothing, field.name):
                given.refuse(name_of(field), str(value), "has no effect without --ssl-certificate-location")
        return None
    if (found.client_auth == "none") != (found.ca is None):
        message = "needs --ssl-ca-location, the CA of the clients' certificates"
        if found.ca is not None:
            message = "does not use --ssl-ca-location: set requested or required, or leave the CA out"
        given.refuse("ssl_client_auth", found.client_auth, message)
    return replace(found, key=found.key or found.certificate)
