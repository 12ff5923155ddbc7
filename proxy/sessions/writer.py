"""The writing half of a pump. While the other side does not take bytes, nothing is read: that is the memory bound."""

from typing import Final, final

from proxy.sessions.pump_set import WRITE_BACKPRESSURE, Direction, PumpSet
from proxy.sessions.wire import Wire
from proxy.streams.memory import Holding

_FIRST_BYTE: Final = b"\0"


@final
class Writer:
    """Writes to the sink of one direction, and keeps what that does not take.

    has_probed   see `probe`: the first byte of the next response has been sent
    pending      bytes that the sink did not take; None: it has taken all
    discarding   the sink has gone, or its stream was ended: bytes are dropped
    """

    __slots__ = ("_holding", "_pump", "_send", "_shared", "_sink", "discarding", "has_probed", "pending")

    __deletable__ = ("_pump",)

    def __init__(self, shared: PumpSet, pump: Direction, holding: Holding, sink: Wire) -> None:
        self._shared = shared
        self._pump = pump
        self._holding = holding
        self._sink = sink
        self._send = sink.send
        self.pending: bytearray | None = None
        self.discarding = False
        self.has_probed = False

    def write(self, data: memoryview | bytes | bytearray) -> None:
        """Send now what the sink takes, keep the rest and stop reading until it is gone."""
        if self.pending is not None:
            self.pending += data
            self._account()
            return
        send = self._send
        try:
            sent = send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._pump.on_sink_failed(error)
            return
        if sent < len(data):
            self.pending = bytearray(data[sent:])  # a copy: `data` is the buffer into which others are read next
            self._account()
            self._pump.pause(WRITE_BACKPRESSURE)
            self._sink.when_writable(self._on_writable)

    def _on_writable(self) -> None:
        if (pending := self.pending) is not None:
            self.pending = None
            self.write(pending)
            self._on_written()

    def _on_written(self) -> None:
        """A method of its own: in `_on_writable`, mypyc would take `pending` for None, as it was before `write`."""
        if self.pending is None:  # all was taken, or the sink has gone
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
        """Send the first byte of the next frame, which is 0 up to 16 MB, before the rest of it is known.

        A peer that has closed its connection answers it with a reset. Otherwise TCP does not tell: its end is queued
        behind what it sent before, and it acknowledges all else until that is read.
        """
        if self.pending is None and not self.has_probed and self._sink.is_flushed:
            try:
                self._send(_FIRST_BYTE)
            except OSError:
                return  # it is read, or asked again
            self.has_probed = True
            self._send = self._send_rest

    def _send_rest(self, data: memoryview | bytes | bytearray) -> int:
        """As `send`, of a frame whose first byte has been sent."""
        if data[0]:
            raise ConnectionAbortedError
        rest = data[1:]
        sent = self._sink.send(rest) if rest else 0
        self.has_probed = False
        self._send = self._sink.send
        return 1 + sent

    # ---- ends

    def _drop_all(self) -> None:
        """Bytes are dropped from now on. `len` takes all of them, so `write` need not ask for each."""
        self.discarding = True
        self._send = len

    def discard(self) -> None:
        """The sink has gone: drop pending bytes, and all that follow."""
        self._drop_all()
        if self.pending is not None:
            self._drop_pending()

    def end(self) -> None:
        """Nothing follows what the sink has taken: end its stream."""
        self._drop_all()
        self._sink.shutdown()

    def stop(self) -> None:
        """Leave the loop for good, before the sink is closed."""
        self._drop_all()
        if self.pending is not None:
            self.pending = None
            self._sink.stop_writing()
        del self._pump  # which refers to this object: see `Session._close`
