"""Walks over a frame while its bytes stream through the proxy: most responses, and requests that are metered by topic.

A walk is created with the length of its frame. Each call passes more of the frame's bytes, at any place of a buffer. It
reads only the fields it needs, may change single bytes in place, and returns the position up to which bytes are final.
It skips record bytes without collecting them. A walk is a generator that yields until missing bytes arrive, so the code
has the order of the layout.
"""

from collections.abc import Generator, Iterator
from struct import Struct
from typing import Final

from protocol.errors import MalformedFrame, TruncatedFrame
from protocol.topics import LONGEST_NAME, NO_TOPIC_ID, TOPIC_ID_SIZE, Topic
from protocol.wire import INT16, INT32, MAX_STRING, MAX_VARINT, MAX_VARINT_SIZE, read_text

Steps = Generator[None, None, None]
Reading = Generator[None, None, int]
Collecting = Generator[None, None, bytes]
Naming = Generator[None, None, Topic]

_NO_BYTES: Final = bytearray()
_NO_STEPS: Final[Iterator[None]] = iter(())
UNBOUNDED: Final = 1 << 62
_COMPARED_AT_ONCE: Final = 512


class FrameWalk:
    """Walks one frame. A subclass defines the layout, in `_walk`."""

    # Class attributes, so that a walk that ends in its first call is cheap to create.
    _buf = _NO_BYTES
    _pos = 0
    """Position of the walk in `_buf`."""
    _end = 0
    """Position after the last byte shown."""
    _limit = 0
    """Position after the frame's last byte, most often greater than `_end`."""
    _steps: Iterator[None] | None = None
    broker_throttle_ms = 0
    """The throttle time that the broker wrote, where the walk reads it."""
    work_left = UNBOUNDED
    """How many pieces (topics, partitions, batches, tagged fields) the next `advance` may read, plus two at most. A
    piece takes a few microseconds. It counts down. Callers set it before each call to bound the time of the call.
    """

    def __init__(self, frame_length: int, start: int = 0) -> None:
        """A walk of a whole frame, or of the part after its first bytes.

        Args:
            frame_length: bytes of the frame, without its length prefix.
            start: offset in the frame of the first byte that is walked.
        """
        self.frame_length: Final = frame_length
        self.frame_left = frame_length - start
        """Bytes of the frame that are not final yet, whether they have arrived or not."""

    def advance(self, buf: bytearray, pos: int, end: int) -> int:
        """Continues over `buf[pos:end]`, the frame's bytes from the position that the last call returned.

        Args:
            end: position after the last byte that has arrived, and never after the frame's last byte.

        Returns:
            The position up to which bytes are final and may be forwarded. The bytes from there to `end` must be shown
            again. Where `work_left` is above 0 they are few, and more must be shown with them. Where it is 0 or less
            they may be many, and the next call continues with them alone. When the frame's last byte was shown this is
            `end`, and the walk has ended.

        Raises:
            MalformedFrame: the bytes do not have the layout of their API and version. Nothing from `pos` on may be
                forwarded, and the walk does not continue.
        """
        self._buf = buf
        self._pos = pos
        self._end = end
        self._limit = pos + self.frame_left
        if self._steps is None:
            self._steps = self._whole()
        next(self._steps, None)
        self.frame_left = self._limit - self._pos
        return self._pos

    @property
    def is_over(self) -> bool:
        """Whether the frame's last byte was read, and the whole frame has its layout."""
        return self._steps is not None and not self.frame_left

    def _whole(self) -> Steps:
        yield from self._walk()
        self._check_end()

    def _walk(self) -> Steps:
        raise NotImplementedError

    def _finish(self) -> None:
        """Ends the walk without its generator: the rest of the frame has been read, and has its layout."""
        self.frame_left = 0
        self._steps = _NO_STEPS

    def _check_end(self) -> None:
        if self._pos != self._limit:
            raise MalformedFrame("the end of the frame: bytes after its last field", self._offset())

    def _check_left(self, size: int, what: str) -> None:
        """Raises if fewer than `size` bytes of the frame are left."""
        if size > self._limit - self._pos:
            raise TruncatedFrame(what, self._offset())

    def _pause(self) -> Steps:
        """Counts a piece of work, and yields if none are left and there are bytes to read."""
        self.work_left -= 1
        if self.work_left <= 0 and self._pos < self._end:
            yield

    def _offset(self) -> int:
        return self.frame_length - (self._limit - self._pos)

    def _need(self, size: int, what: str) -> Steps:
        """Yields until `size` bytes have arrived."""
        self._check_left(size, what)
        while size > self._end - self._pos:
            yield

    def _varint(self, what: str) -> Reading:
        """An unsigned varint, as `wire.unsigned_varint` reads it."""
        if self._pos < self._end and self._buf[self._pos] < 0x80:
            self._pos += 1
            return self._buf[self._pos - 1]
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

    def _items(self, compact: bool, smallest: int, what: str) -> Reading:
        """Number of items of an array, 0 for null. Each item takes at least `smallest` bytes."""
        count = yield from self._size(compact, INT32, what)
        if count * smallest > self._limit - self._pos:
            raise TruncatedFrame(what, self._offset())
        return max(0, count)

    def _size(self, compact: bool, length: Struct, what: str) -> Reading:
        """Size of a string, bytes or records, -1 when null: any negative size, as brokers read it. `length`: its type
        in versions that are not flexible.
        """
        if compact:
            return (yield from self._varint(what)) - 1
        yield from self._need(length.size, what)
        size: int = length.unpack_from(self._buf, self._pos)[0]
        self._pos += length.size
        return max(size, -1)

    def _string_size(self, compact: bool, what: str) -> Reading:
        """Size of a string, nullable or not: at most 32,767, and -1 when null."""
        size = yield from self._size(compact, INT16, what)
        if size > MAX_STRING:
            raise MalformedFrame(what, self._offset())
        return size

    def _collect(self, size: int, what: str) -> Collecting:
        """The next `size` bytes, copied. The caller bounds `size`."""
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

    def _topic_of(self, compact: bool, by_id: bool, *, is_read: bool = True) -> Naming:
        """A topic: its id, or its name, not null; `NO_TOPIC_ID` if that is above `LONGEST_NAME` or not read."""
        if by_id:
            return (yield from self._collect(TOPIC_ID_SIZE, "topic id"))
        size = yield from self._string_size(compact, "topic name")
        if size < 0:
            raise MalformedFrame("topic name", self._offset())
        if size > LONGEST_NAME or not is_read:
            yield from self._skip(size, "topic name")
            return NO_TOPIC_ID
        return read_text((yield from self._collect(size, "topic name")))

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

    def _skip_string(self, compact: bool, what: str) -> Steps:
        """A string, nullable or not."""
        size = yield from self._string_size(compact, what)
        yield from self._skip(max(0, size), what)

    def _skip_tags(self) -> Steps:
        if self._pos < self._end and not self._buf[self._pos]:
            self._pos += 1
            return
        count = yield from self._varint("tag count")
        for _ in range(count):  # each takes two bytes or more, so a false count ends with the frame
            yield from self._varint("tag")
            size = yield from self._varint("tag size")
            yield from self._skip(size, "tagged field")
            yield from self._pause()

    def _skip_structs(self, size: int, what: str) -> Steps:
        """A compact array of structs that are `size` bytes and a tag buffer each, nullable or not. It may be long: 512
        KiB have room for 30,000 aborted transactions. Those compared at once count as one piece of `work_left`.
        """
        left = yield from self._items(True, size + 1, what)
        while left:
            here = self._plain_structs(left, size)
            if here:
                self._pos += here * (size + 1)
            else:
                yield from self._skip(size, what)
                yield from self._skip_tags()
            left -= here or 1
            yield from self._pause()

    def _plain_structs(self, most: int, size: int) -> int:
        """How many of the next structs of `size` bytes have arrived, up to the first with tags; at most 512: 0.7 us."""
        stride = size + 1
        here = min(most, (self._end - self._pos) // stride, _COMPARED_AT_ONCE)
        tag_counts = self._buf[self._pos + size : self._pos + here * stride : stride]
        return len(tag_counts) - len(tag_counts.lstrip(b"\x00"))
