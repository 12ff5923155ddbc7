"""A model's side of a connection: whole frames in, whole frames out, at the pace of the model."""

from struct import pack
from typing import Final

from simulation.network import SimSocket

READ_BYTES: Final = 1 << 20


class Stream:
    """`on_frame` is called with each frame, without its length; `on_end` once, when the connection has ended.

    is_reading   False: what arrives stays in the buffers
    """

    def __init__(self, sock: SimSocket) -> None:
        self.sock = sock
        self._received = bytearray()
        self.unsent = bytearray()
        self.is_reading = True
        self.is_closed = False
        sock.on_ready = self.on_ready

    def on_frame(self, frame: bytes) -> None:
        raise NotImplementedError

    def on_end(self, why: str) -> None:
        raise NotImplementedError

    def send(self, payload: bytes) -> None:
        """Send a frame."""
        self.send_raw(pack(">i", len(payload)) + payload)

    def send_raw(self, data: bytes) -> None:
        self.unsent += data
        self._flush()

    def resume(self) -> None:
        self.is_reading = True
        self._take()
        self.on_ready()

    def _flush(self) -> None:
        sock = self.sock
        try:
            while self.unsent and sock.is_writable:
                del self.unsent[: sock.send(self.unsent)]
        except OSError as error:
            self.close(type(error).__name__)

    def on_ready(self) -> None:
        sock = self.sock
        self._flush()
        try:
            while self.is_reading and not self.is_closed and sock.is_readable:
                data = sock.recv(READ_BYTES)
                if not data:
                    self.close("end")
                self._received += data
                self._take()
        except OSError as error:
            self.close(type(error).__name__)

    def _take(self) -> None:
        received, at = self._received, 0
        while self.is_reading and len(received) - at >= 4:
            end = at + 4 + int.from_bytes(received[at : at + 4], "big")
            if len(received) < end or self.is_closed:
                break
            frame = bytes(received[at + 4 : end])
            at = end
            self.on_frame(frame)
        del received[:at]

    def close(self, why: str, *, resets: bool = False) -> None:
        if not self.is_closed:
            self.is_closed = True
            (self.sock.abort if resets else self.sock.close)()
            self.on_end(why)
