"""Asks a running proxy whether it works, over its admin port: the commands `healthcheck` and `fleet`."""

import http.client
import json
from typing import Final

from proxy.config.addresses import Address, format_address, is_wildcard
from proxy.observability.logs import one_line

MAX_SHOWN: Final = 300
"""Characters of an answer that is no page: those of this proxy begin with the status."""


def check(listen: Address, timeout_seconds: float, *, ready: bool) -> tuple[bool, str]:
    """Whether the page answers 200, and one sentence. `listen` is the `--metrics-listen`; a wildcard means loopback."""
    page = "/readyz" if ready else "/healthz"
    url = url_of(listen, page)
    try:
        status, body = get(listen, page, timeout_seconds)
    except (OSError, http.client.HTTPException) as error:
        return False, f"{url}: {error or type(error).__name__}"
    return status == http.client.OK, f"{url}: {status}: {' '.join(body[:1000].split())}"


class NoPage(Exception):
    """Why there is no page, in one line with what to do."""


def json_page(listen: Address, page: str) -> str:
    """The body of a page that is JSON. Raises NoPage, also for another server at that port."""
    hint = "is the proxy running, and is this its --metrics-listen? Otherwise give --proxy HOST:PORT"
    try:
        status, body = get(listen, page, timeout_seconds=10)
    except (OSError, http.client.HTTPException) as error:
        raise NoPage(f"{url_of(listen, page)}: {error or type(error).__name__}; {hint}") from error
    if status != http.client.OK:
        said = one_line(" ".join(body[:MAX_SHOWN].split()))
        raise NoPage(f"{url_of(listen, page)}: {said}" + (f"; {hint}" if not said.startswith(str(status)) else ""))
    try:
        json.loads(body)
    except ValueError as error:
        raise NoPage(f"{url_of(listen, page)}: is no page of kafka-quota-proxy; {hint}") from error
    return body


def get(listen: Address, page: str, timeout_seconds: float) -> tuple[int, str]:
    """The status and the body of a page. Raises OSError and HTTPException."""
    connection = http.client.HTTPConnection(*reachable(listen), timeout=timeout_seconds)
    try:
        connection.request("GET", page)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()


def url_of(listen: Address, page: str) -> str:
    return f"http://{format_address(reachable(listen))}{page}"


def reachable(listen: Address) -> Address:
    """A wildcard means loopback."""
    host, port = listen
    return ("127.0.0.1" if is_wildcard(host) else host), port
