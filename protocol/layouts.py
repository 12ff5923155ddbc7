"""Layouts of messages, made of kio's schemas: the fields of each struct, in the order of the wire."""

from collections.abc import Mapping, Sequence
from dataclasses import Field as SchemaField
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import Any, Final, final, get_args, get_origin

from kio.index import load_response_schema
from kio.static.protocol import Entity

from protocol.wire import INT16, INT32

_SIZES: Final = {
    "bool": 1, "int8": 1, "uint8": 1,
    "int16": 2, "uint16": 2, "error_code": 2,
    "int32": 4, "uint32": 4, "timedelta_i32": 4,
    "int64": 8, "uint64": 8, "float64": 8, "timedelta_i64": 8, "datetime_i64": 8,
    "uuid": 16,
}  # fmt: skip
_LENGTHS: Final = {"string": INT16, "bytes": INT32, "records": INT32}


@final
class Layout:
    """A message or a struct.

    is_flexible  its version has compact lengths (KIP-482)
    has_tags     a tag buffer follows the fields; `tagged`: its tagged fields, by tag
    """

    __slots__ = ("fields", "has_tags", "is_flexible", "tagged")

    def __init__(
        self, fields: "Sequence[Field]", tagged: "Mapping[int, Field]", *, is_flexible: bool, has_tags: bool
    ) -> None:
        self.fields: Final = fields
        self.tagged: Final = tagged
        self.is_flexible: Final = is_flexible
        self.has_tags: Final = has_tags


@final
class Field:
    """A field, or an array of such values.

    name      kio's
    size      bytes of a value; 0: a struct, a string or bytes
    struct    the layout of a value that is a struct
    length    type of the length of a string or of bytes, in versions that are not flexible
    is_array, is_nullable, is_error_code
    """

    __slots__ = ("is_array", "is_error_code", "is_nullable", "length", "name", "size", "struct")

    def __init__(self, field: SchemaField[Any]) -> None:
        """Raises TypeError for a nullable struct, which no message read here has."""
        annotation: Any = field.type
        kafka_type = field.metadata.get("kafka_type")  # a struct has none
        self.name: Final = field.name
        self.is_nullable: Final = get_origin(annotation) is UnionType
        if self.is_nullable:
            annotation = next(argument for argument in get_args(annotation) if argument is not type(None))
        self.is_array: Final = get_origin(annotation) is tuple
        if self.is_array:
            annotation = get_args(annotation)[0]
        elif self.is_nullable and kafka_type is None:
            raise TypeError(f"{field.name}: a nullable struct")
        self.struct: Final[Layout | None] = layout_of(annotation) if kafka_type is None else None
        self.size: Final = _SIZES.get(kafka_type or "", 0)
        self.length: Final = _LENGTHS.get(kafka_type or "")
        self.is_error_code: Final = kafka_type == "error_code"


@cache
def layout_of(entity: type[Entity]) -> Layout:
    """The layout of a type of kio. Raises as `Field`."""
    untagged = [Field(each) for each in fields(entity) if "tag" not in each.metadata]
    tagged = {int(each.metadata["tag"]): Field(each) for each in fields(entity) if "tag" in each.metadata}
    return Layout(untagged, tagged, is_flexible=entity.__flexible__, has_tags=entity.__flexible__)


@cache
def response_layout(api_key: int, version: int, until: str = "") -> Layout:
    """The layout of a response, or of its part up to and with a field."""
    whole = layout_of(load_response_schema(api_key, version))
    if not until:
        return whole
    names = [field.name for field in whole.fields]
    part = whole.fields[: names.index(until) + 1]
    return Layout(part, {}, is_flexible=whole.is_flexible, has_tags=False)
