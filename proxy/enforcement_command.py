"""`kafka-quota-proxy enforcement`: a request to a running proxy over its `--admin-socket`."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Final

TIMEOUT_SECONDS: Final = 10.0
MAX_RESPONSE_BYTES: Final = 65_536


class NotAnswered(Exception):
    """The proxy did not answer, or refused: `str()` is the message for the user."""


def ask(path: str, request: Mapping[str, object]) -> str:
    """Send a request of `proxy.admin_socket`; returns the state after it. Raises NotAnswered."""
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(TIMEOUT_SECONDS)
            sock.connect(path)
            sock.sendall(json.dumps(request).encode() + b"\n")
            response = json.loads(_line_from(sock))
    except (BrokenPipeError, ConnectionResetError) as error:
        advice = "only the owner of the proxy's process may use its socket, a few callers at a time"
        raise NotAnswered(f"{path}: no answer: {advice}") from error
    except (OSError, ValueError) as error:
        raise NotAnswered(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if not response["ok"]:
        raise NotAnswered(str(response["message"]))
    return str(response["message"])


def _line_from(sock: socket.socket) -> bytes:
    data = bytearray()
    while len(data) < MAX_RESPONSE_BYTES and not data.endswith(b"\n"):
        more = sock.recv(4_096)
        if not more:
            break
        data += more
    if not data:
        raise ConnectionResetError
    return bytes(data)
