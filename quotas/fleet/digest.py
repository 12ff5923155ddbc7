"""Which limits a member shares, in 50 characters, by which others find out what it lacks.

    12:3f0c8a11d2e4:000000000000:a1b2c3d4e5f6:9182736455aa

The number of limits, then for each of four parts, into which their names are divided, the sum of their hashes: modulo
2^48, in hexadecimal. If a member lacks one limit of a part, the difference of the sums is the hash of that limit.
"""

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

PARTS: Final = 4
MAX_NAMED: Final = 10_000
"""Limits whose names are kept. There may be a million, and they are only needed for a line in the log."""
_MODULUS: Final = 1 << 48
_is_digest: Final = re.compile(rf"\d{{1,9}}(?::[0-9a-f]{{12}}){{{PARTS}}}", re.ASCII).fullmatch


class Comparison(NamedTuple):
    """How the limits of another member differ.

    names         those that it lacks, as far as these can be found
    lacks, extra  how many it lacks, and how many it has in addition, at least
    """

    names: tuple[str, ...]
    lacks: int
    extra: int


SAME: Final = Comparison((), 0, 0)


class LimitNames:
    """The limits of one member. `digest`: what it advertises."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: list[dict[int, str]] = [{} for _ in range(PARTS)]
        self._sums = [0] * PARTS
        self._count = 0
        for name in set(names):
            number = int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=7).digest())
            part, number = number % PARTS, number // 256
            self._sums[part] = (self._sums[part] + number) % _MODULUS
            self._count += 1
            if self._count <= MAX_NAMED:
                self._names[part][number] = name
        self.digest: Final = ":".join([str(self._count), *(f"{each:012x}" for each in self._sums)])

    def compared(self, digest: object) -> Comparison:
        """With the limits of a member; the same for what is not a digest."""
        if not (isinstance(digest, str) and digest != self.digest and _is_digest(digest)):
            return SAME
        count, *sums = digest.split(":")
        found: list[str] = []
        for names, mine, theirs in zip(self._names, self._sums, [int(each, 16) for each in sums], strict=True):
            if theirs == 0:
                found += names.values()
            else:
                name = names.get((mine - theirs) % _MODULUS)
                found += [] if name is None else [name]
        fewer = self._count - int(count)
        return Comparison(tuple(sorted(found)), max(len(found), fewer), max(0, len(found) - fewer))
