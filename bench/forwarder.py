"""The least a proxy in Python can cost: forwards bytes between two sockets with uvloop, and parses nothing.

A peer of `bench.against_haproxy`: what the proxy costs above this is its own work. It blocks while a peer takes no
bytes, so it is not for use.
"""

import socket
import sys
from collections.abc import Callable
from contextlib import suppress

import uvloop

from proxy.streams.memory import READ_SIZE, aligned


def forward(listen_port: int, broker_port: int) -> None:
    """Serve until it is killed."""
    loop = uvloop.new_event_loop()
    listener = socket.create_server(("127.0.0.1", listen_port), backlog=4096)
    listener.setblocking(False)
    buffer = aligned(READ_SIZE)

    def accept() -> None:
        with suppress(BlockingIOError):
            while True:
                client = listener.accept()[0]
                broker = socket.create_connection(("127.0.0.1", broker_port))
                for sock in (client, broker):
                    sock.setblocking(False)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                loop.add_reader(client.fileno(), _pump(loop, buffer, client, broker))
                loop.add_reader(broker.fileno(), _pump(loop, buffer, broker, client))

    loop.add_reader(listener.fileno(), accept)
    loop.run_forever()


def _pump(loop: uvloop.Loop, buffer: bytearray, source: socket.socket, sink: socket.socket) -> Callable[[], None]:
    recv_into, send, view = source.recv_into, sink.send, memoryview(buffer)

    def on_readable() -> None:
        try:
            size = recv_into(buffer, READ_SIZE)
            sent = 0
            while sent < size:
                try:
                    sent += send(view[sent:size])
                except BlockingIOError:
                    continue
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            for sock in (source, sink):
                loop.remove_reader(sock.fileno())
                sock.close()

    return on_readable


if __name__ == "__main__":
    forward(*map(int, sys.argv[1:]))
