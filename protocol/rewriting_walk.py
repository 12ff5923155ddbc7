"""The base of walks that rewrite a response: they consume its bytes as they arrive and write what the client receives.

Every tagged field is removed. The messages rewritten here define none up to the versions of the table. An unknown tag
may contain a broker's address, and every client must accept a message without it (KIP-482). Error codes and text pass
unchanged.
"""

from struct import Struct

from protocol.apis import APIS
from protocol.errors import MalformedFrame
from protocol.walk import Collecting, FrameWalk, Reading, Steps
from protocol.wire import encode_varint, varint_size

_INT32 = Struct(">i")


class RewritingWalk(FrameWalk):
    """Consumes one response as it streams in and builds what the client receives in its place.

    Call `advance` until `is_done`: with more bytes, or, where `work_left` is 0 or less, with the same bytes in a later
    turn, also where they were all consumed. While it is not done, `frame_left` is above 0.
    Then the client receives the frame length `len(out) + frame_left`, `out`, and the frame's other bytes unchanged.

    A piece of work (`work_left`) takes about 2 µs. `out` is never longer than what was consumed plus, for each
    address in it, the length of the proxy's host.
    """

    is_done = False
    """Whether `out` is complete."""

    def __init__(self, api_key: int, version: int, frame_length: int) -> None:
        """A walk of one response.

        Args:
            version: of the request that is answered.
            frame_length: bytes of the response from its correlation id on.
        """
        super().__init__(frame_length)
        self.out = bytearray()
        """The response from its correlation id on, as far as it has been written."""
        self._version = version
        self._compact = APIS[api_key].is_flexible(version)

    def _whole(self) -> Steps:
        yield from self._walk()
        self._check_end()
        self.is_done = True

    def _copy_correlation_id(self) -> Steps:
        """The header of the response: correlation id and, in flexible versions, tags."""
        yield from self._copy(4, "correlation id")
        if self._compact:  # all of the APIs that are rewritten have a flexible response header then
            yield from self._skip_tags()
            self.out.append(0)

    def _copy(self, size: int, what: str) -> Steps:
        """Copies `size` bytes, as many at a time as have arrived."""
        if size <= self._end - self._pos:
            self.out += self._buf[self._pos : self._pos + size]
            self._pos += size
            return
        self._check_left(size, what)
        while size:
            yield from self._need(1, what)
            here = min(size, self._end - self._pos)
            self.out += self._buf[self._pos : self._pos + here]
            self._pos += here
            size -= here

    def _copy_string(self, what: str) -> Steps:
        """Copies a string, nullable or not."""
        self.work_left -= 1
        size = yield from self._string_size(self._compact, what)
        self.out += self._size_bytes(size)
        if size > 0:
            self._check_left(size, what)
            yield from self._copy(size, what)

    def _read_string(self, what: str) -> Collecting:
        """Reads the text of a string that may not be null, and writes nothing."""
        self.work_left -= 1
        at = self._offset()
        size = yield from self._string_size(self._compact, what)
        if size < 0:
            raise MalformedFrame(what, at)
        return (yield from self._collect(size, what))

    def _copy_count(self, smallest: int, what: str) -> Reading:
        """Copies the number of items of an array that may not be null. Each item takes at least `smallest` bytes."""
        count = yield from self._read_count(smallest, what)
        self._write_count(count)
        return count

    def _read_count(self, smallest: int, what: str) -> Reading:
        """The number of items of an array that may not be null. Nothing is written."""
        yield from self._need(1 if self._compact else 4, what)
        if self._buf[self._pos] == (0 if self._compact else 0xFF):  # null, or below
            raise MalformedFrame(what, self._offset())
        return (yield from self._items(self._compact, smallest, what))

    def _write_count(self, count: int) -> None:
        self.out += encode_varint(count + 1) if self._compact else _INT32.pack(count)

    def _drop_tags(self) -> Steps:
        """Writes an empty tag buffer in flexible versions."""
        if self._compact:
            yield from self._skip_tags()
            self.out.append(0)

    def _copy_structs(self, size: int, what: str) -> Steps:
        """Copies a compact array of structs that are `size` bytes and a tag buffer each."""
        left = yield from self._copy_count(size + 1, what)
        while left:
            here = self._plain_structs(left, size)
            if here:
                yield from self._copy(here * (size + 1), what)
                left -= here
            else:
                yield from self._copy(size, what)
                yield from self._drop_tags()
                left -= 1
            yield from self._pause(2)

    def _size_bytes(self, size: int) -> bytearray:
        """The length of a string as the response wrote it, directly before the walk's position."""
        width = varint_size(size + 1) if self._compact else 2
        return self._buf[self._pos - width : self._pos]
