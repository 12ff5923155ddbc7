"""The head of an HTTP/1 request (RFC 9112): from bytes to a `Request`, or to the error that answers it.

This is the part of HTTP that GET and HEAD of a few pages need. Bodies are not read: a request that announces one is
answered, and its connection is closed.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

METHODS: Final = ("GET", "HEAD")

_REQUEST_LINE: Final = re.compile(r"([!-~]+) ([!-~]+) HTTP/([0-9])\.([0-9])")
_FIELD: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_ABSOLUTE: Final = re.compile(r"http://([^/?#]*)(.*)", re.IGNORECASE)
_AUTHORITY: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::[0-9]*)?")


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    path         without the query
    host         of the Host field or the absolute target: lower case, without port; None for HTTP/1.0 without one
    accept       the values of all Accept fields, "" when there is none
    keep_alive   whether a further request may follow on this connection
    """

    method: str
    path: str
    host: str | None
    accept: str
    keep_alive: bool


class RequestError(Exception):
    """A request that gets an error: its status, and one sentence for a person. Its connection is closed."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(status, sentence)
        self.status = status
        self.sentence = sentence


def parse_request(head: bytes) -> Request:
    """Parse a head: request line and fields, up to and without the empty line. Raises RequestError."""
    request_line, *lines = head.decode("latin-1").split("\r\n")
    match = _REQUEST_LINE.fullmatch(request_line)
    if match is None:
        raise RequestError(400, "the first line is no HTTP request")
    method, target, major, minor = match.groups()
    if major != "1":
        raise RequestError(505, "this port serves HTTP/1.1 and HTTP/1.0")
    fields = _fields(lines)
    authority, path = _location(target, fields.get("host", []), is_required=minor != "0")
    connection = {option.strip().lower() for value in fields.get("connection", ()) for option in value.split(",")}
    has_body = "transfer-encoding" in fields or fields.get("content-length", ["0"]) != ["0"]
    return Request(
        method=method,
        path=path,
        host=None if authority is None else _host(authority),
        accept=",".join(fields.get("accept", ())),
        keep_alive=minor != "0" and "close" not in connection and not has_body,
    )


def check_host(host: str | None, names: Collection[str]) -> None:
    """Raise RequestError unless the host is an IP literal, `localhost` or one of `names` (lower case).

    A page in a browser can let its own name resolve to this address (DNS rebinding) and read the response; the browser
    then sends that name as Host. A client that sends no Host (HTTP/1.0) is no browser.
    """
    if host is None or host == "localhost" or host in names or _is_ip_literal(host):
        return
    raise RequestError(
        421,
        f"this port answers to IP addresses, localhost and the names of --metrics-allowed-host, not to {host[:255]!a}",
    )


def check_method(method: str) -> None:
    """Raise RequestError unless this is GET or HEAD."""
    if method not in METHODS:
        raise RequestError(405, f"this port serves {' and '.join(METHODS)} only")


def _fields(lines: list[str]) -> dict[str, list[str]]:
    """The values of each field, by its name in lower case."""
    fields: dict[str, list[str]] = {}
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise RequestError(400, "a header line is no HTTP field")
        fields.setdefault(match[1].lower(), []).append(match[2])
    return fields


def _location(target: str, hosts: list[str], *, is_required: bool) -> tuple[str | None, str]:
    """Authority and path of a request target; an absolute one has precedence over the Host field."""
    if len(hosts) > 1 or (is_required and not hosts):
        raise RequestError(400, "a request has exactly one Host field")
    authority = hosts[0] if hosts else None
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is not None:
        authority, target = absolute[1], absolute[2] or "/"
    if not target.startswith("/"):
        raise RequestError(400, "the request target is no path")
    return authority, target.partition("?")[0]


def _host(authority: str) -> str:
    match = _AUTHORITY.fullmatch(authority)
    return match[1].lower().removesuffix(".") if match is not None else authority.lower()


def _is_ip_literal(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
