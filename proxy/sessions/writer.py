"""The writing half of a pump. While the other side takes no bytes, nothing is read, and that bounds the memory."""

from typing import Final, final

from proxy.sessions.pump_set import WRITE_BACKPRESSURE, Direction, PumpSet
from proxy.sessions.wire import Wire
from proxy.streams.memory import Holding

#: Larger than any write.
ALL: Final = 1 << 62
_FIRST_BYTE: Final = b"\0"


@final
class Writer:
    """Writes to the sink of one direction, and keeps what the sink does not take.

    has_probed   whether the first byte of the next response has been sent already: see `probe`
    pending      bytes that the sink has not taken; None: it has taken all
    send         the wire's, which returns how many bytes it took; `len` while bytes are dropped
    discarding   bytes are dropped, because the sink has gone or its stream was ended
    """

    __slots__ = ("_holding", "_pump", "_shared", "_sink", "discarding", "has_probed", "pending", "send")

    __deletable__ = ("_pump",)

    def __init__(self, shared: PumpSet, pump: Direction, holding: Holding, sink: Wire) -> None:
        self._shared = shared
        self._pump = pump
        self._holding = holding
        self._sink = sink
        self.send = sink.send
        self.pending: bytearray | None = None
        self.discarding = False
        self.has_probed = False

    def write(self, data: memoryview | bytes | bytearray) -> None:
        """Send what the sink takes now. Keep the rest, and stop reading until it has been sent."""
        if self.pending is not None:
            self.pending += data
            self._account()
            return
        try:
            sent = self.send(data)
        except OSError as error:
            sent = self.on_unsent(error)
        if sent < len(data):
            self.keep(data[sent:])

    def on_unsent(self, error: OSError) -> int:
        """The sink took nothing, for now or for good. Returns how many bytes need not be kept."""
        if isinstance(error, BlockingIOError | InterruptedError):
            return 0
        self._pump.on_sink_failed(error)
        return ALL

    def keep(self, rest: memoryview | bytes | bytearray) -> None:
        """Keep bytes that the sink did not take."""
        self.pending = bytearray(rest)  # a copy, because the next read overwrites the buffer that has `rest`
        self._account()
        self._pump.pause(WRITE_BACKPRESSURE)
        self._sink.when_writable(self._on_writable)

    def _on_writable(self) -> None:
        if (pending := self.pending) is not None:
            self.pending = None
            self.write(pending)
            self._on_written()

    def _on_written(self) -> None:
        """A separate method, because in `_on_writable` mypyc assumes that `pending` is None, as before `write`."""
        if self.pending is None:  # all bytes were taken, or the sink has gone
            self._drop_pending()
            self._pump.on_sent()

    def _drop_pending(self) -> None:
        self.pending = None
        self._sink.stop_writing()
        self._account()
        self._pump.resume(WRITE_BACKPRESSURE)

    def _account(self) -> None:
        pending = self.pending
        self._shared.account(self._holding, self._holding.kept, 0 if pending is None else len(pending))

    # ---- whether the sink is still there

    def probe(self) -> None:
        """Send the first byte of the next frame, which is 0 for any frame below 16 MB, before the rest of it is known.

        If the peer has closed its connection, it answers with a reset. TCP gives no other sign: the peer's FIN is
        queued behind the data that it sent before, and its kernel acknowledges everything until that data is read.
        """
        if self.pending is None and not self.has_probed and self._sink.is_flushed:
            try:
                self.send(_FIRST_BYTE)
            except OSError:
                return  # the next read, or the next probe, handles that
            self.has_probed = True
            self.send = self._send_rest

    def _send_rest(self, data: memoryview | bytes | bytearray) -> int:
        """Like `send`, for a frame whose first byte has been sent already."""
        if data[0]:
            raise ConnectionAbortedError
        rest = data[1:]
        sent = self._sink.send(rest) if rest else 0
        self.has_probed = False
        self.send = self._sink.send
        return 1 + sent

    # ---- ends

    def _drop_all(self) -> None:
        """Drop bytes from now on. `len` takes all of them, so `write` needs no condition for that."""
        self.discarding = True
        self.send = len

    def discard(self) -> None:
        """The sink has gone: drop the pending bytes, and all bytes that follow."""
        self._drop_all()
        if self.pending is not None:
            self._drop_pending()

    def end(self) -> None:
        """Nothing follows the bytes that the sink has taken: end its stream."""
        self._drop_all()
        self._sink.shutdown()

    def stop(self) -> None:
        """Leave the loop for good, before the sink is closed."""
        self._drop_all()
        if self.pending is not None:
            self.pending = None
            self._sink.stop_writing()
        del self._pump  # it refers to this object: see `Session._close`
