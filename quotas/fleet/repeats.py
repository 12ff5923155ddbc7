"""Records that repeat what their author advertised before, so that a large fleet writes and reads little while little
changes.

    {"v":1,"f":"etl","m":"a1b2c3d4e5f6","s":99,"n":55,"r":[50,81203423151],"e":[]}

Such a record stands for one with all statements of its author that have a cap or a want: for each key the one with the
highest number before this place in the log. `Repeats` puts them back before `caps` sees the record, so members apply
the *expanded* log, which has all of these statements in it. A record that repeats counts only if its number is above
all numbers of its author before it; otherwise it is a late one or a copy, and repeats nothing.

Why the bound of `caps` holds for the expanded log. All members, its author too, put the same statements into a record,
since these follow from the log alone, not from clocks. A member that has not read all of them, because it began to read
later, finds another checksum: then it has missed something, and begins to read again (S7), as it does if there is more
than it can keep. It remains to show S2 for the statements that are put back: each has the cap that the author has read
back last, or one of those that it had sent and not read back yet, and its use is at most the least of these. If it
reads back one of these before the record that repeats, then that one is repeated, as it reads both in the order of the
log.

A member sends such a record only if it has read back all that it has sent about its keys, so that the checksum is right
when the record arrives. Versions before this one take such a record for one without statements, and would count its
author's caps no more. So members repeat only if all that they see advertise that they can, and only in fleets with a
`max_members` above 200, which those versions did not support.
"""

from typing import Final
from zlib import crc32

from quotas.fleet.caps import MAX_ENTRIES
from quotas.fleet.record import Record, Statement

REPEATS: Final = "repeats"
"""The fact of a member that understands such records."""
ASKS: Final = "asks"
"""The fact of a member that has missed what others repeat: all advertise their statements again."""
_MAX_RELEASED: Final = 1_000
_MODULUS: Final = 1 << 53


class _Stated:
    """What one member advertises.

    latest        its statement with the highest number for each key, with that number; those released, too, because
                  older records may arrive later
    seq           the highest number of its records
    count, total  of those with a cap or a want: how many, and the sum of their checksums
    """

    def __init__(self) -> None:
        self.latest: dict[str, tuple[int, Statement]] = {}
        self.count = self.total = self.seq = self.heard_ns = 0
        self._held: tuple[Statement, ...] | None = None

    def put(self, seq: int, statement: Statement) -> None:
        last = self.latest.get(statement.key)
        if last is not None and seq <= last[0]:
            return
        self._add(None if last is None else last[1], -1)
        self._add(statement, 1)
        self.latest[statement.key] = seq, statement
        self._held = None
        if len(self.latest) > self.count + _MAX_RELEASED:
            self.latest = {key: each for key, each in self.latest.items() if _is_held(each[1])}

    def held(self) -> tuple[Statement, ...]:
        """Those with a cap or a want."""
        if self._held is None:
            self._held = tuple(each for _, each in self.latest.values() if _is_held(each))
        return self._held

    def _add(self, statement: Statement | None, sign: int) -> None:
        if statement is not None and _is_held(statement):
            self.count += sign
            self.total = (self.total + sign * crc32(repr(tuple(statement)).encode("utf-8", "surrogatepass"))) % _MODULUS


def _is_held(statement: Statement) -> bool:
    return bool(statement.cap or statement.want)


class Repeats:
    """What each member advertises, as of the record that was read last."""

    def __init__(self) -> None:
        self._of: dict[str, _Stated] = {}
        self._size = 0

    def expanded(self, record: Record, now_ns: int) -> Record | None:
        """The record with the statements that it repeats. None: some of them were missed."""
        stated = self._of.setdefault(record.member, _Stated())
        stated.heard_ns = now_ns
        self._size -= len(stated.latest)
        for each in record.statements:
            stated.put(record.seq, each)
        self._size += len(stated.latest)
        if self._size > MAX_ENTRIES:
            self.clear()
        is_newest = record.seq > stated.seq
        stated.seq = max(stated.seq, record.seq)
        if record.repeats is None or not is_newest:
            return record
        if (stated.count, stated.total) != record.repeats:
            self._size -= len(stated.latest)
            self._of.pop(record.member, None)  # its next statements fill it again
            return None
        return record._replace(statements=stated.held())

    def held(self, member: str) -> tuple[dict[str, Statement], tuple[int, int]]:
        """The statements of a member that would be repeated, and their number and checksum."""
        stated = self._of.get(member, _Stated())
        return {each.key: each for each in stated.held()}, (stated.count, stated.total)

    def forget(self, before_ns: int) -> None:
        """Those from whom nothing was heard since."""
        self._of = {member: stated for member, stated in self._of.items() if stated.heard_ns > before_ns}
        self._size = sum(len(stated.latest) for stated in self._of.values())

    def clear(self) -> None:
        """Nothing is known."""
        self._of, self._size = {}, 0
