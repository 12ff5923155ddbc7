"""A record of the log: JSON, so that any console consumer shows it.

    {"v":1,"f":"etl","m":"a1b2c3d4e5f6","s":17,"n":2893472,"e":[["client-id=app,producer_byte_rate",8000000000,30000,90000]]}

    v   the version of this format: 1
    f   the fleet; several may share a topic
    m   the member, a random name for each start of a proxy
    s   the number of this record, from 1 on. Later ones supersede earlier ones, key by key
    n   a random number, by which the author recognises its record; that of a clone differs
    e   statements: key, quota (thousandths of a unit per second), cap and want (parts of `WHOLE`)

A record is valid as a whole or void. Whatever one member writes must be valid for all: a new version may add fields and
elements, which older ones ignore, but may not change the meaning of these, nor exceed the bounds below. What does needs
a topic of its own. Above `MAX_FREE_BYTES` a record must be written exactly as `encode` does: anyone may write to the
topic, and a parser for any JSON takes 70 ms for 570 kB of empty lists.
"""

import json
import re
from typing import Any, Final, NamedTuple

from quotas.fleet.parameters import WHOLE

VERSION: Final = 1
MAX_RECORD_BYTES: Final = 600_000
"""Below the 1 MiB that brokers accept by default."""
MAX_FREE_BYTES: Final = 16_384
"""Of a record that may be any JSON: 2 ms."""
MAX_STATEMENTS: Final = 1_000
MAX_KEY_BYTES: Final = 400
"""Of a key as JSON: `MAX_STATEMENTS` of the longest fit into a record."""
MAX_NAME_LENGTH: Final = 64
MAX_QUOTA: Final = 1_000 << 63
"""Kafka's largest LONG, in thousandths."""
_MAX_NUMBER: Final = (1 << 63) - 1
_TEXT: Final = rb'"(?:[^"\\]++|\\.)*+"'
_STATEMENT: Final = rb"\[%s,\d++,\d++,\d++\]" % _TEXT
_HEAD: Final = rb'\{"v":1,"f":%s,"m":%s,"s":\d++,"n":\d++,' % (_TEXT, _TEXT)
#: Nothing is tried twice, so that it takes a few ms for any bytes.
_is_as_written: Final = re.compile(
    rb'%s"e":\[%s(?:,%s){0,%d}+\]\}' % (_HEAD, _STATEMENT, _STATEMENT, MAX_STATEMENTS - 1)
).fullmatch


class Statement(NamedTuple):
    """What a member states of one key."""

    key: str
    quota: int
    cap: int
    want: int


class Record(NamedTuple):
    """One record; see the module."""

    fleet: str
    member: str
    seq: int
    nonce: int
    statements: tuple[Statement, ...]


def encode(record: Record) -> bytes:
    """The bytes to produce."""
    fleet, member, seq, nonce, statements = record
    return _json({"v": VERSION, "f": fleet, "m": member, "s": seq, "n": nonce, "e": statements})


def parse(data: bytes) -> Record | None:
    """The record; None: void. Accepts any bytes."""
    if len(data) > MAX_RECORD_BYTES or (len(data) > MAX_FREE_BYTES and not _is_as_written(data)):
        return None
    try:
        fields = json.loads(data.decode())
    except (ValueError, RecursionError):
        return None
    return _record(fields) if type(fields) is dict else None


def is_name(text: object) -> bool:
    """Whether this can name a fleet or a member."""
    return type(text) is str and 0 < len(text) <= MAX_NAME_LENGTH and text.isascii() and text.isprintable()


def is_key(text: str) -> bool:
    """Whether a record can contain this key."""
    try:
        return len(_json(text)) <= MAX_KEY_BYTES
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _record(fields: Any) -> Record | None:
    fleet, member, seq, nonce, entries = [fields.get(name) for name in ("f", "m", "s", "n", "e")]
    if not (fields.get("v") == VERSION and is_name(fleet) and is_name(member)):
        return None
    if not (_is_from(1, seq, _MAX_NUMBER) and _is_from(0, nonce, _MAX_NUMBER)):
        return None
    if type(entries) is not list or len(entries) > MAX_STATEMENTS:
        return None
    statements = tuple(each for each in map(_statement, entries) if each is not None)
    return Record(fleet, member, seq, nonce, statements) if len(statements) == len(entries) else None


def _statement(entry: Any) -> Statement | None:
    if type(entry) is not list or len(entry) < 4:
        return None
    key, quota, cap, want = entry[:4]
    if type(key) is not str or len(key) > MAX_KEY_BYTES:
        return None
    # A cap below zero would be credit for others; there is no more than WHOLE.
    is_valid = _is_from(1, quota, MAX_QUOTA) and _is_from(0, cap, WHOLE) and _is_from(0, want, WHOLE)
    return Statement(key, quota, cap, want) if is_valid else None


def _is_from(least: int, number: Any, most: int) -> bool:
    return type(number) is int and least <= number <= most


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
