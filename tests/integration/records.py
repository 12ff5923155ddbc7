"""What the clients produce."""

from collections.abc import Iterable, Iterator

RECORDS = 40
LARGE_BYTES = 600_000


def values(name: str) -> list[bytes]:
    """Records that are told apart by `name`: small ones, and one that no single read of the proxy holds."""
    return [f"{name}-{number}".encode() for number in range(RECORDS)] + [f"{name}-".encode() + b"x" * LARGE_BYTES]


def missing(expected: dict[str, list[bytes]], received: Iterable[bytes]) -> dict[str, int]:
    """How many values of each name are missing, or there more than once; empty when each came exactly once."""
    counted: dict[bytes, int] = {}
    for value in received:
        counted[value] = counted.get(value, 0) + 1
    wrong = {name: sum(counted.get(value) != 1 for value in each) for name, each in expected.items()}
    return {name: count for name, count in wrong.items() if count}


def all_of(expected: dict[str, list[bytes]]) -> Iterator[bytes]:
    """All values, one after the other."""
    for each in expected.values():
        yield from each


def numbered(number: int, size: int) -> bytes:
    """A record that `librdkafka.numbers_of` reads back."""
    return b"%08d" % number + bytes(size - 8)
