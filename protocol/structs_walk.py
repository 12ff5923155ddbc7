"""Arrays of structs of a fixed size, skipped at a fixed stride while bytes arrive."""

from protocol.walk import FrameWalk, Steps

_COMPARED_AT_ONCE = 512  # structs: 0.7 us


class StructsWalk(FrameWalk):
    """Walks a frame that has such arrays. They may be long: 512 KiB have room for 30,000 aborted transactions."""

    def _skip_plain_structs(self, size: int, left: int) -> int:
        """Skips structs of `size` bytes and an empty tag buffer that are complete. Returns how many are left.

        Each is marked by a tag count of 0. Those compared at once count as one piece of `work_left`.
        """
        stride = size + 1
        while left and self.work_left > 0:
            here = min(left, (self._end - self._pos) // stride, _COMPARED_AT_ONCE)
            tag_counts = self._buf[self._pos + size : self._pos + here * stride : stride]
            plain = len(tag_counts) - len(tag_counts.lstrip(b"\x00"))
            if not plain:
                break
            self._pos += plain * stride
            self.work_left -= 1
            left -= plain
        return left

    def _skip_structs(self, size: int, what: str) -> Steps:
        """A compact array of structs that are `size` bytes and a tag buffer each, nullable or not."""
        left = yield from self._count(size + 1, what)
        while left:
            left = self._skip_plain_structs(size, left)
            if self.work_left <= 0 and self._pos < self._end:
                yield
            elif left:
                self.work_left -= 1
                yield from self._skip(size, what)
                yield from self._skip_tags()
                left -= 1
