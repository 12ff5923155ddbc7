"""The switch of enforcement on a UNIX socket (`--admin-socket`), for the owner of the process only.

One request and one response for each connection, both one line of JSON:

    {"command": "off", "seconds": 1800}     or "on", "status"
    {"ok": true, "message": "enforcement is off until ..."}

The file has mode 0600, and the uid of each caller, as the kernel reports it (SO_PEERCRED), is checked too: root may
connect to any socket, and a mode may be changed by mistake.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import socket
import stat
import struct
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from pathlib import Path
from typing import Final

from proxy.config.errors import BindError
from proxy.in_force import Caller, InForce
from proxy.observability.logs import event

#: More than any request has.
MAX_REQUEST_BYTES: Final = 1_024
MAX_CALLERS: Final = 8
CALLER_TIMEOUT_SECONDS: Final = 5.0
MAX_OFF_SECONDS: Final = 86_400
_CREDENTIALS: Final = struct.Struct("iII")

_log = logging.getLogger(__name__)


class AdminSocket:
    """Serves from `open` until `close`."""

    def __init__(self, path: Path, in_force: InForce, owner: int | None = None) -> None:
        self._path = path
        self._in_force = in_force
        self._owner = os.geteuid() if owner is None else owner
        self._callers = 0
        #: Of the file that this process made: another one may have replaced it.
        self._inode = 0
        self._server: asyncio.AbstractServer | None = None

    async def open(self) -> None:
        """Bind the path. Raises BindError. A socket that no process listens on is replaced."""
        try:
            sock = _bound(self._path)
            self._inode = self._path.stat().st_ino
            self._server = await asyncio.start_unix_server(self._serve, sock=sock, limit=MAX_REQUEST_BYTES)
        except OSError as error:
            raise BindError("--admin-socket", str(self._path), error) from error

    def close(self) -> None:
        """Stop listening and remove the file."""
        if self._server is not None:
            self._server.close()
            self._server = None
            with suppress(FileNotFoundError):
                if self._path.lstat().st_ino == self._inode:
                    self._path.unlink()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._callers += 1
        try:
            caller = _caller_of(writer)
            if caller.uid != self._owner:
                event(_log, logging.WARNING, "admin_caller_refused", uid=caller.uid, pid=caller.pid)
            elif self._callers <= MAX_CALLERS:
                async with asyncio.timeout(CALLER_TIMEOUT_SECONDS):
                    writer.write(self._respond(await reader.readline(), caller))
                    await writer.drain()
        except (OSError, TimeoutError, ValueError):  # the caller has gone or is silent, or its line is too long
            event(_log, logging.DEBUG, "admin_caller_failed", exc_info=True)
        finally:
            self._callers -= 1
            writer.close()

    def _respond(self, line: bytes, caller: Caller) -> bytes:
        try:
            self._carry_out(json.loads(line), caller)
        except (ValueError, RecursionError) as error:
            return _line(ok=False, message=str(error))
        return _line(ok=True, message=self._in_force.status)

    def _carry_out(self, request: object, caller: Caller) -> None:
        """Raises ValueError for anything but the three commands."""
        match request:
            case {"command": "off", "seconds": int() | float() as seconds} if 0 < seconds <= MAX_OFF_SECONDS:
                self._in_force.switch_off(seconds, caller)
            case {"command": "on"}:
                self._in_force.switch_on(caller)
            case {"command": "status"}:
                pass
            case _:
                raise ValueError(f"expected off with seconds up to {MAX_OFF_SECONDS}, on, or status")


def _bound(path: Path) -> socket.socket:
    """A socket bound to the path, with mode 0600 from its first moment. Raises OSError."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "the file exists and is no socket", str(path))
        if _has_listener(path):
            raise FileExistsError(errno.EADDRINUSE, "another process listens on it", str(path))
        path.unlink()
    sock = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        sock.bind(str(path))
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(mask)
    return sock


def _has_listener(path: Path) -> bool:
    """Whether a process may listen on it: also one of another user, or one that is stopped and accepts nothing."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) != errno.ECONNREFUSED


def _caller_of(writer: StreamWriter) -> Caller:
    found = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return Caller(uid, pid)


def _line(*, ok: bool, message: str) -> bytes:
    return json.dumps({"ok": ok, "message": message}).encode() + b"\n"
