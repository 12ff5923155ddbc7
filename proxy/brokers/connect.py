"""Opens connections for the proxy's own requests to brokers, as those of clients are opened: in plaintext or with TLS,
and logged in if the proxy has a login.
"""

import asyncio

from proxy.brokers.login import log_in
from proxy.config.config import Address
from proxy.tls import TlsContexts, failure_of


async def open_broker(server: Address, tls: TlsContexts) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which a request can be sent. Raises OSError, EOFError or ProtocolError."""
    reader, writer = await _connect(server, tls)
    if tls.upstream.login is not None:
        try:
            await log_in(reader, writer, tls.upstream.login)
        except BaseException:
            writer.close()
            raise
    return reader, writer


async def _connect(server: Address, tls: TlsContexts) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = tls.to_brokers
    if context is None:
        return await asyncio.open_connection(*server)
    try:
        return await asyncio.open_connection(*server, ssl=context)
    except ConnectionRefusedError:
        raise
    except (OSError, ValueError) as error:
        reason, detail = failure_of(error)
        raise OSError(f"{detail} ({reason})") from error
