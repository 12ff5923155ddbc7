"""How far the client of one connection is behind, from one Fetch response in a second."""

from typing import Final, final

from protocol.fetch_lag import first_position

_MAX_PARTITIONS: Final = 1_000
#: What was read longer ago is of a partition that another consumer may have now.
_KEPT_NS: Final = 300_000_000_000


@final
class Lag:
    """`is_due`: read the next response."""

    __slots__ = ("_behind", "is_due")

    def __init__(self) -> None:
        self.is_due = True
        #: Records, and when they were counted, by partition.
        self._behind: dict[bytes, tuple[int, int]] = {}

    def read(self, buf: bytearray, pos: int, end: int, version: int, now_ns: int) -> None:
        """The response whose correlation id is at `pos`."""
        found = first_position(buf, pos, end, version)
        if found is None:
            return
        self.is_due = False
        if found.partition:
            if found.partition in self._behind or len(self._behind) < _MAX_PARTITIONS:
                self._behind[found.partition] = found.behind, now_ns
        else:
            self._behind = dict.fromkeys(self._behind or (b"",), (0, now_ns))

    def records(self, now_ns: int) -> int | None:
        """In the partitions that are known; None: none is."""
        found = [behind for behind, at_ns in self._behind.values() if now_ns - at_ns < _KEPT_NS]
        return sum(found) if found else None
