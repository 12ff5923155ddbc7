"""Walks over a frame while its bytes stream by: mostly a response, and the requests that are metered by topic.

A walk is told the length of its frame and then shown the frame's bytes, some at a time and wherever they lie in a
buffer. It looks only at what tells lengths, may change single bytes in place, and says up to where the bytes are final.
Record bytes are passed over without being collected or looked at. It is written as a generator that yields wherever it
needs bytes that have not come yet, so that it reads as the layout reads.
"""

from collections.abc import Generator, Iterator
from struct import Struct

from protocol.errors import MalformedFrame, TruncatedFrame
from protocol.wire import MAX_STRING, MAX_VARINT, MAX_VARINT_SIZE

Steps = Generator[None, None, None]
Reading = Generator[None, None, int]
Collecting = Generator[None, None, bytes]

_INT16 = Struct(">h")
_INT32 = Struct(">i")


class FrameWalk:
    """Walks one frame. A subclass gives the layout, in `_walk`."""

    # Class attributes, so that a walk that is over in one call costs little to begin.
    _buf = bytearray()
    _pos = 0
    """Where the walk is."""
    _end = 0
    """Where the bytes shown end."""
    _limit = 0
    """Where the frame ends, most often beyond `_end`."""
    _steps: Iterator[None] | None = None
    work_left = 1 << 62
    """How many pieces (topics, partitions, batches, tagged fields) the next `advance` may look at, and two more that
    end with the last. It counts down; for callers to set, where one read may hold more than there is time for at once.
    """

    def __init__(self, frame_length: int, start: int = 0) -> None:
        """The walk of a whole frame, or of what follows its first bytes.

        Args:
            frame_length: bytes of the frame, as the four bytes before it tell.
            start: where in the frame the walk begins.
        """
        self._frame_length = frame_length
        self._left = frame_length - start  # bytes of the frame that are not final yet

    def advance(self, buf: bytearray, pos: int, end: int) -> int:
        """Walks on over `buf[pos:end]`, the frame's bytes from where the last call stopped.

        Returns:
            Up to where bytes are final and may be forwarded. Those from there to `end`, always few, must be shown again
            together with more. When the frame's last byte was shown, this is `end` and the walk is over. Where
            `work_left` has come down to 0, those bytes may be many, and it goes on with them alone.

        Raises:
            MalformedFrame: the frame is not what its API and version say. Nothing from `pos` on may be forwarded,
                and the walk stays where it is.
        """
        self._buf = buf
        self._pos = pos
        self._end = end
        self._limit = pos + self._left
        if self._steps is None:
            self._steps = self._whole()
        next(self._steps, None)
        self._left = self._limit - self._pos
        return self._pos

    @property
    def is_over(self) -> bool:
        """The frame's last byte was shown, and all of it was what it should be."""
        return self._steps is not None and not self._left

    def _whole(self) -> Steps:
        yield from self._walk()
        if self._pos != self._limit:
            raise MalformedFrame("the end of the frame: bytes behind its last field", self._offset())

    def _walk(self) -> Steps:
        raise NotImplementedError

    def _offset(self) -> int:
        return self._frame_length - (self._limit - self._pos)

    def _need(self, size: int, what: str) -> Steps:
        """Waits until `size` bytes are there."""
        if size > self._limit - self._pos:
            raise TruncatedFrame(what, self._offset())
        while size > self._end - self._pos:
            yield

    def _varint(self, what: str) -> Reading:
        """An unsigned varint, as `wire.unsigned_varint` reads it."""
        value = 0
        for index in range(MAX_VARINT_SIZE):
            yield from self._need(index + 1, what)
            byte = self._buf[self._pos + index]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if value > MAX_VARINT or (byte == 0 and index):
                    break
                self._pos += index + 1
                return value
        raise MalformedFrame(what, self._offset())

    def _count(self, smallest: int, what: str) -> Reading:
        """Items of a compact array, 0 also when it is null; each takes `smallest` bytes or more."""
        count = yield from self._varint(what)
        if (count - 1) * smallest > self._limit - self._pos:
            raise TruncatedFrame(what, self._offset())
        return max(0, count - 1)

    def _items(self, compact: bool, smallest: int, what: str) -> Reading:
        """As `_count`, also for the arrays of versions that are not flexible, whose null is -1."""
        if compact:
            return (yield from self._count(smallest, what))
        yield from self._need(4, what)
        count: int = _INT32.unpack_from(self._buf, self._pos)[0]
        if count < -1:
            raise MalformedFrame(what, self._offset())
        if count * smallest > self._limit - self._pos - 4:
            raise TruncatedFrame(what, self._offset())
        self._pos += 4
        return max(0, count)

    def _size(self, compact: bool, length: Struct, what: str) -> Reading:
        """Bytes of a string or of bytes, -1 when null; `length`: how versions that are not flexible write it."""
        if compact:
            return (yield from self._varint(what)) - 1
        yield from self._need(length.size, what)
        size: int = length.unpack_from(self._buf, self._pos)[0]
        if size < -1:
            raise MalformedFrame(what, self._offset())
        self._pos += length.size
        return size

    def _string_size(self, compact: bool, what: str) -> Reading:
        """Of a string, nullable or not: at most 32,767, and -1 when null."""
        size = yield from self._size(compact, _INT16, what)
        if size > MAX_STRING:
            raise MalformedFrame(what, self._offset())
        return size

    def _bytes_size(self, compact: bool, what: str) -> Reading:
        """Of bytes or records, nullable or not: -1 when null."""
        return self._size(compact, _INT32, what)

    def _collect(self, size: int, what: str) -> Collecting:
        """The next `size` bytes, which should be few: they are kept here, so that none is shown twice."""
        if size <= self._end - self._pos:
            self._pos += size
            return bytes(self._buf[self._pos - size : self._pos])
        if size > self._limit - self._pos:
            raise TruncatedFrame(what, self._offset())
        collected = bytearray()
        while len(collected) < size:
            if self._pos == self._end:
                yield
            here = min(size - len(collected), self._end - self._pos)
            collected += self._buf[self._pos : self._pos + here]
            self._pos += here
        return bytes(collected)

    def _skip(self, size: int, what: str) -> Steps:
        if size > self._limit - self._pos:
            raise TruncatedFrame(what, self._offset())
        while size > self._end - self._pos:
            size -= self._end - self._pos
            self._pos = self._end
            yield
        self._pos += size

    def _blank(self, size: int, what: str) -> Steps:
        """Zeroes `size` bytes."""
        if size > self._limit - self._pos:
            raise TruncatedFrame(what, self._offset())
        while size:
            here = min(size, self._end - self._pos)
            self._buf[self._pos : self._pos + here] = bytes(here)
            self._pos += here
            size -= here
            if size:
                yield

    def _skip_compact(self, what: str) -> Steps:
        """A compact string, bytes or records, nullable or not."""
        size = yield from self._varint(what)
        if size > 1:
            yield from self._skip(size - 1, what)

    def _skip_tags(self) -> Steps:
        count = yield from self._varint("tag count")
        for _ in range(count):  # each takes two bytes or more, so a false count ends with the frame
            yield from self._varint("tag")
            size = yield from self._varint("tag size")
            yield from self._skip(size, "tagged field")
            self.work_left -= 1
            if self.work_left <= 0 and self._pos < self._end:
                yield

    def _skip_structs(self, size: int, what: str) -> Steps:
        """A compact array of structs that are `size` bytes and a tag buffer each, nullable or not. It may be long."""
        stride = size + 1
        left = yield from self._count(stride, what)
        while left:
            # Those that came whole and have no tags are found by their tag counts, which stand at a fixed stride.
            here = min(left, (self._end - self._pos) // stride, 512)
            behind = self._pos + here * stride
            if here and self._buf[self._pos + size : behind : stride].count(0) == here:
                self._pos = behind
                left -= here
            else:
                yield from self._skip(size, what)
                yield from self._skip_tags()
                left -= 1
