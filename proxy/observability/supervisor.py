"""Reports to systemd: ready, reloading, alive, stopping. The protocol is that of sd_notify(3), without its library.

The libraries for it are bindings of libsystemd, which slim images do not have, or unmaintained; it is one datagram.
Without NOTIFY_SOCKET nothing is sent. WATCHDOG=1 comes from a timer of the event loop: a loop that hangs is restarted.
"""

import os
import socket
import time
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Mapping
from typing import Final, final

from proxy.observability.logs import EventLog

_log = EventLog(__name__)
_SERVING: Final = "STATUS=serving"
_REFUSED: Final = "STATUS=refused a changed file; the previous one stays in force"


@final
class Supervisor:
    """`environment`: NOTIFY_SOCKET, a path or @NAME; WATCHDOG_USEC and WATCHDOG_PID."""

    def __init__(self, loop: AbstractEventLoop, environment: Mapping[str, str] = os.environ) -> None:
        self._loop = loop
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        is_meant = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watchdog_seconds = int(environment.get("WATCHDOG_USEC", 0)) / 2_000_000 if is_meant else 0
        self._is_reloading = False
        #: What `systemctl status` shows; None while the proxy does not serve.
        self._status: str | None = None
        self._timer: TimerHandle | None = None

    def ready(self) -> None:
        """New connections are served from now on. Brokers need not answer yet: a restart would not help them."""
        self._status = _SERVING
        self._send("READY=1", _SERVING)
        if self._watchdog_seconds and self._address:
            self._alive()

    def reloading(self) -> None:
        """Files are about to be read: until `reloaded`, `systemctl reload` waits."""
        self._is_reloading = True
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self, *, ok: bool) -> None:
        """Files were read or have not changed; `ok`: those that were read last are in force. The status also changes
        without `systemctl reload`, because the proxy watches its files.
        """
        before, status = self._status, _SERVING if ok else _REFUSED
        if self._is_reloading:
            self._is_reloading = False
            self._send("READY=1", status)
        elif before is not None and before != status:
            self._send(status)
        if before is not None:
            self._status = status

    def stopping(self) -> None:
        """The drain starts. The watchdog continues until `close`."""
        self._status = None
        self._send("STOPPING=1", "STATUS=draining")

    def close(self) -> None:
        """Stop the watchdog's timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _alive(self) -> None:
        self._timer = self._loop.call_later(self._watchdog_seconds, self._alive)
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as notify:
                notify.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            _log.warning("notify_failed", socket=self._address, message=str(error))
