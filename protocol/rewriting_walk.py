"""The base of walks that write a message anew: they consume its bytes as they arrive, field by field of its layout.

Each count and length must fit into the frame. Tagged fields that the layout does not have are removed: one might
contain a broker's address, and every reader must accept a message without them (KIP-482).
"""

from collections.abc import Generator
from typing import ClassVar

from protocol.addresses import NodeAddresses
from protocol.errors import MalformedFrame, TooManyItems, TruncatedFrame
from protocol.layouts import Field, Layout, response_layout
from protocol.walk import UNBOUNDED, FrameWalk, Reading, Steps
from protocol.wire import INT32, encode_count, encode_varint, read_text, varint_size


class CopyingWalk(FrameWalk):
    """Consumes a message and builds a copy of it. Subclasses change fields: they override `_copy_field`, or
    `_copy_value` for the values of arrays as well.

    A piece of work (`work_left`) takes about 1 us: a field, an item of an array, a tag.
    """

    is_done = False
    """Whether `out` is complete."""
    items_left = UNBOUNDED
    """How many more items of arrays, and tags, the message may have."""

    def __init__(self, layout: Layout, frame_length: int, start: int = 0) -> None:
        """See `FrameWalk`."""
        super().__init__(frame_length, start)
        self.out = bytearray()
        """The copy, as far as it has been written."""
        self._layout = layout
        self._compact = layout.is_flexible

    def _whole(self) -> Steps:
        yield from self._walk()
        self._check_end()
        self.is_done = True

    def _walk(self) -> Steps:
        yield from self._copy_struct(self._layout)

    def _copy_struct(self, layout: Layout) -> Steps:
        for field in layout.fields:
            self.work_left -= 1
            yield from self._copy_field(field)
        if layout.has_tags:
            yield from self._copy_tags(layout)

    def _copy_field(self, field: Field) -> Steps:
        if not field.is_array:
            yield from self._copy_value(field)
            return
        count = yield from self._read_count(field)
        self._write_count(count)
        for _ in range(count):
            yield from self._copy_value(field)
            yield from self._pause()

    def _copy_value(self, field: Field) -> Steps:
        """One value: of a field, or of an array."""
        if field.struct is not None:
            yield from self._copy_struct(field.struct)
        elif field.length is None:
            yield from self._copy(field.size, field.name)
        else:
            size = yield from self._size(self._compact, field.length, field.name)
            width = varint_size(size + 1) if self._compact else field.length.size
            self.out += self._buf[self._pos - width : self._pos]
            yield from self._copy(max(0, size), field.name)

    def _copy(self, size: int, what: str) -> Steps:
        """Copies `size` bytes, as many at a time as have arrived."""
        if size > self._end - self._pos:
            self._check_left(size, what)
        while size > self._end - self._pos:
            size -= self._end - self._pos
            self.out += self._buf[self._pos : self._end]
            self._pos = self._end
            yield
        self.out += self._buf[self._pos : self._pos + size]
        self._pos += size

    def _read_count(self, field: Field) -> Reading:
        """The number of items of an array, -1 for null. Nothing is written."""
        at = self._offset()
        count = yield from self._size(self._compact, INT32, field.name)
        if count < 0 and not field.is_nullable:
            raise MalformedFrame(field.name, at)
        if count > self._limit - self._pos:  # an item takes a byte or more
            raise TruncatedFrame(field.name, at)
        self._count_items(count)
        return count

    def _write_count(self, count: int) -> None:
        self.out += encode_count(count, self._compact)

    def _count_items(self, count: int) -> None:
        self.items_left -= max(0, count)
        if self.items_left < 0:
            raise TooManyItems(self._offset())

    def _copy_tags(self, layout: Layout) -> Steps:
        """Copies the tagged fields that the layout has."""
        if self._pos < self._end and not self._buf[self._pos]:
            self._pos += 1
            self.out.append(0)
            return
        start, known = len(self.out), 0
        count = yield from self._varint("tag count")
        self._count_items(count)
        for _ in range(count):  # each takes two bytes or more, so a false count ends with the frame
            tag = yield from self._varint("tag")
            size = yield from self._varint("tag size")
            field = layout.tagged.get(tag)
            if field is None:
                yield from self._skip(size, "tagged field")
            else:
                known += 1
                yield from self._copy_tag(tag, size, field)
            yield from self._pause()
        self.out[start:start] = encode_varint(known)

    def _copy_tag(self, tag: int, size: int, field: Field) -> Steps:
        before, self.out = self.out, bytearray()
        at = self._offset()
        yield from self._copy_field(field)
        if self._offset() - at != size:
            raise MalformedFrame(f"tag {tag}: its size is not its content's", at)
        before += encode_varint(tag) + encode_varint(len(self.out)) + self.out
        self.out = before


class RewritingWalk(CopyingWalk):
    """Builds what the client receives instead of a response.

    Call `advance` until `is_done`: with more bytes, or, where `work_left` is 0 or less, with the same bytes in a later
    turn, also where they were all consumed. While it is not done, `frame_left` is above 0.
    Then the client receives the frame length `len(out) + frame_left`, `out`, and the frame's other bytes unchanged.

    `out` is never longer than what was consumed plus, for each address in it, the length of the proxy's host.
    """

    api_key: ClassVar[int]
    until: ClassVar[str] = ""
    """The last field that is read; "": the last one."""

    def __init__(self, version: int, frame_length: int, addresses: NodeAddresses) -> None:
        """The walk of one response.

        Args:
            version: of the request that is answered.
            frame_length: bytes of the response from its correlation id on.
        """
        super().__init__(response_layout(self.api_key, version, self.until), frame_length)
        self._addresses = addresses

    def _walk(self) -> Steps:
        yield from self._copy(4, "correlation id")
        if self._compact:  # all of the APIs that are rewritten have a flexible response header then
            yield from self._skip_tags()
            self.out.append(0)
        yield from super()._walk()

    def _read_text(self, what: str) -> Generator[None, None, str]:
        """The text of a string that may not be null. Nothing is written."""
        size = yield from self._string_size(self._compact, what)
        if size < 0:
            raise MalformedFrame(what, self._offset())
        return read_text((yield from self._collect(size, what)))
