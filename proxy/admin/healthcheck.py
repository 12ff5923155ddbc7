"""Asks a running proxy whether it works, over its admin port: the command `healthcheck`."""

import http.client

from proxy.config.addresses import Address, format_address, is_wildcard


def check(listen: Address, timeout_seconds: float, *, ready: bool) -> tuple[bool, str]:
    """Whether the page answers 200, and one sentence. `listen`: as of `--metrics-listen`; a wildcard means loopback."""
    host, port = listen
    if is_wildcard(host):
        host = "::1" if ":" in host else "127.0.0.1"
    page = "/readyz" if ready else "/healthz"
    url = f"http://{format_address((host, port))}{page}"
    connection = http.client.HTTPConnection(host, port, timeout=timeout_seconds)
    try:
        connection.request("GET", page)
        response = connection.getresponse()
        text = " ".join(response.read(1000).decode(errors="replace").split())
    except (OSError, http.client.HTTPException) as error:
        return False, f"{url}: {error or type(error).__name__}"
    finally:
        connection.close()
    return response.status == http.client.OK, f"{url}: {response.status}: {text}"
