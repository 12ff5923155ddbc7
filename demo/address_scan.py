"""Looks for real broker addresses in everything that a client receives.

A client that ever learns a broker's own address can walk round the proxy and its quota. So between client and proxy
stands a relay that reads along: every byte towards the client is searched, record bytes too, since no flight holds an
address. The relay has the proxy's port numbers on another loopback address, and the proxy names that address in what it
rewrites (`--advertised-host`), so the client's whole conversation passes here.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

_READ_BYTES = 256 * 1024


class AddressScan:
    """Finds any of some hosts in a stream that arrives in pieces, also where a piece ends inside one of them.

    A host alone is enough: Kafka sends it as text, with its port in a separate field, in every response.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self._forms = [host.encode() for host in hosts]
        self._overlap = max(map(len, self._forms)) - 1
        self._tail = b""
        self.bytes_scanned = 0
        self.sightings = 0

    def feed(self, piece: bytes) -> None:
        """Search the next bytes of the stream."""
        window = self._tail + piece
        for form in self._forms:
            at = window.find(form)
            while at >= 0:
                if at + len(form) > len(self._tail):  # else it was counted with the piece before
                    self.sightings += 1
                at = window.find(form, at + 1)
        self._tail = window[-self._overlap :]
        self.bytes_scanned += len(piece)


class ScanningRelay:
    """Passes connections on to a target, reading along.

    hosts: what to look for. Each connection has its own scan; the sums stand in the attributes, and are complete when
    the relay is closed or its connections have ended.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = tuple(hosts)
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._scans: list[AddressScan] = []
        self._closed = False

    def listen(self, address: tuple[str, int], target: tuple[str, int]) -> tuple[str, int]:
        """Listen on `address` (port 0: any) for connections to pass on to `target`. Returns where it listens.

        Raises OSError when the port is taken.
        """
        listener = socket.create_server(address, backlog=128)
        self._keep(listener)
        self._start(self._accept, listener, target)
        bound: tuple[str, int] = listener.getsockname()
        return bound

    @property
    def connections(self) -> int:
        """How many connections there were."""
        return len(self._scans)

    @property
    def bytes_scanned(self) -> int:
        """Bytes towards clients so far, on all connections."""
        return sum(scan.bytes_scanned for scan in self._scans)

    @property
    def sightings(self) -> int:
        """How often one of the hosts was seen."""
        return sum(scan.sightings for scan in self._scans)

    def close(self) -> None:
        """End all connections and threads."""
        with self._lock:
            self._closed = True
            for each in self._sockets:
                # Wakes a thread that waits in accept or recv; close alone would not.
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self, listener: socket.socket, target: tuple[str, int]) -> None:
        with listener:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                if not self._keep(client):
                    return
                self._start(self._relay, client, target)

    def _relay(self, client: socket.socket, target: tuple[str, int]) -> None:
        try:
            upstream = socket.create_connection(target)
        except OSError:
            self._drop(client)
            return
        if not self._keep(upstream):
            return
        for each in (client, upstream):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        scan = AddressScan(self._hosts)
        self._scans.append(scan)
        towards_broker = threading.Thread(target=_pump, args=(client, upstream, None), daemon=True)
        towards_broker.start()
        _pump(upstream, client, scan)
        towards_broker.join()
        self._drop(client)
        self._drop(upstream)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _keep(self, each: socket.socket) -> bool:
        with self._lock:
            if self._closed:
                each.close()
                return False
            self._sockets.add(each)
            return True

    def _drop(self, each: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(each)
        each.close()


def _pump(source: socket.socket, sink: socket.socket, scan: AddressScan | None) -> None:
    """Pass on what `source` sends until it ends, then end the other direction of both."""
    buffer = memoryview(bytearray(_READ_BYTES))
    try:
        while size := source.recv_into(buffer):
            if scan is not None:
                scan.feed(bytes(buffer[:size]))
            sink.sendall(buffer[:size])
    except OSError:
        pass
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
