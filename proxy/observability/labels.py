"""Label values of metrics: printable, and of bounded length.

User names and client ids come from the wire: up to 32,767 bytes each, with any character. Parsers of the exposition
format disagree about control characters, so none is written. Two names may give one label value: callers add such
series up, and never write one series twice.
"""

import zlib
from typing import Final

from quotas.entity import Default, Entity, Name, Named

OTHER: Final = "other"
"""The label value of what is counted together, after a bound on the number of series."""

MAX_LABEL_CHARS: Final = 256
REPLACEMENT: Final = "\ufffd"
_KEPT_CHARS: Final = MAX_LABEL_CHARS - 9


def label_value(name: str) -> str:
    """The name with U+FFFD for each character that is not printable, at most `MAX_LABEL_CHARS` long.

    A longer name ends with `…` and the CRC-32 of the whole name, so that names with the same beginning stay apart.
    """
    if len(name) <= MAX_LABEL_CHARS and name.isprintable():
        return name
    if len(name) > MAX_LABEL_CHARS:
        checksum = zlib.crc32(name.encode("utf-8", "surrogatepass"))
        name = f"{name[:_KEPT_CHARS]}…{checksum:08x}"
    return "".join(char if char.isprintable() else REPLACEMENT for char in name)


def entity_label(entity: object) -> str:
    """`str(entity)` with each name as `label_value` has it: at most 1,050 characters for a client, with escapes."""
    if isinstance(entity, Entity):
        names = (None if name is None else _bounded(name) for name in (entity.user, entity.client_id))
        return str(Entity(*names))
    if isinstance(entity, Named):
        return str(Named(entity.kind, _bounded(entity.name)))
    return label_value(str(entity))


def _bounded(name: Name) -> Name:
    return name if isinstance(name, Default) else label_value(name)
