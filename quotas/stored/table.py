"""The latest valid record of each entity in a quotas topic: bounded, whatever someone has written."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from quotas.entity import AnyEntity
from quotas.entry import QuotaEntry
from quotas.problems import InvalidValue
from quotas.stored.record import Record, encode, key_of, parse

MAX_ENTITIES: Final = 10_000
MAX_BYTES: Final = 8 * 1024 * 1024
"""Of all records that are kept: 30 MB of memory."""


class Table:
    """Records are applied in the order of the log.

    offset   the record that was applied last; -1: none was
    latest   its record, if it was valid
    """

    def __init__(self) -> None:
        self.offset = -1
        self.latest: Record | None = None
        self._records: dict[bytes, Record] = {}
        self._sizes: dict[bytes, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def records(self) -> Mapping[AnyEntity, Record]:
        """By entity."""
        return {record.entity: record for record in self._records.values()}

    def get(self, key: bytes) -> Record | None:
        """The record with this key."""
        return self._records.get(key)

    @property
    def entries(self) -> tuple[QuotaEntry, ...]:
        """What can be enforced."""
        return tuple(record.entry for record in self._records.values() if record.entry is not None)

    @property
    def not_enforced(self) -> Mapping[str, int]:
        """The limits that Kafka's API has set and that are not enforced, and of how many entities."""
        return Counter(name for record in self._records.values() for name in record.kafka)

    def check(self, records: Iterable[Record]) -> None:
        """Raise InvalidValue if one of these records would be ignored after those before it: it must not be written."""
        trial = Table()
        trial._records, trial._sizes, trial._bytes = dict(self._records), dict(self._sizes), self._bytes
        for record in records:
            trial.apply(0, *encode(record))

    def apply(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """The next record, any bytes; a `value` of None removes its key. Raises InvalidValue: it is ignored, so the
        last valid record of its entity stays in force.
        """
        self.offset = offset
        if value is None:
            if self.latest is not None and key != key_of(self.latest.entity):  # else after the record of its author
                self.latest = None
            self._drop(key or b"")
            return
        self.latest = None
        record = parse(key, value)
        assert key is not None  # noqa: S101 - `parse` has refused it
        if not record.fields:
            self._drop(key)
        else:
            size = len(key) + len(value)
            if key not in self._records and len(self._records) >= MAX_ENTITIES:
                raise InvalidValue(f"there are {MAX_ENTITIES} entities already")
            if self._bytes - self._sizes.get(key, 0) + size > MAX_BYTES:
                raise InvalidValue(f"all records together would be larger than {MAX_BYTES} bytes")
            self._drop(key)
            self._records[key], self._sizes[key] = record, size
            self._bytes += size
        self.latest = record

    def _drop(self, key: bytes) -> None:
        self._records.pop(key, None)
        self._bytes -= self._sizes.pop(key, 0)
