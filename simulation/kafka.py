"""Kafka's messages, as far as the models speak them, written from the protocol's definition and not with the proxy's
code: if they disagree, one of them is wrong.

A layout is written as in `i [s 5+q]`: a number of 4 bytes, and an array of structures with a string and, starting with
version 5, a number of 8 bytes. A field that a version does not have is left out of its encoding and decoded as None, so
the models use the same tuples for all versions.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import groupby
from struct import Struct
from typing import Any, Final, NamedTuple

PRODUCE, FETCH, METADATA, FIND_COORDINATOR, HEARTBEAT, API_VERSIONS, INIT_PRODUCER_ID = 0, 1, 3, 10, 12, 18, 22
ADD_PARTITIONS, END_TXN, LOG_DIRS, CLIENT_QUOTAS, ALTER_QUOTAS = 24, 26, 35, 48, 49
NONE, UNKNOWN_TOPIC, NOT_LEADER, NOT_COORDINATOR, UNSUPPORTED_VERSION = 0, 3, 6, 16, 35
OUT_OF_ORDER, DUPLICATE, OLD_EPOCH, BAD_STATE, STORAGE = 45, 46, 47, 48, 56

#: By API: the versions that the models speak, and the first of these with tagged fields.
VERSIONS: Final = {
    PRODUCE: (3, 10, 9),
    FETCH: (4, 12, 12),
    METADATA: (1, 9, 9),
    FIND_COORDINATOR: (1, 2, 3),
    HEARTBEAT: (1, 3, 4),
    API_VERSIONS: (0, 2, 3),
    INIT_PRODUCER_ID: (0, 1, 2),
    ADD_PARTITIONS: (0, 2, 3),
    END_TXN: (0, 2, 3),
    LOG_DIRS: (4, 4, 2),
    CLIENT_QUOTAS: (1, 1, 1),
    ALTER_QUOTAS: (1, 1, 1),
}
#: By API: the layouts of the request and of the response.
LAYOUTS: Final = {
    PRODUCE: ("s h i [s [i z]]", "[s [i h q q 5+q 8+[i s] 8+s]] i 10+t"),
    FETCH: (
        "i i i i b 7+i 7+i [s [i 9+i q 12+i 5+q i]] 7+[s [i]] 11+s",
        "i 7+h 7+i [s [i h q q 5+q [q q] 11+i z]]",
    ),
    METADATA: ("[s 9+t] 4+? 8+? 8+?", "3+i [i s i s] 2+s i [h s ? [h i i 7+i [i] [i] 5+[i]] 8+i] 8+i"),
    FIND_COORDINATOR: ("s b", "i h s i s i"),
    HEARTBEAT: ("s i s 3+s", "i h"),
    API_VERSIONS: ("", "h [h h h] 1+i"),
    INIT_PRODUCER_ID: ("s i", "i h q h"),
    ADD_PARTITIONS: ("s q h [s [i]]", "i [s [i h]]"),
    END_TXN: ("s q h ?", "i h"),
    LOG_DIRS: ("[s [i]]", "i h [h s [s [i q q ?]] q q]"),
    CLIENT_QUOTAS: ("[s b s] ?", "i h s [[s s] [s d]]"),
    ALTER_QUOTAS: ("[[s s] [s d ?]] ?", "i [h s [s s]]"),
}


class Type(NamedTuple):
    """`decode` takes the bytes and where the value begins, and returns the value and where it ends."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes, int], tuple[Any, int]]


def _number(code: str) -> Type:
    form = Struct(">" + code)
    return Type(form.pack, lambda data, at: (form.unpack_from(data, at)[0], at + form.size))


def _write_varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] > 127:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


#: The length of something that may be missing (-1), with tagged fields.
_COMPACT: Final = Type(
    lambda size: _write_varint(size + 1), lambda data, at: ((found := _read_varint(data, at))[0] - 1, found[1])
)


def _sized(length: Type, *, is_text: bool) -> Type:
    def encode(value: Any) -> bytes:
        if value is None:
            return length.encode(-1)
        data: bytes = value.encode() if is_text else value
        return length.encode(len(data)) + data

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        size, begin = length.decode(data, at)
        end = begin + max(0, size)
        value = data[begin:end] if size >= 0 else None
        return (value.decode() if is_text and value is not None else value), end

    return Type(encode, decode)


def _structure(codes: Sequence[str], types: Mapping[str, Type]) -> Type:
    """Numbers that follow each other are read and written at once."""
    groups: list[tuple[int, Struct | None, Type]] = []
    end = 0
    for is_number, group in groupby(codes, lambda code: code in _NUMBERS):
        for each in ["".join(group)] if is_number else group:
            end += len(each) if is_number else 1
            groups.append((end, Struct(">" + each) if is_number else None, types.get(each, _ABSENT)))

    def encode(values: Sequence[Any]) -> bytes:
        parts, at = [], 0
        for end, form, one in groups:
            parts.append(one.encode(values[at]) if form is None else form.pack(*values[at:end]))
            at = end
        return b"".join(parts)

    def decode(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        values: list[Any] = []
        for _, form, one in groups:
            if form is None:
                value, at = one.decode(data, at)
                values.append(value)
            else:
                values += form.unpack_from(data, at)
                at += form.size
        return tuple(values), at

    return Type(encode, decode)


def _array(length: Type, one: Type) -> Type:
    def encode(values: Sequence[Any] | None) -> bytes:
        return length.encode(-1) if values is None else length.encode(len(values)) + b"".join(map(one.encode, values))

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        count, at = length.decode(data, at)
        values = []
        for _ in range(count):
            value, at = one.decode(data, at)
            values.append(value)
        return (None if count < 0 else values), at

    return Type(encode, decode)


def _encode_tags(tags: Mapping[int, bytes]) -> bytes:
    fields = [_write_varint(tag) + _write_varint(len(data)) + data for tag, data in tags.items()]
    return _write_varint(len(fields)) + b"".join(fields)


def _decode_tags(data: bytes, at: int) -> tuple[dict[int, bytes], int]:
    count, at = _read_varint(data, at)
    found = {}
    for _ in range(count):
        tag, at = _read_varint(data, at)
        size, at = _read_varint(data, at)
        found[tag], at = data[at : at + size], at + size
    return found, at


_ABSENT: Final = Type(lambda value: b"", lambda data, at: (None, at))
_TAGS: Final = Type(_encode_tags, _decode_tags)
_NUMBERS: Final = {code: _number(code) for code in "bhiqd?"}


class _Reader:
    """Of a layout, for one version."""

    def __init__(self, text: str, version: int, *, has_tags: bool) -> None:
        self._tokens = iter(re.findall(r"(?:(\d+)\+)?([bhiqd?szt[\]])", text))
        self._version = version
        self._has_tags = has_tags
        self._length = _COMPACT if has_tags else _NUMBERS["i"]
        self._types = _NUMBERS | {
            "s": _sized(_COMPACT if has_tags else _NUMBERS["h"], is_text=True),
            "z": _sized(self._length, is_text=False),
            "t": _TAGS,
        }

    def structure(self) -> Type:
        """Up to the end of an array, or of the layout. An array of one field has values, not structures."""
        codes: list[str] = []
        types = dict(self._types)
        is_array = False
        for since, code in self._tokens:
            if code == "]":
                is_array = True
                break
            name = code
            if code == "[":
                name = f"array {len(codes)}"
                types[name] = _array(self._length, self.structure())
            codes.append(name if int(since or 0) <= self._version else "absent")
        if is_array and len(codes) == 1:
            return types[codes[0]]
        if self._has_tags and codes[-1:] != ["t"]:
            return _without(_structure([*codes, "t"], types))
        return _structure(codes, types)


def _without(whole: Type) -> Type:
    """With tagged fields at its end that the models do not have."""

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        values, at = whole.decode(data, at)
        return values[:-1], at

    return Type(lambda values: whole.encode((*values, {})), decode)


class Layout:
    """A version of a message."""

    def __init__(self, text: str, version: int, *, has_tags: bool = False) -> None:
        self.encode, self._decode = _Reader(text, version, has_tags=has_tags).structure()

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """The values of a message. Raises ValueError if there are bytes left behind it."""
        values, end = self._decode(data, 0)
        if end != len(data):
            raise ValueError(f"{len(data) - end} bytes are left")
        return tuple(values)


def has_tags(api: int, version: int) -> bool:
    """Whether a message, and its header, have tagged fields."""
    return version >= VERSIONS[api][2]


@cache
def request(api: int, version: int) -> Layout:
    return Layout(LAYOUTS[api][0], version, has_tags=has_tags(api, version))


@cache
def response(api: int, version: int) -> Layout:
    return Layout(LAYOUTS[api][1], version, has_tags=has_tags(api, version))


NODE_ENDPOINTS: Final = Layout("[i s i s]", 0, has_tags=True)
"""The tagged field 0 of Produce responses since version 10: nodes, and where they are. Its own tags are left out."""
