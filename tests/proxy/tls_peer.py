"""Peers of the proxy that speak TLS, byte by byte if a test wants that, and certificates for them."""

import asyncio
import contextlib
import ssl
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from deploy.local.security import PemFiles, Security
from proxy.config.client_settings import ClientSettings, SslSettings
from proxy.config.config import ListeningOptions, ServerSsl
from proxy.files.tls import read_pem
from tests.proxy.conversation import LOOPBACK, PATIENCE_SECONDS, Peer, cut


class TlsPeer:
    """One end of a connection: OpenSSL over memory, and a raw socket."""

    def __init__(
        self, peer: Peer, context: ssl.SSLContext, host: str | None = LOOPBACK, session: ssl.SSLSession | None = None
    ) -> None:
        self.peer = peer
        context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, host is None, host, session)
        self._plain = bytearray()

    async def handshake(self, sizes: Iterable[int] = ()) -> None:
        """Raises ssl.SSLError, EOFError and ConnectionResetError."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush(sizes)
                await self._receive()
            else:
                await self._flush(sizes)
                return

    async def send(self, data: bytes, sizes: Iterable[int] = ()) -> None:
        """Each call sends records of its own; `sizes`: encrypted bytes for each `send` of the socket."""
        self.tls.write(data)
        await self._flush(sizes)

    async def read(self, size: int) -> bytes:
        while len(self._plain) < size:
            try:
                data = self.tls.read(1 << 20)
            except ssl.SSLWantReadError:
                await self._flush(())
                await self._receive()
                continue
            if not data:
                raise ssl.SSLZeroReturnError(bytes(self._plain))
            self._plain += data
        data = bytes(self._plain[:size])
        del self._plain[:size]
        return data

    async def frame(self) -> bytes:
        head = await self.read(4)
        return head + await self.read(int.from_bytes(head, "big"))

    async def ended(self) -> None:
        """Wait for TLS's own end of the stream: an end of TCP alone raises ssl.SSLEOFError."""
        with contextlib.suppress(ssl.SSLZeroReturnError):
            raise AssertionError(await self.read(1))

    async def end(self) -> None:
        """Send no more, go on reading."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.unwrap()
        await self._flush(())
        self.peer.end()

    async def _flush(self, sizes: Iterable[int]) -> None:
        for piece in cut(self._outgoing.read(), sizes):
            await self.peer.send(piece)
            await asyncio.sleep(0)

    async def _receive(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            data = await asyncio.get_running_loop().sock_recv(self.peer.sock, 1 << 20)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()


class ClientKeys:
    """Makes the records that a client of TLS 1.3 sends, from its log of keys: Python cannot send a KeyUpdate.

    The client's own OpenSSL does not know of them: it sends nothing after that.
    """

    def __init__(self, log: Path) -> None:
        lines = [line.split() for line in log.read_text().splitlines()]
        self._secret = next(bytes.fromhex(line[2]) for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0")
        self._sent = 0

    def _derive(self, label: bytes, size: int) -> bytes:
        info = struct.pack(">HB", size, 6 + len(label)) + b"tls13 " + label + b"\0"
        return HKDFExpand(SHA384(), size, info).derive(self._secret)

    def record(self, data: bytes, kind: int) -> bytes:
        head = b"\x17\x03\x03" + struct.pack(">H", len(data) + 17)
        nonce = int.from_bytes(self._derive(b"iv", 12), "big") ^ self._sent
        self._sent += 1
        return head + AESGCM(self._derive(b"key", 32)).encrypt(nonce.to_bytes(12, "big"), data + bytes([kind]), head)

    def update(self, *, asks: bool = False) -> bytes:
        """A KeyUpdate; `asks` for one of the peer."""
        record = self.record(b"\x18\0\0\x01" + bytes([asks]), 22)
        self._secret, self._sent = self._derive(b"traffic upd", 48), 0
        return record


class Certificates:
    """A CA, and the files and contexts that belong to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.security = Security()
        self.ca = self.security.write_ca(directory / "ca.pem")
        self.server = self.issue("server", LOOPBACK)

    def issue(self, name: str, *hosts: str, **more: Any) -> PemFiles:
        return self.security.issue(self.directory, name, *hosts, **more)

    def of_client(self, files: PemFiles | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        if files is not None:
            context.load_cert_chain(files.both)
        return context

    def of_server(self, files: PemFiles | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain((files or self.server).both)
        return context

    def listening(self, **options: Any) -> ListeningOptions:
        """Options of a listener with TLS."""
        more = {name: options.pop(name) for name in ("proxy_protocol_from",) if name in options}
        server = ServerSsl(certificate=self.server.certificate, key=self.server.key, **options)
        return ListeningOptions(address=(LOOPBACK, 0), broker_ports=None, ssl=server, **more)

    def upstream(self, **options: Any) -> ClientSettings:
        """Settings of connections to a broker with TLS."""
        return ClientSettings(ssl=SslSettings(**{"ca": read_pem(self.ca), **options}))
