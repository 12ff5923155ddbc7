"""A record of the log: JSON, so that any console consumer shows it.

    {"v":1,"f":"etl","m":"a1b2c3d4e5f6","s":17,"n":2893472,"e":[["client-id=app,producer_byte_rate",8000000000,30000,90000]]}
    {"v":1,"f":"etl","m":"a1b2c3d4e5f6","s":18,"n":8724615,"x":{"admin":"10.0.0.7:19404"},"e":[]}

    v   the version of this format: 1
    f   the fleet; several may share a topic
    m   the member, a random name for each start of a proxy
    s   the number of this record, starting with 1. Later ones supersede earlier ones, key by key
    n   a random number by which the author recognises its record, because a clone has another one
    x   all facts about the member; without it, those that were advertised last still apply
    r   how many statements it repeats, and their checksum: see `repeats`
    e   statements: key, quota (thousandths of a unit per second), cap and want (parts of `WHOLE`)

A record is either valid as a whole, or ignored, except that facts that are invalid do not make the record invalid,
because caps must count. Whatever one member writes must be valid for all: a new version may add
fields and elements, which older ones ignore, but may not change the meaning of these, nor exceed the bounds below. A
version that does needs its own topic. Above `MAX_FREE_BYTES` a record must be written exactly as `encode` does: anyone
can write to the topic, and a parser for any JSON takes 70 ms for 570 kB of empty lists. Older versions ignore a record
above `MAX_FREE_BYTES` that has facts, which would break the bound, so members do not write such records.
"""

import json
import re
from collections.abc import Mapping
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
MAX_FACTS: Final = 16
MAX_FACT_NAME_LENGTH: Final = 32
MAX_FACT_LENGTH: Final = 128
"""Of a text, in characters."""
_MAX_NUMBER: Final = (1 << 63) - 1
_TEXT: Final = rb'"(?:[^"\\]++|\\.)*+"'
_STATEMENT: Final = rb"\[%s,\d++,\d++,\d++\]" % _TEXT
_FACT: Final = rb"%s:(?:-?+\d++|%s)" % (_TEXT, _TEXT)
_FACTS: Final = rb'(?:"x":\{(?:%s(?:,%s){0,%d}+)?+\},)?+' % (_FACT, _FACT, MAX_FACTS - 1)
_HEAD: Final = rb'\{"v":1,"f":%s,"m":%s,"s":\d++,"n":\d++,%s' % (_TEXT, _TEXT, _FACTS)
#: It never backtracks, so any bytes take at most a few ms.
_is_as_written: Final = re.compile(
    rb'%s"e":\[%s(?:,%s){0,%d}+\]\}' % (_HEAD, _STATEMENT, _STATEMENT, MAX_STATEMENTS - 1)
).fullmatch


class Statement(NamedTuple):
    """What a member advertises for one key."""

    key: str
    quota: int
    cap: int
    want: int


Facts = Mapping[str, int | str]


class Record(NamedTuple):
    """One record; see the module. `facts`, `repeats`: None if it has none."""

    fleet: str
    member: str
    seq: int
    nonce: int
    statements: tuple[Statement, ...]
    facts: Facts | None = None
    repeats: tuple[int, int] | None = None


def encode(record: Record) -> bytes:
    """The bytes to produce."""
    fleet, member, seq, nonce, statements, facts, repeats = record
    more = ({} if facts is None else {"x": facts}) | ({} if repeats is None else {"r": repeats})
    return _json({"v": VERSION, "f": fleet, "m": member, "s": seq, "n": nonce} | more | {"e": statements})


def parse(data: bytes) -> Record | None:
    """The record; None if it is invalid. Accepts any bytes."""
    if len(data) > MAX_RECORD_BYTES or (len(data) > MAX_FREE_BYTES and not _is_as_written(data)):
        return None
    try:
        fields = json.loads(data.decode())
    except (ValueError, RecursionError):
        return None
    return _record(fields) if type(fields) is dict and _is_pair(fields.get("r", [0, 0])) else None


def is_name(text: object) -> bool:
    """Whether this can name a fleet or a member."""
    return type(text) is str and 0 < len(text) <= MAX_NAME_LENGTH and text.isascii() and text.isprintable()


def is_key(text: str) -> bool:
    """Whether a record can contain this key."""
    try:
        return len(_json(text)) <= MAX_KEY_BYTES
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def is_fact(name: object, value: object) -> bool:
    """Whether a member can advertise this: an integer of 64 bits, or a short printable text."""
    if not (is_name(name) and len(str(name)) <= MAX_FACT_NAME_LENGTH):
        return False
    if type(value) is str:
        return len(value) <= MAX_FACT_LENGTH and value.isprintable()
    return _is_from(-_MAX_NUMBER, value, _MAX_NUMBER)


def _facts(found: Any) -> Facts | None:
    """None if they are invalid."""
    if type(found) is not dict or len(found) > MAX_FACTS:
        return None
    return found if all(is_fact(name, value) for name, value in found.items()) else None


def _record(fields: Any) -> Record | None:
    fleet, member, seq, nonce, entries = [fields.get(name) for name in ("f", "m", "s", "n", "e")]
    if not (fields.get("v") == VERSION and is_name(fleet) and is_name(member)):
        return None
    if not (_is_from(1, seq, _MAX_NUMBER) and _is_from(0, nonce, _MAX_NUMBER)):
        return None
    if type(entries) is not list or len(entries) > MAX_STATEMENTS:
        return None
    statements = tuple(each for each in map(_statement, entries) if each is not None)
    if len(statements) < len(entries):
        return None
    return Record(fleet, member, seq, nonce, statements, _facts(fields.get("x")), tuple(fields.get("r", ())) or None)


def _is_pair(found: Any) -> bool:
    return type(found) is list and len(found) == 2 and all(_is_from(0, each, _MAX_NUMBER) for each in found)


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
