"""Opens connections for the proxy's own requests to brokers, as those of clients are opened: in plaintext or with TLS,
and logged in if the proxy has a login.
"""

import asyncio
import errno
import os
import socket
import ssl

from proxy.brokers.login import LoginRefused, log_in
from proxy.config.config import Address
from proxy.tls import TlsContexts, failure_of


class BrokerFailed(OSError):
    """A broker cannot be used. `reason`: the metric's label."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


async def open_broker(server: Address, tls: TlsContexts) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which a request can be sent. Raises BrokerFailed, other OSErrors, EOFError or ProtocolError."""
    reader, writer = await _connect(server, tls)
    if tls.upstream.login is not None:
        try:
            await log_in(reader, writer, tls.upstream.login)
        except LoginRefused as error:
            writer.close()
            raise BrokerFailed("login_refused", str(error)) from None
        except BaseException:
            writer.close()
            raise
    return reader, writer


async def _connect(server: Address, tls: TlsContexts) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_connection(*server, ssl=tls.to_brokers)
    except socket.gaierror as error:
        raise BrokerFailed("name_resolution", error.strerror or str(error)) from error
    except ConnectionRefusedError as error:
        raise BrokerFailed("connect_refused", os.strerror(errno.ECONNREFUSED)) from error
    except (OSError, ValueError) as error:
        if tls.to_brokers is not None and isinstance(error, ssl.SSLError | ConnectionResetError):
            raise BrokerFailed(*failure_of(error)) from error
        raise BrokerFailed("connect_failed", str(error)) from error
