"""Event loops whose connections are all made the way `Upstream` makes them. aiokafka offers no other place to change
this: without it, aiokafka would spend all its time on the first address of a name if that address drops packets.
"""

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from proxy.background.host import Host
from proxy.brokers.upstream import Upstream

if TYPE_CHECKING:
    _Base = asyncio.SelectorEventLoop
else:
    _Base = object


class _Dialling(_Base):
    """Opens TCP connections, and leaves the rest to the loop that it is mixed into."""

    _upstream: Upstream | None = None

    @property
    def upstream(self) -> Upstream:
        if self._upstream is None:
            self._upstream = Upstream(self, Host())
        return self._upstream

    async def create_connection(
        self,
        protocol_factory: Callable[[], Any],
        host: str | None = None,
        port: int | None = None,
        *,
        server_hostname: str | None = None,
        sock: Any = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        if sock is None and host is not None and port is not None:
            sock = await self.upstream.dial((host, port))
            server_hostname = server_hostname or (host if options.get("ssl") else None)
        return await super().create_connection(protocol_factory, sock=sock, server_hostname=server_hostname, **options)


class _AsyncioLoop(_Dialling, asyncio.SelectorEventLoop):
    pass


def new_loop(kind: str) -> AbstractEventLoop:
    """A loop of `--event-loop`."""
    if kind != "uvloop":
        return _AsyncioLoop()
    import uvloop

    class UvLoop(_Dialling, uvloop.Loop):  # type: ignore[misc] # uvloop has no types
        pass

    return UvLoop()
